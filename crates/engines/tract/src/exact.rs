//! Exchanges the engine's operators that are wrong for NaN, infinities or the ends of their types.
//!
//! Most are exchanged after the optimiser, which fuses only the engine's own operators. Minima and maxima that it fuses into a product
//! of matrices are right there. What the optimiser folds, and the bodies of loops, are exchanged before it.

use std::collections::HashSet;

use tract_hir::internal::*;
use tract_hir::ops::math::{Max, Min};
use tract_hir::tract_core::ops::array::Topk;
use tract_hir::tract_core::ops::binary::{BinMiniOp, OptBinByScalar, OptBinChain, OptBinUnicast, TypedBinOp};
use tract_hir::tract_core::ops::element_wise::ElementWiseOp;
use tract_hir::tract_core::ops::konst::Const;
use tract_hir::tract_core::ops::nn::Reduce;
use tract_hir::tract_core::ops::scan::Scan;

use crate::algebra::all;
use crate::chain::Chain;
use crate::extremes::{Best, Extreme, Reduction};
use crate::functions::Function;
use crate::pools::Pool;
use crate::recurrence::Cell;

/// Exchanges operators before the optimiser: those that it would compute itself, as their inputs are constants, and extremes of
/// pairs that it must not join to products of matrices.
pub(crate) fn prepare(model: &mut TypedModel) -> TractResult<()> {
    let mut constants = HashSet::new();
    for id in model.eval_order()? {
        let node = &model.nodes[id];
        let is_constant = node.op_is::<Const>()
            || !node.inputs.is_empty() && node.inputs.iter().all(|input| constants.contains(&input.node));
        if is_constant {
            constants.insert(id);
        }
        let joins = node.op_is::<TypedBinOp>() && has_number(model, node);
        if (is_constant || node.op_is::<TypedBinOp>() && !joins)
            && let Some(op) = exchanged(model, node)?
        {
            model.nodes[id].op = op;
        }
    }
    Ok(())
}

/// Exchanges the operators in the bodies of loops.
pub(crate) fn exchange_in_loops(model: &mut TypedModel) -> TractResult<()> {
    for node in &mut model.nodes {
        if let Some(scan) = node.op_as::<Scan>() {
            let mut scan = scan.clone();
            exchange(&mut scan.body)?;
            node.op = Box::new(scan);
        }
    }
    Ok(())
}

/// Exchanges all operators of a graph.
pub(crate) fn exchange(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes.len() {
        if let Some(op) = exchanged(model, &model.nodes[id])? {
            model.nodes[id].op = op;
        }
    }
    Ok(())
}

/// Whether an operand is a constant without NaN.
fn has_number(model: &TypedModel, node: &TypedNode) -> bool {
    let is_number = |input: &OutletId| {
        let constant = model.outlet_fact(*input).ok().and_then(|fact| fact.konst.as_ref());
        constant.is_some_and(|constant| all(constant, |number| !number.is_nan()))
    };
    node.inputs.iter().any(is_number)
}

fn exchanged(model: &TypedModel, node: &TypedNode) -> TractResult<Option<Box<dyn TypedOp>>> {
    let Some(input) = node.inputs.first() else { return Ok(None) };
    let datum_type = model.outlet_fact(*input)?.datum_type;
    if !datum_type.is_float() {
        return Ok(None);
    }
    let op: &dyn TypedOp = node.op.as_ref();
    if let Some(ElementWiseOp(function, _)) = op.downcast_ref() {
        return Ok(Function::in_place_of(function.as_ref(), datum_type).map(|function| function.op().into()));
    }
    if let Some(extreme) = pair(op).and_then(extreme) {
        return Ok(Some(Box::new(TypedBinOp(Box::new(extreme), None))));
    }
    if let Some(chain) = op.downcast_ref::<OptBinChain>() {
        return Ok(Chain::in_place_of(chain).map(Into::into));
    }
    if let Some(reduce) = op.downcast_ref::<Reduce>() {
        return Ok(Reduction::in_place_of(reduce).map(Into::into));
    }
    if let Some(top) = op.downcast_ref::<Topk>() {
        return Ok(Some(Box::new(Best(top.clone()))));
    }
    let pool = || Pool::in_place_of(node).map(Into::into);
    Ok(Cell::in_place_of(node).map(Into::into).or_else(pool))
}

fn pair(op: &dyn TypedOp) -> Option<&dyn BinMiniOp> {
    let pair = op.downcast_ref::<TypedBinOp>().map(|op| &op.0);
    let pair = pair.or_else(|| op.downcast_ref::<OptBinByScalar>().map(|op| &op.binop));
    let pair = pair.or_else(|| op.downcast_ref::<OptBinUnicast>().map(|op| &op.binop));
    pair.map(AsRef::as_ref)
}

fn extreme(op: &dyn BinMiniOp) -> Option<Extreme> {
    if op.is::<Max>() {
        return Some(Extreme::Max);
    }
    op.is::<Min>().then_some(Extreme::Min)
}
