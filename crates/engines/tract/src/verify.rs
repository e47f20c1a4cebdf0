//! Checks a typed graph before it is optimised: shapes agree, and their memory is bounded.
//!
//! The engine's kernels trust the shapes of a graph, and its own inference takes dimensions that do not fit for ones that
//! are not known yet. Here every dimension is a number, so each rule either holds or not.

use std::collections::HashMap;

use tract_onnx::prelude::{TVec, TractResult};
use tract_onnx::tract_core::internal::{
    AxisOp, Datum, ShapeFact, TDim, TractErrorContext, TypedFact, TypedModel, TypedNode, bail, ensure,
};
use tract_onnx::tract_core::ops::array::{MultiBroadcastTo, Slice, Topk, TypedConcat};
use tract_onnx::tract_core::ops::cast::Cast;
use tract_onnx::tract_core::ops::cnn::{Conv, Deconv, MaxPool, PoolSpec, SumPool};
use tract_onnx::tract_core::ops::einsum::EinSum;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_core::ops::lstm_cell::LstmEpilogue;
use tract_onnx::tract_core::ops::nn::Reduce;
use tract_onnx::tract_core::ops::scan::{InputMapping, Scan};

use crate::empty;

/// Checks the rules of each operator, and that the tensors of a run take at most `memory` bytes at any time.
pub(crate) fn verify(model: &TypedModel, memory: u64) -> TractResult<()> {
    let order = model.eval_order()?;
    for &id in &order {
        let node = model.node(id);
        verify_node(model, node, memory).with_context(|| format!("{node}"))?;
    }
    check_peak(model, &order, memory)
}

/// Checks that the tensors of a run take at most `memory` bytes at any time.
pub(crate) fn check_memory(model: &TypedModel, memory: u64) -> TractResult<()> {
    check_peak(model, &model.eval_order()?, memory)
}

fn check_peak(model: &TypedModel, order: &[usize], memory: u64) -> TractResult<()> {
    let peak = peak_memory(model, order)?;
    ensure!(peak <= memory, "its tensors would take {peak} bytes, and {memory} is the limit");
    Ok(())
}

/// Operators that count what inputs hold.
const COUNTING: [&str; 2] = ["NonZero", "NonMaxSuppression"];

fn verify_node(model: &TypedModel, node: &TypedNode, memory: u64) -> TractResult<()> {
    let inputs =
        node.inputs.iter().map(|&outlet| model.outlet_fact(outlet)).collect::<TractResult<TVec<_>>>()?;
    for fact in inputs.iter().copied().chain(node.outputs.iter().map(|output| &output.fact)) {
        if let Some(size) = size(fact)? {
            ensure!(
                size <= memory || node.op_is::<Const>(),
                "a tensor would take {size} bytes, and {memory} is the limit"
            );
        }
    }
    let constants = node.outputs.iter().filter_map(|output| output.fact.konst.as_ref());
    for constant in constants.filter(|constant| constant.datum_type() == TDim::datum_type()) {
        let sizes = constant.try_as_plain_ram()?.as_slice::<TDim>()?;
        let unknown = sizes.iter().find(|size| size.to_i64().is_err());
        ensure!(unknown.is_none(), "it has a size that depends on what the model's inputs hold");
    }
    // Of few operators the shape depends on what inputs hold. It may leave the graph, but nothing may rely on it. Elsewhere
    // the engine has two dimensions that do not fit, and hopes that they will.
    let open = |fact: &&TypedFact| !fact.shape.is_concrete();
    let moves = node.op_is::<Cast>() || node.op_is::<AxisOp>();
    let counts = COUNTING.contains(&&*node.op.name());
    if let Some(fact) = inputs.iter().copied().find(open)
        && !moves
    {
        bail!("its input has the shape {:?}, which depends on what the model's inputs hold", fact.shape);
    }
    if let Some(fact) = node.outputs.iter().map(|output| &output.fact).find(open)
        && !moves
        && !counts
    {
        bail!("its inputs do not fit, or their contents decide the shape of its output, {:?}", fact.shape);
    }
    empty::verify(node, &inputs)?;
    let shapes: TVec<&[usize]> = inputs.iter().filter_map(|fact| fact.shape.as_concrete()).collect();
    if shapes.len() == inputs.len() {
        verify_shapes(node, &shapes, memory)?;
    }
    Ok(())
}

