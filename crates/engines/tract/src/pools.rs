//! MaxPool, in place of the engine's own, which drops NaN and takes the smallest finite number for minus infinity.

use tract_hir::internal::*;
use tract_hir::tract_core::ops::cnn::{MaxPool, OptMaxPool, PoolSpec};
use tract_hir::tract_num_traits::Float;

/// A MaxPool that leaves inputs without NaN and minus infinity to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    engine: Box<dyn TypedOp>,
    spec: PoolSpec,
    /// The type of the indices, if they are an output.
    places: Option<DatumType>,
}

impl Pool {
    /// The pool in place of the engine's, if the operator is one.
    pub(crate) fn in_place_of(node: &TypedNode) -> Option<Self> {
        let (spec, places) = match (node.op_as::<OptMaxPool>(), node.op_as::<MaxPool>()) {
            (Some(op), _) => (&op.pool_spec, op.with_index_outputs),
            (_, Some(op)) => (&op.pool_spec, op.with_index_outputs),
            _ => return None,
        };
        Some(Self { engine: node.op.clone(), spec: spec.clone(), places })
    }

    /// Whether the engine's result would be wrong.
    fn has_odd<T: Datum + Float>(input: &Tensor) -> TractResult<bool> {
        let smallest = T::min_value();
        // A sum, since the compiler does not vectorise a search.
        let odd = |numbers: &[T]| {
            numbers.iter().map(|number| u32::from(number.is_nan() | (*number <= smallest))).sum::<u32>()
        };
        Ok(input.try_as_plain_ram()?.as_slice::<T>()?.chunks(1024).any(|numbers| odd(numbers) > 0))
    }

    fn of<T: Datum + Float>(&self, input: &Tensor) -> TractResult<TVec<TValue>> {
        let dims: TVec<TDim> = input.shape().iter().map(|dim| dim.to_dim()).collect();
        let geometry = self.spec.compute_geo(&dims)?;
        let geometry = geometry.to_concrete(input.shape())?;
        let (from, to) = (&geometry.input_shape, &geometry.output_shape);
        let plain = input.try_as_plain_ram()?;
        let numbers = plain.as_slice::<T>()?;
        let size = to.shape.iter().product();
        let (mut largest, mut places) = (vec![T::min_value(); size], vec![0_i64; size]);
        geometry.patch.visit_output(|window| {
            for n in 0..*from.n().unwrap_or(&1) {
                for c in 0..*from.c() {
                    let start = n * from.n_stride().unwrap_or(&0) + c * from.c_stride();
                    let result = n * to.n_stride().unwrap_or(&0) + c * to.c_stride();
                    let candidates = window
                        .valid_offsets()
                        .map(|place| (place, numbers[(start as isize + place) as usize]));
                    let Some((place, number)) = candidates.reduce(|best, other| {
                        if other.1 > best.1 || other.1.is_nan() && !best.1.is_nan() { other } else { best }
                    }) else {
                        continue;
                    };
                    let result = (result as isize + window.output_offset) as usize;
                    largest[result] = number;
                    places[result] = place as i64 / geometry.patch.spec.output_inner_stride as i64;
                }
            }
        });
        let mut outputs = tvec!(Tensor::from_shape(&to.shape, &largest)?.into_tvalue());
        if let Some(datum_type) = self.places {
            let places = Tensor::from_shape(&to.shape, &places)?;
            outputs.push(places.cast_to_dt(datum_type)?.into_owned().into_tvalue());
        }
        Ok(outputs)
    }
}

impl Op for Pool {
    fn name(&self) -> StaticName {
        self.engine.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Pool {
    op_out_of_plan!();

    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = &inputs[0];
        match input.datum_type() {
            DatumType::F16 if Self::has_odd::<f16>(input)? => self.of::<f16>(input),
            DatumType::F32 if Self::has_odd::<f32>(input)? => self.of::<f32>(input),
            DatumType::F64 if Self::has_odd::<f64>(input)? => self.of::<f64>(input),
            _ => self.engine.eval(context, inputs),
        }
    }
}

impl TypedOp for Pool {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.engine.output_facts(inputs)
    }

    as_op!();
}
