//! Replaces tensors without elements before the engine computes with them.
//!
//! The engine divides by dimensions and reads first elements, whether there are any or not. But the shape of an empty tensor is
//! all that it holds, and most operators make an empty tensor of one: the analysis puts a constant in its place, and a sum of
//! nothing is filled in. What is left of the graph neither takes nor makes empty tensors, but for the operators here.

use tract_hir::internal::*;
use tract_hir::tract_core::ops::array::TypedConcat;
use tract_hir::tract_core::ops::konst::Const;
use tract_hir::tract_core::ops::source::TypedSource;
use tract_hir::tract_num_traits::Zero;

/// ONNX's operators that may make elements of a first input without any.
const SERVED: [&str; 7] =
    ["Concat", "ConstantOfShape", "NonMaxSuppression", "NonZero", "Pad", "Shape", "Size"];

/// The engine's operators that take or make tensors without elements. Resize has the region or the scales that it does not use
/// without any.
const ENGINES: [&str; 6] = ["NonMaxSuppression", "NonZero", "Pad", "Resize", "ScatterElements", "ScatterND"];

/// Replaces the inputs of `model` that have no elements.
pub(crate) fn replace_inputs(model: &mut InferenceModel) -> TractResult<()> {
    for input in model.inputs.clone() {
        let fact = model.outlet_fact(input)?.clone();
        replace(model, input, &fact)?;
    }
    Ok(())
}

/// Replaces the outputs of a node that are known before it is computed, as one of its inputs or `outputs` has no elements.
/// Returns whether these are all.
///
/// # Errors
/// The engine cannot compute the node.
pub(crate) fn replace_outputs(
    model: &mut InferenceModel,
    id: usize,
    operator: &str,
    inputs: &[InferenceFact],
    outputs: &[InferenceFact],
) -> TractResult<bool> {
    let mut replaced = true;
    for (slot, fact) in outputs.iter().enumerate() {
        replaced &= replace(model, OutletId::new(id, slot), fact)?;
    }
    if replaced || SERVED.contains(&operator) || !inputs.first().is_some_and(is_empty) {
        return Ok(replaced);
    }
    let value = of_nothing(operator).context("its input has no elements")?;
    let (Some(datum_type), Some(shape)) = (outputs[0].datum_type.concretize(), outputs[0].shape.concretize())
    else {
        bail!("its input has no elements, and the shape of its output is unknown");
    };
    let shape: TVec<usize> = shape.iter().map(TDim::to_usize).collect::<Result<_, _>>()?;
    let value = tensor0(value).cast_to_dt(datum_type)?.broadcast_scalar_to_shape(&shape)?;
    let filled = model.add_const(format!("{}.of_nothing", model.node(id).name), value)?;
    redirect(model, id.into(), filled)?;
    Ok(true)
}

/// The sum or another reduction of nothing, if the operator is one. Integers have no infinity but their extremes.
fn of_nothing(operator: &str) -> Option<f64> {
    match operator {
        "Einsum" | "MatMul" | "MatMulInteger" => Some(0.0),
        "ReduceL1" | "ReduceL2" | "ReduceMean" | "ReduceSum" | "ReduceSumSquare" => Some(0.0),
        "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" => Some(f64::NEG_INFINITY),
        "ReduceMin" => Some(f64::INFINITY),
        "ReduceProd" => Some(1.0),
        _ => None,
    }
}

/// Puts a constant in the place of an outlet whose tensor has no elements. Returns whether it has none.
fn replace(model: &mut InferenceModel, outlet: OutletId, fact: &InferenceFact) -> TractResult<bool> {
    let (true, Some(datum_type), Some(shape)) =
        (is_empty(fact), fact.datum_type.concretize(), fact.shape.concretize())
    else {
        return Ok(false);
    };
    let shape: TVec<usize> = shape.iter().map(TDim::to_usize).collect::<Result<_, _>>()?;
    let name = format!("{}.empty{}", model.node(outlet.node).name, outlet.slot);
    let constant = model.add_const(name, Tensor::zero_dt(datum_type, &shape)?)?;
    redirect(model, outlet, constant)?;
    Ok(true)
}

fn redirect(model: &mut InferenceModel, from: OutletId, to: OutletId) -> TractResult<()> {
    for inlet in model.outlet_successors(from).to_vec() {
        model.add_edge(to, inlet)?;
    }
    model.outputs.iter_mut().filter(|output| **output == from).for_each(|output| *output = to);
    Ok(())
}

fn is_empty(fact: &InferenceFact) -> bool {
    fact.shape.dims().any(|dim| dim.concretize().is_some_and(|dim| dim.is_zero()))
}

/// Checks that a node of the engine's neither takes nor makes tensors without elements, or can.
pub(crate) fn verify(node: &TypedNode, inputs: &[&TypedFact]) -> TractResult<()> {
    let is_empty = |fact: &TypedFact| fact.shape.iter().any(|dim| dim.is_zero());
    let served = node.op_is::<Const>()
        || node.op_is::<TypedSource>()
        || node.op_is::<TypedConcat>()
        || ENGINES.contains(&&*node.op.name());
    let empty =
        inputs.iter().any(|fact| is_empty(fact)) || node.outputs.iter().any(|output| is_empty(&output.fact));
    ensure!(served || !empty, "a tensor has no elements");
    Ok(())
}