/// The rules that the engine's kernels rely upon, for an operator with inputs of these shapes.
fn verify_shapes(node: &TypedNode, inputs: &[&[usize]], memory: u64) -> TractResult<()> {
    let output = node.outputs.first().and_then(|output| output.fact.shape.as_concrete());
    if let Some(op) = node.op_as::<EinSum>() {
        // A quantised product has its parameters behind the first two inputs.
        let operands = if op.q_params.is_some() { 2 } else { inputs.len() };
        for axis in op.axes.iter_all_axes() {
            let positions = axis.inputs.iter().zip(inputs).take(operands);
            let mut dims = positions.flat_map(|(at, shape)| at.iter().map(|&at| shape[at]));
            let Some(first) = dims.next() else { continue };
            let summed = axis.outputs.iter().all(|at| at.is_empty());
            let mut size = first;
            for dim in dims {
                ensure!(
                    dim == size || !summed && (dim == 1 || size == 1),
                    "dimensions {size} and {dim} do not fit"
                );
                size = size.max(dim);
            }
        }
    } else if let Some(op) = node.op_as::<Conv>() {
        verify_window(&op.pool_spec, inputs)?;
        let kernel = inputs.get(1).copied().unwrap_or_default();
        let expected = op.pool_spec.input_channels * op.pool_spec.output_channels / op.group.max(1)
            * op.pool_spec.kernel_shape.iter().product::<usize>();
        ensure!(
            op.group > 0
                && op.pool_spec.input_channels.is_multiple_of(op.group)
                && op.pool_spec.output_channels.is_multiple_of(op.group),
            "{} groups do not divide {} and {} channels",
            op.group,
            op.pool_spec.input_channels,
            op.pool_spec.output_channels
        );
        ensure!(kernel.iter().product::<usize>() == expected, "the kernel has shape {kernel:?}");
    } else if let Some(op) = node.op_as::<Deconv>() {
        verify_window(&op.pool_spec, inputs)?;
    } else if let Some(op) = node.op_as::<MaxPool>() {
        verify_window(&op.pool_spec, inputs)?;
    } else if let Some(op) = node.op_as::<SumPool>() {
        verify_window(&op.pool_spec, inputs)?;
    } else if let Some(op) = node.op_as::<Slice>() {
        let (Ok(start), Ok(end)) = (op.start.to_i64(), op.end.to_i64()) else {
            bail!("its bounds are unknown")
        };
        let size = inputs[0].get(op.axis).copied();
        ensure!(
            size.is_some_and(|size| 0 <= start && start <= end && end <= size as i64),
            "{start}..{end} is out of range for a dimension of {size:?}"
        );
    } else if let Some(op) = node.op_as::<TypedConcat>() {
        for shape in inputs {
            let same = |axis: usize| axis == op.axis || shape[axis] == inputs[0][axis];
            ensure!(
                shape.len() == inputs[0].len() && (0..shape.len()).all(same),
                "{shape:?} does not fit {:?}",
                inputs[0]
            );
        }
    } else if let Some(op) = node.op_as::<Topk>() {
        let k = output.and_then(|shape| shape.get(op.axis).copied());
        ensure!(
            k.is_some_and(|k| k <= inputs[0][op.axis]),
            "{k:?} elements are asked of a dimension of {}",
            inputs[0][op.axis]
        );
    } else if let Some(op) = node.op_as::<Reduce>() {
        ensure!(op.axes.iter().all(|&axis| axis < inputs[0].len()), "axes {:?} are out of range", op.axes);
    } else if let Some(op) = node.op_as::<MultiBroadcastTo>() {
        verify_broadcast(inputs[0], &op.shape)?;
    } else if let Some(op) = node.op_as::<LstmEpilogue>() {
        let (gates, state) = (inputs[0], inputs[1]);
        ensure!(
            op.hidden > 0
                && state.last() == Some(&op.hidden)
                && gates.iter().product::<usize>() == 4 * state.iter().product::<usize>(),
            "gates {gates:?} do not fit a state {state:?}"
        );
    } else if let Some(AxisOp::Reshape(..)) = node.op_as::<AxisOp>() {
        let volume = |shape: &[usize]| shape.iter().product::<usize>();
        ensure!(
            output.is_some_and(|output| volume(output) == volume(inputs[0])),
            "{:?} is reshaped to {output:?}",
            inputs[0]
        );
    } else if let Some(op) = node.op_as::<Scan>() {
        verify_body(&op.body, &op.input_mapping, inputs)?;
        verify(&op.body, memory)?;
    }
    Ok(())
}

