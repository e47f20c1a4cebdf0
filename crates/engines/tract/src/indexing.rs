//! GatherElements, GatherND, ScatterElements and ScatterND, in place of the engine's own.
//!
//! The engine's operators take a negative index for a huge one, ignore superfluous updates, index beyond the data where the
//! shapes disagree, and gather from the wrong axes where constant indices meet batch dimensions. The operators here check all
//! shapes when a plan is made, and each index when it runs.

use std::fmt::Debug;

use tract_hir::internal::*;
use tract_hir::tract_core::ops::array::ScatterReduction;
use tract_hir::tract_core::ops::cast::wire_cast;
use tract_onnx::model::OnnxOpRegister;
use tract_onnx::pb::NodeProto;

/// Replaces the engine's operators.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("GatherElements", |_, node| builder(node, elements(node)?, false));
    operators.insert("GatherND", |_, node| builder(node, tuples(node)?, false));
    for name in ["Scatter", "ScatterElements"] {
        operators.insert(name, |_, node| builder(node, elements(node)?, true));
    }
    operators.insert("ScatterND", |_, node| builder(node, tuples(node)?, true));
}

fn elements(node: &NodeProto) -> TractResult<Scheme> {
    Ok(Scheme::Elements { axis: node.get_attr_opt("axis")?.unwrap_or(0) })
}

fn tuples(node: &NodeProto) -> TractResult<Scheme> {
    Ok(Scheme::Tuples { batch_dims: node.get_attr_opt("batch_dims")?.unwrap_or(0) })
}

fn builder(
    node: &NodeProto,
    scheme: Scheme,
    scatters: bool,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let reduction = || ScatterReduction::parse(node.get_attr_opt("reduction")?.unwrap_or("none"));
    let reduction = scatters.then(reduction).transpose()?;
    Ok((expand(Indexed { scheme, reduction }), vec![]))
}

/// How the indices select from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// Each index selects one element: the one at its own coordinates, but for this axis.
    Elements { axis: i64 },
    /// The last dimension of the indices selects what is behind the first dimensions of the data, after those that both share.
    Tuples { batch_dims: i64 },
}

/// Any of the four operators: inputs are data, indices, and updates if it scatters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Indexed {
    scheme: Scheme,
    /// How an update changes an element; none if the operator gathers.
    reduction: Option<ScatterReduction>,
}

/// The data in row-major order, as an operator walks through it.
#[derive(Debug)]
struct Layout {
    /// The leading dimensions of the data, which an index may vary or take from its own coordinates.
    dims: TVec<usize>,
    /// The elements between two neighbours along each of these dimensions.
    strides: TVec<usize>,
    /// How many elements are selected at a time.
    block: usize,
    /// The shape of what is selected.
    selected: TVec<usize>,
}

impl Layout {
    fn new(data: &[usize], leading: usize, selected: TVec<usize>) -> Self {
        let stride = |axis: usize| data[axis + 1..].iter().product();
        Self {
            dims: data[..leading].into(),
            strides: (0..leading).map(stride).collect(),
            block: data[leading..].iter().product(),
            selected,
        }
    }
}

impl Scheme {
    /// Checks that indices of this shape fit the data.
    fn layout(self, data: &[usize], indices: &[usize]) -> TractResult<Layout> {
        match self {
            Self::Elements { axis } => {
                let axis = position(axis, data.len())?;
                let fits = |(at, (index, data)): (usize, (&usize, &usize))| at == axis || index <= data;
                ensure!(
                    data.len() == indices.len() && indices.iter().zip(data).enumerate().all(fits),
                    "indices {indices:?} do not fit data {data:?}"
                );
                Ok(Layout::new(data, data.len(), indices.into()))
            }
            Self::Tuples { batch_dims } => {
                let rank = data.len().min(indices.len());
                let batch = usize::try_from(batch_dims).ok().filter(|batch| *batch < rank);
                let batch = batch.with_context(|| {
                    format!(
                        "batch_dims {batch_dims} is out of range for ranks {} and {}",
                        data.len(),
                        indices.len()
                    )
                })?;
                ensure!(
                    data[..batch] == indices[..batch],
                    "the batch dimensions of data {data:?} and indices {indices:?} differ"
                );
                let (depth, places) = indices.split_last().context("indices need a dimension")?;
                ensure!(
                    (1..=data.len() - batch).contains(depth),
                    "the last dimension of indices {indices:?} is out of range for data {data:?}"
                );
                let behind = &data[batch + depth..];
                Ok(Layout::new(data, batch + depth, places.iter().chain(behind).copied().collect()))
            }
        }
    }

