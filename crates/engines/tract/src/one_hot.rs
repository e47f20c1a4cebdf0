//! OneHot, in place of the engine's own, which writes beyond the output where an index is out of range.

use tract_hir::internal::*;
use tract_onnx::model::OnnxOpRegister;

/// Replaces the engine's operator.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("OneHot", |_, node| {
        Ok((expand(Hot { axis: node.get_attr_opt("axis")?.unwrap_or(-1) }), vec![]))
    });
}

/// The operator of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hot {
    axis: i64,
}

impl Hot {
    /// The axis that indices of this rank get.
    fn axis(&self, rank: usize) -> usize {
        (if self.axis < 0 { self.axis + rank as i64 + 1 } else { self.axis }) as usize
    }
}

impl Expansion for Hot {
    fn name(&self) -> StaticName {
        "OneHot".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 3)?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[2].datum_type, &outputs[0].datum_type)?;
        solver.equals(&inputs[2].rank, 1)?;
        solver.equals(&inputs[2].shape[0], 2.to_dim())?;
        solver.given_2(&inputs[0].shape, &inputs[1].value, move |solver, mut shape, depth| {
            shape.insert(self.axis(shape.len()), depth.cast_to_scalar::<i64>()?.to_dim());
            solver.equals(&outputs[0].shape, shape)
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let constant = |input: usize| {
            let constant = model.outlet_fact(inputs[input])?.konst.clone();
            constant.context("the depth and the values must be constant")
        };
        let depth = constant(1)?.cast_to_scalar::<i64>()?;
        let op = OneHot {
            axis: self.axis(model.outlet_fact(inputs[0])?.rank()),
            depth: usize::try_from(depth).with_context(|| format!("a depth of {depth}"))?,
            values: constant(2)?,
        };
        model.wire_node(prefix, op, &inputs[..1])
    }
}

/// The operator with its constants.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OneHot {
    axis: usize,
    depth: usize,
    /// The values off and on: of other places, and of the one that an index names.
    values: Arc<Tensor>,
}

impl OneHot {
    fn shape<D: DimLike>(&self, indices: &[D]) -> TVec<D> {
        let mut shape: TVec<D> = indices.into();
        shape.insert(self.axis, self.depth.into());
        shape
    }

    fn of<T: Datum>(&self, indices: &Tensor) -> TractResult<Tensor> {
        let values = self.values.try_as_plain_ram()?;
        let [off, on] = values.as_slice::<T>()? else { bail!("it needs two values") };
        let inner = indices.shape()[self.axis..].iter().product::<usize>();
        let mut made = vec![off.clone(); indices.len() * self.depth];
        let indices = indices.cast_to::<i64>()?;
        for (at, &index) in indices.try_as_plain_ram()?.as_slice::<i64>()?.iter().enumerate() {
            let place = if index < 0 { index.saturating_add(self.depth as i64) } else { index };
            // ONNX has no place for an index that is out of range.
            if let Some(place) = usize::try_from(place).ok().filter(|place| *place < self.depth) {
                made[(at / inner * self.depth + place) * inner + at % inner] = on.clone();
            }
        }
        Ok(tract_ndarray::ArrayD::from_shape_vec(&*self.shape(indices.shape()), made)?.into_tensor())
    }
}

impl Op for OneHot {
    fn name(&self) -> StaticName {
        "OneHot".into()
    }

    op_as_typed_op!();
}

impl EvalOp for OneHot {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let made = dispatch_datum!(Self::of(self.values.datum_type())(self, &inputs[0]))?;
        Ok(tvec!(made.into_tvalue()))
    }
}

impl TypedOp for OneHot {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(self.values.datum_type().fact(self.shape(&inputs[0].shape))))
    }

    as_op!();
}
