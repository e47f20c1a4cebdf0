//! Checks of values between the operators of a run, where the engine would compute wrong values instead of failing.

use tract_onnx::prelude::{Datum, DatumType, TValue, TVec, Tensor, TractResult, f16, tract_ndarray};
use tract_onnx::tract_core::internal::{TypedModel, TypedNode, ensure};
use tract_onnx::tract_core::ops::array::Gather;
use tract_onnx::tract_core::ops::nn::{Reduce, Reducer};
use tract_onnx::tract_hir::tract_num_traits::Float;

/// The checks of a plan's nodes, by the node's number.
pub(crate) struct ValueChecks {
    nodes: Vec<Option<ValueCheck>>,
}

enum ValueCheck {
    /// Indices, which the engine takes for others where they are out of range.
    Gather(Gather),
    /// An extreme of nothing but infinities, which the engine takes for the largest finite number.
    Extreme(Reduce),
}

impl ValueChecks {
    /// The checks for a plan. `extremes` are the names of the file's nodes that compute a largest or smallest value.
    pub(crate) fn new(model: &TypedModel, extremes: &[String]) -> Self {
        Self { nodes: model.nodes().iter().map(|node| ValueCheck::of(node, extremes)).collect() }
    }

    /// Runs a node by `eval`.
    pub(crate) fn eval(
        &self,
        node: usize,
        inputs: TVec<TValue>,
        eval: impl FnOnce(TVec<TValue>) -> TractResult<TVec<TValue>>,
    ) -> TractResult<TVec<TValue>> {
        match self.nodes.get(node).and_then(Option::as_ref) {
            None => return eval(inputs),
            Some(ValueCheck::Gather(op)) => check_indices(&inputs[1], inputs[0].shape()[op.axis])?,
            Some(ValueCheck::Extreme(op)) => {
                let input = inputs[0].clone();
                let mut outputs = eval(inputs)?;
                if let Some(output) = extreme(op, &input, &outputs[0])? {
                    outputs[0] = output;
                }
                return Ok(outputs);
            }
        }
        eval(inputs)
    }
}

impl ValueCheck {
    fn of(node: &TypedNode, extremes: &[String]) -> Option<Self> {
        if let Some(op) = node.op_as::<Gather>() {
            return Some(Self::Gather(op.clone()));
        }
        let op = node.op_as::<Reduce>().filter(|op| matches!(op.reducer, Reducer::Max | Reducer::Min))?;
        let made_of = |name: &String| {
            node.name.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        extremes.iter().any(made_of).then(|| Self::Extreme(op.clone()))
    }
}

/// Checks that indices are within a dimension or count from its end.
pub(crate) fn check_indices(indices: &TValue, dim: usize) -> TractResult<()> {
    let (indices, dim) = (indices.cast_to::<i64>()?, dim as i64);
    for &index in indices.try_as_plain_ram()?.as_slice::<i64>()? {
        ensure!((-dim..dim).contains(&index), "index {index} is out of range for a dimension of {dim}");
    }
    Ok(())
}

/// The right result of a reduction to the largest or smallest values, if the engine's may be wrong.
fn extreme(op: &Reduce, input: &Tensor, output: &Tensor) -> TractResult<Option<TValue>> {
    match input.datum_type() {
        DatumType::F16 => extreme_of::<f16>(op, input, output),
        DatumType::F32 => extreme_of::<f32>(op, input, output),
        DatumType::F64 => extreme_of::<f64>(op, input, output),
        _ => Ok(None),
    }
}

fn extreme_of<T: Datum + Float>(op: &Reduce, input: &Tensor, output: &Tensor) -> TractResult<Option<TValue>> {
    let (finite, infinite) = match op.reducer {
        Reducer::Max => (T::min_value(), T::neg_infinity()),
        _ => (T::max_value(), T::infinity()),
    };
    if !output.try_as_plain_ram()?.as_slice::<T>()?.contains(&finite) {
        return Ok(None);
    }
    let further = |extreme: T, value: T| match op.reducer {
        Reducer::Max => value > extreme,
        _ => value < extreme,
    };
    let mut values = input.to_plain_array_view::<T>()?.to_owned();
    for &axis in &op.axes {
        let axis = tract_ndarray::Axis(axis);
        let reduce = |&extreme: &T, &value: &T| if further(extreme, value) { value } else { extreme };
        values = values.fold_axis(axis, infinite, reduce).insert_axis(axis);
    }
    Ok(Some(Tensor::from(values).into()))
}