    /// Calls `visit` with the first element of what each index selects, in order.
    fn walk(self, layout: &Layout, indices: &Tensor, mut visit: impl FnMut(usize)) -> TractResult<()> {
        let numbers = indices.cast_to::<i64>()?;
        let numbers = numbers.try_as_plain_ram()?;
        let numbers = numbers.as_slice::<i64>()?;
        let resolve = |index: i64, dim: usize| {
            let resolved = if index < 0 { index.saturating_add(dim as i64) } else { index };
            let resolved = usize::try_from(resolved).ok().filter(|index| *index < dim);
            resolved.with_context(|| format!("index {index} is out of range for a dimension of {dim}"))
        };
        // The coordinates of an index among the indices.
        let (axis, sizes) = match self {
            Self::Elements { axis } => (position(axis, layout.dims.len())?, indices.shape()),
            Self::Tuples { batch_dims } => {
                let batch = batch_dims as usize;
                (batch, &indices.shape()[..indices.rank() - 1])
            }
        };
        let depth = match self {
            Self::Elements { .. } => 1,
            Self::Tuples { .. } => layout.dims.len() - axis,
        };
        let mut coordinates: TVec<usize> = tvec![0; sizes.len()];
        for tuple in numbers.chunks_exact(depth) {
            let mut at = 0;
            for (dimension, (&dim, &stride)) in layout.dims.iter().zip(&layout.strides).enumerate() {
                let index = match self {
                    Self::Elements { .. } if dimension == axis => resolve(tuple[0], dim)?,
                    Self::Tuples { .. } if dimension >= axis => resolve(tuple[dimension - axis], dim)?,
                    _ => coordinates[dimension],
                };
                at += index * stride;
            }
            visit(at);
            for (coordinate, &size) in coordinates.iter_mut().zip(sizes).rev() {
                *coordinate += 1;
                if *coordinate < size {
                    break;
                }
                *coordinate = 0;
            }
        }
        Ok(())
    }
}

/// The axis that a number names, which counts from the end if it is negative.
fn position(axis: i64, rank: usize) -> TractResult<usize> {
    let position = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    let position = usize::try_from(position).ok().filter(|axis| *axis < rank);
    position.with_context(|| format!("axis {axis} is out of range for {rank} dimensions"))
}

impl Indexed {
    /// The shape of the output for inputs of these shapes.
    fn shape(&self, inputs: &[&[usize]]) -> TractResult<TVec<usize>> {
        let (data, indices) = (inputs[0], inputs[1]);
        let layout = self.scheme.layout(data, indices)?;
        if self.reduction.is_none() {
            return Ok(layout.selected);
        }
        ensure!(
            inputs[2] == &*layout.selected,
            "updates {:?} should have the shape {:?} for data {data:?} and indices {indices:?}",
            inputs[2],
            layout.selected
        );
        Ok(data.into())
    }

    fn gather<T: Datum>(&self, data: &Tensor, indices: &Tensor) -> TractResult<Tensor> {
        let layout = self.scheme.layout(data.shape(), indices.shape())?;
        let data = data.try_as_plain_ram()?;
        let data = data.as_slice::<T>()?;
        let mut values = Vec::with_capacity(layout.selected.iter().product());
        self.scheme.walk(&layout, indices, |at| values.extend_from_slice(&data[at..at + layout.block]))?;
        Ok(tract_ndarray::ArrayD::from_shape_vec(&*layout.selected, values)?.into_tensor())
    }

    fn scatter<T: Datum>(
        &self,
        data: &mut Tensor,
        indices: &Tensor,
        updates: &Tensor,
        update: impl Fn(&mut T, &T),
    ) -> TractResult<()> {
        let layout = self.scheme.layout(data.shape(), indices.shape())?;
        let updates = updates.try_as_plain_ram()?;
        let mut updates = updates.as_slice::<T>()?;
        let mut data = data.try_as_plain_ram_mut()?;
        let data = data.as_slice_mut::<T>()?;
        self.scheme.walk(&layout, indices, |at| {
            let (now, rest) = updates.split_at(layout.block);
            updates = rest;
            for (element, value) in data[at..at + layout.block].iter_mut().zip(now) {
                update(element, value);
            }
        })
    }

    fn replace<T: Datum>(&self, data: &mut Tensor, indices: &Tensor, updates: &Tensor) -> TractResult<()> {
        self.scatter::<T>(data, indices, updates, |element, value| element.clone_from(value))
    }

    fn reduce<T: Datum + Copy + PartialOrd + Wrapping>(
        &self,
        data: &mut Tensor,
        indices: &Tensor,
        updates: &Tensor,
        reduction: ScatterReduction,
    ) -> TractResult<()> {
        self.scatter::<T>(data, indices, updates, |element, &value| match reduction {
            ScatterReduction::None => *element = value,
            ScatterReduction::Add => *element = element.sum(value),
            ScatterReduction::Mul => *element = element.product(value),
            ScatterReduction::Min if value < *element => *element = value,
            ScatterReduction::Max if value > *element => *element = value,
            ScatterReduction::Min | ScatterReduction::Max => {}
        })
    }
}