/// Checks a convolution or pooling: its channels, and a window that is not empty and moves.
fn verify_window(pool: &PoolSpec, inputs: &[&[usize]]) -> TractResult<()> {
    let shape = pool.data_format.shape(inputs[0])?;
    ensure!(*shape.c() == pool.input_channels, "{} channels instead of {}", shape.c(), pool.input_channels);
    ensure!(
        shape.hw_rank() == pool.kernel_shape.len(),
        "a window {:?} over {:?}",
        pool.kernel_shape,
        inputs[0]
    );
    let steps = [Some(&pool.kernel_shape), pool.strides.as_ref(), pool.dilations.as_ref()];
    for step in steps.into_iter().flatten() {
        ensure!(step.len() == pool.kernel_shape.len() && !step.contains(&0), "a window with {step:?}");
    }
    Ok(())
}

fn verify_broadcast(input: &[usize], target: &ShapeFact) -> TractResult<()> {
    let Some(target) = target.as_concrete() else { bail!("it is broadcast to {target:?}") };
    let fits = input.len() <= target.len()
        && input.iter().rev().zip(target.iter().rev()).all(|(from, to)| from == to || *from == 1);
    ensure!(fits, "{input:?} cannot be broadcast to {target:?}");
    Ok(())
}

/// Checks that the body of a recurrent operator was made for these inputs.
fn verify_body(body: &TypedModel, mapping: &[InputMapping], inputs: &[&[usize]]) -> TractResult<()> {
    ensure!(
        mapping.len() == inputs.len() && body.input_outlets()?.len() == inputs.len(),
        "inputs that its body lacks"
    );
    let mut steps = None;
    for (index, (mapping, &shape)) in mapping.iter().zip(inputs).enumerate() {
        let mut shape: TVec<usize> = shape.into();
        if let InputMapping::Scan(scan) = mapping {
            let chunk = scan.chunk.unsigned_abs();
            ensure!(chunk > 0 && scan.axis < shape.len(), "no steps over {shape:?}");
            let count = shape[scan.axis].div_ceil(chunk);
            ensure!(*steps.get_or_insert(count) == count, "inputs of different lengths");
            shape[scan.axis] = chunk;
        }
        let expected = body.input_fact(index)?.shape.as_concrete();
        ensure!(expected == Some(&*shape), "its body takes {expected:?}, not {shape:?}");
    }
    Ok(())
}

/// The bytes of a tensor; none if its shape is not known before it is computed. Without elements, it counts as in the analysis.
fn size(fact: &TypedFact) -> TractResult<Option<u64>> {
    let Some(dims) = fact.shape.as_concrete() else { return Ok(None) };
    let mut size = dims
        .iter()
        .fold(fact.datum_type.size_of() as u64, |size, &dim| size.saturating_mul((dim as u64).max(1)));
    for buffer in fact.exotic_fact().iter().flat_map(|exotic| exotic.buffer_sizes()) {
        size = size.saturating_add(u64::try_from(buffer.to_i64()?)?);
    }
    Ok(Some(size))
}

/// The most that tensors take together at any time of a run in `order`, in bytes, without constants.
fn peak_memory(model: &TypedModel, order: &[usize]) -> TractResult<u64> {
    let mut last_use = HashMap::new();
    for &id in order {
        last_use.insert(id, id);
        last_use.extend(model.node(id).inputs.iter().map(|input| (input.node, id)));
    }
    for output in model.output_outlets()? {
        last_use.remove(&output.node);
    }
    let mut ends: HashMap<usize, u64> = HashMap::new();
    let (mut now, mut peak) = (0_u64, 0);
    for &id in order {
        let node = model.node(id);
        let mut made = 0_u64;
        if !node.op_is::<Const>() {
            for output in &node.outputs {
                made = made.saturating_add(size(&output.fact)?.unwrap_or(0));
            }
        }
        now = now.saturating_add(made);
        peak = peak.max(now);
        if let Some(&end) = last_use.get(&id) {
            *ends.entry(end).or_default() += made;
        }
        now -= ends.remove(&id).unwrap_or(0).min(now);
    }
    Ok(peak)
}
