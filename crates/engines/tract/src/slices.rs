//! Slice, in place of the engine's own, which takes other bounds than ONNX for negative steps, and wraps large numbers.

use tract_hir::internal::*;
use tract_hir::tract_core::ops::array::{Gather, Slice as EngineSlice};
use tract_onnx::model::{OnnxOpRegister, optional_inputs};
use tract_onnx::pb::NodeProto;

/// Replaces the engine's operator.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("Slice", |context, node| {
        let bounds = match context.onnx_operator_set_version {
            // The bounds are attributes.
            ..10 => Bounds::Attributes(Slices {
                starts: node.get_attr_vec("starts")?,
                ends: node.get_attr_vec("ends")?,
                axes: node.get_attr_opt_vec("axes")?,
                steps: None,
            }),
            _ => Bounds::of_inputs(node),
        };
        Ok((expand(Slice(bounds)), vec![]))
    });
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice(Bounds);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Bounds {
    Attributes(Slices),
    /// The positions of the inputs with axes and steps.
    Inputs {
        axes: Option<usize>,
        steps: Option<usize>,
    },
}

/// The slices along some axes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slices {
    starts: Vec<i64>,
    ends: Vec<i64>,
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
}

/// The elements that are left of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    axis: usize,
    start: i64,
    step: i64,
    count: i64,
}

impl Bounds {
    fn of_inputs(node: &NodeProto) -> Self {
        let mut positions = optional_inputs(node).skip(3);
        let mut next = || positions.next().flatten();
        Self::Inputs { axes: next(), steps: next() }
    }

    /// The slices, where `numbers` has the values of the inputs that are constant.
    fn slices(&self, numbers: impl Fn(usize) -> TractResult<Vec<i64>>) -> TractResult<Slices> {
        match self {
            Self::Attributes(slices) => Ok(slices.clone()),
            &Self::Inputs { axes, steps } => Ok(Slices {
                starts: numbers(1)?,
                ends: numbers(2)?,
                axes: axes.map(&numbers).transpose()?,
                steps: steps.map(numbers).transpose()?,
            }),
        }
    }
}

impl Slices {
    /// The cuts in dimensions of these sizes.
    fn cuts(&self, sizes: &[TDim]) -> TractResult<Vec<Cut>> {
        let count = self.starts.len();
        let axes = self.axes.clone().unwrap_or_else(|| (0..count as i64).collect());
        let steps = self.steps.clone().unwrap_or_else(|| vec![1; count]);
        ensure!(
            self.ends.len() == count && axes.len() == count && steps.len() == count,
            "{count} starts, {} ends, {} axes and {} steps",
            self.ends.len(),
            axes.len(),
            steps.len()
        );
        let rank = sizes.len() as i64;
        let cut = |at: usize| {
            let axis = if axes[at] < 0 { axes[at].saturating_add(rank) } else { axes[at] };
            ensure!((0..rank).contains(&axis), "axis {axis} is out of range for {rank} dimensions");
            let size = sizes[axis as usize].to_i64()?;
            let (step, from_end) =
                (steps[at], |bound: i64| if bound < 0 { bound.saturating_add(size) } else { bound });
            ensure!(step != 0, "a step of 0");
            let (start, end) = (from_end(self.starts[at]), from_end(self.ends[at]));
            let (start, length) = if step > 0 {
                let start = start.clamp(0, size);
                (start, end.clamp(0, size) - start)
            } else {
                let start = start.clamp(0.min(size - 1), size - 1);
                (start, start - end.clamp(-1, size - 1))
            };
            let count = length.max(0).unsigned_abs().div_ceil(step.unsigned_abs()) as i64;
            Ok(Cut { axis: axis as usize, start, step, count })
        };
        (0..count).map(cut).collect()
    }
}

/// The whole numbers of a tensor.
fn numbers(tensor: &Tensor) -> TractResult<Vec<i64>> {
    Ok(tensor.cast_to::<i64>()?.try_as_plain_ram()?.as_slice::<i64>()?.to_vec())
}

impl Expansion for Slice {
    fn name(&self) -> StaticName {
        "Slice".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_output_arity(outputs, 1)?;
        if let Bounds::Inputs { axes, steps } = self.0 {
            check_input_arity(inputs, 3 + usize::from(axes.is_some()) + usize::from(steps.is_some()))?;
        }
        solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        solver.equals(&inputs[0].rank, &outputs[0].rank)?;
        solver.given(&inputs[0].shape, move |solver, sizes| {
            solver.given_all(inputs[1..].iter().map(|input| &input.value), move |solver, values| {
                let slices = self.0.slices(|input| numbers(&values[input - 1]))?;
                let mut sizes = sizes.clone();
                for cut in slices.cuts(&sizes)? {
                    sizes[cut.axis] = cut.count.to_dim();
                }
                solver.equals(&outputs[0].shape, sizes)
            })
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let slices = self.0.slices(|input| {
            let constant = model.outlet_fact(inputs[input])?.konst.as_ref();
            numbers(constant.context("the bounds of a slice must be constant")?)
        })?;
        let sizes = model.outlet_fact(inputs[0])?.shape.to_tvec();
        let mut wire = inputs[0];
        for Cut { axis, start, step, count } in slices.cuts(&sizes)? {
            let name = format!("{prefix}.axis-{axis}");
            if count == 0 || step == 1 {
                let start = if count == 0 { 0 } else { start };
                if count.to_dim() != sizes[axis] {
                    wire = model.wire_node(name, EngineSlice::new(axis, start, start + count), &[wire])?[0];
                }
                continue;
            }
            let places: Vec<i64> = (0..count).map(|place| start + place * step).collect();
            let places = model.add_const(format!("{name}.places"), tensor1(&places))?;
            wire = model.wire_node(name, Gather::new(axis), &[wire, places])?[0];
        }
        if wire == inputs[0] {
            return model.wire_node(prefix, tract_hir::ops::identity::Identity, &[wire]);
        }
        model.rename_node(wire.node, prefix)?;
        Ok(tvec!(wire))
    }
}