/// Numbers whose sums and products wrap around if they are integers.
trait Wrapping {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! wrapping {
    ($($integer:ty),*; $($float:ty),*) => {
        $(impl Wrapping for $integer {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        })*
        $(impl Wrapping for $float {
            fn sum(self, other: Self) -> Self {
                self + other
            }

            fn product(self, other: Self) -> Self {
                self * other
            }
        })*
    };
}

wrapping!(u8, u16, u32, u64, i8, i16, i32, i64; f16, f32, f64);

impl Expansion for Indexed {
    fn name(&self) -> StaticName {
        match (self.scheme, &self.reduction) {
            (Scheme::Elements { .. }, None) => "GatherElements".into(),
            (Scheme::Tuples { .. }, None) => "GatherND".into(),
            (Scheme::Elements { .. }, Some(_)) => "ScatterElements".into(),
            (Scheme::Tuples { .. }, Some(_)) => "ScatterND".into(),
        }
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_output_arity(outputs, 1)?;
        if self.reduction.is_none() {
            check_input_arity(inputs, 2)?;
            solver.equals(&outputs[0].datum_type, &inputs[0].datum_type)?;
            return solver.given_2(&inputs[0].shape, &inputs[1].shape, move |solver, data, indices| {
                let shape = self.shape(&[&sizes(&data)?, &sizes(&indices)?])?;
                solver.equals(&outputs[0].shape, shape.iter().map(ToDim::to_dim).collect::<TVec<_>>())
            });
        }
        check_input_arity(inputs, 3)?;
        solver.given_2(&inputs[0].datum_type, &inputs[2].datum_type, move |solver, data, updates| {
            solver.equals(&outputs[0].datum_type, common_type(data, updates)?)
        })?;
        solver.equals(&outputs[0].shape, &inputs[0].shape)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let [data, indices, ref updates @ ..] = *inputs else { bail!("it needs data and indices") };
        let [updates] = *updates else { return model.wire_node(prefix, self.clone(), &[data, indices]) };
        let datum_type =
            common_type(model.outlet_fact(data)?.datum_type, model.outlet_fact(updates)?.datum_type)?;
        let cast = wire_cast(prefix, model, &[data, updates], datum_type)?;
        model.wire_node(prefix, self.clone(), &[cast[0], indices, cast[1]])
    }
}

/// The type of data that updates go into. Dimensions are of a type of their own, which is INT64 in ONNX.
fn common_type(data: DatumType, updates: DatumType) -> TractResult<DatumType> {
    let integers = [DatumType::I64, DatumType::TDim];
    match data == updates {
        true => Ok(data),
        false if integers.contains(&data) && integers.contains(&updates) => Ok(DatumType::TDim),
        false => bail!("the data are {data:?}, and the updates {updates:?}"),
    }
}

fn sizes(shape: &[TDim]) -> TractResult<TVec<usize>> {
    Ok(shape.iter().map(TDim::to_usize).collect::<Result<_, _>>()?)
}

impl Op for Indexed {
    fn name(&self) -> StaticName {
        Expansion::name(self)
    }

    op_as_typed_op!();
}

impl EvalOp for Indexed {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, mut inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let shapes: TVec<TVec<usize>> = inputs.iter().map(|input| input.shape().into()).collect();
        self.shape(&shapes.iter().map(|shape| &**shape).collect::<TVec<_>>())?;
        let Some(reduction) = self.reduction else {
            let datum_type = inputs[0].datum_type();
            let values = dispatch_datum!(Self::gather(datum_type)(self, &inputs[0], &inputs[1]))?;
            return Ok(tvec!(values.into_tvalue()));
        };
        let mut data = inputs.remove(0).into_tensor();
        let (indices, updates) = (&inputs[0], &inputs[1]);
        match reduction {
            ScatterReduction::None => {
                dispatch_datum!(Self::replace(data.datum_type())(self, &mut data, indices, updates))?;
            }
            _ => dispatch_numbers!(Self::reduce(data.datum_type())(
                self, &mut data, indices, updates, reduction
            ))?,
        }
        Ok(tvec!(data.into_tvalue()))
    }
}

impl TypedOp for Indexed {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let shapes = inputs.iter().map(|fact| {
            let shape = fact.shape.as_concrete();
            shape.with_context(|| format!("the shape {:?} is unknown before it runs", fact.shape))
        });
        let shapes = shapes.collect::<TractResult<TVec<_>>>()?;
        Ok(tvec!(inputs[0].datum_type.fact(&*self.shape(&shapes)?)))
    }

    as_op!();
}
