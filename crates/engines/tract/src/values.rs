//! Checks of values between the operators of a run, where the engine would compute wrong values instead of failing.

use tract_onnx::prelude::{TValue, TVec, Tensor, TractResult};
use tract_onnx::tract_core::internal::{TypedModel, TypedNode, bail};
use tract_onnx::tract_core::ops::array::Gather;
use tract_onnx::tract_core::ops::gru_seq::GruSeq;

use crate::recurrence;

/// The checks of a plan's nodes, by the node's number.
pub(crate) struct ValueChecks {
    nodes: Vec<Option<ValueCheck>>,
}

enum ValueCheck {
    /// Indices, which the engine takes for others where they are out of range.
    Gather(Gather),
    /// A sequence with NaN, which the engine takes for numbers.
    Sequence(GruSeq),
}

impl ValueChecks {
    /// The checks for a plan.
    pub(crate) fn new(model: &TypedModel) -> Self {
        let check = |node: &TypedNode| {
            let gather = node.op_as::<Gather>().map(|op| ValueCheck::Gather(op.clone()));
            gather.or_else(|| Some(ValueCheck::Sequence(node.op_as::<GruSeq>()?.clone())))
        };
        Self { nodes: model.nodes().iter().map(check).collect() }
    }

    /// Runs a node by `eval`.
    pub(crate) fn eval(
        &self,
        node: usize,
        inputs: TVec<TValue>,
        eval: impl FnOnce(TVec<TValue>) -> TractResult<TVec<TValue>>,
    ) -> TractResult<TVec<TValue>> {
        match self.nodes.get(node).and_then(Option::as_ref) {
            None => eval(inputs),
            Some(ValueCheck::Gather(op)) => {
                check_indices(&inputs[1], inputs[0].shape()[op.axis])?;
                eval(inputs)
            }
            Some(ValueCheck::Sequence(op)) => {
                let mut outputs = eval(inputs.clone())?;
                recurrence::correct(op, &inputs, &mut outputs)?;
                Ok(outputs)
            }
        }
    }
}

/// Checks that indices are within a dimension or count from its end.
pub(crate) fn check_indices(indices: &Tensor, dim: usize) -> TractResult<()> {
    let indices = indices.cast_to::<i64>()?;
    check_places(indices.try_as_plain_ram()?.as_slice::<i64>()?, dim as i64)
}

/// As [`check_indices`], of indices and a dimension that are known before they are computed with.
pub(crate) fn check_places(indices: &[i64], dim: i64) -> TractResult<()> {
    match indices.iter().find(|index| !(-dim..dim).contains(*index)) {
        Some(index) => bail!("index {index} is out of range for a dimension of {dim}"),
        None => Ok(()),
    }
}
