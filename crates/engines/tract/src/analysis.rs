//! Infers the shapes of a graph for concrete input shapes, one node at a time.
//!
//! The engine computes with constants while it infers, so a small file or a few dimensions can make it allocate any
//! amount. Here each node's output shapes are inferred first, held against the limit, and only then computed with.

use std::collections::HashSet;

use tract_onnx::prelude::{InferenceFact, InferenceModel, TVec, TractResult};
use tract_onnx::tract_core::internal::{OutletId, TractErrorContext, ensure};
use tract_onnx::tract_hir::infer::Factoid;

use crate::empty;
use crate::rules::{Rule, Rules, check_rank};

/// Infers the shapes of `model`, whose inputs have concrete ones. No tensor may take more than `limit` bytes.
pub(crate) fn analyse(model: &mut InferenceModel, rules: &Rules, limit: u64) -> TractResult<()> {
    let order = model.eval_order()?;
    // The engine infers with all of them.
    let checked: HashSet<_> = order.iter().collect();
    for node in model.nodes().iter().filter(|node| !node.inputs.is_empty()) {
        ensure!(checked.contains(&node.id), "no output needs {node}");
    }
    empty::replace_inputs(model)?;
    for id in order {
        analyse_node(model, id, rules, limit).with_context(|| format!("{}", model.node(id)))?;
    }
    // Without the nodes that were replaced, which the engine would infer, too.
    model.compact()
}

fn analyse_node(model: &mut InferenceModel, id: usize, rules: &Rules, limit: u64) -> TractResult<()> {
    let node = model.node(id);
    let inputs = node.inputs.clone();
    let outputs: TVec<_> = (0..node.outputs.len()).map(|slot| OutletId::new(id, slot)).collect();
    let observed = node.op.observe_outlets(model, node)?;
    let facts = |outlets: &[OutletId]| {
        outlets.iter().map(|&outlet| model.outlet_fact(outlet).cloned()).collect::<TractResult<TVec<_>>>()
    };
    let before = [facts(&inputs)?, facts(&outputs)?, facts(&observed)?];
    if let Some(rule) = rules.get(id) {
        rule.check(&before[0])?;
    }
    let known = || before.each_ref().map(|facts| facts.iter().collect());
    if !inputs.is_empty() {
        before[0].iter().try_for_each(check_rank)?;
        let [inputs, outputs, observed] = known();
        let (_, outputs, _) = model.node(id).op.clone().infer_facts(inputs, outputs, observed)?;
        let computes = before[0].iter().all(|input| input.value.is_concrete());
        let rule = rules.get(id);
        let expands = rule.is_some_and(Rule::expands);
        for output in &outputs {
            check_rank(output)?;
            let size = size(output)?;
            ensure!(size.is_none_or(|size| size <= limit), "a tensor would take more than {limit} bytes");
            ensure!(
                size.is_some() || !computes || !expands,
                "the size of a constant is not known before it is computed"
            );
            if let Some(rule) = rule {
                let bytes = rule.scratch.bytes(&before[0], output, computes)?.unwrap_or(0);
                ensure!(bytes <= limit, "it would take {bytes} bytes to compute, and {limit} is the limit");
            }
        }
        let operator = rule.map_or("", |rule| &rule.operator);
        if empty::replace_outputs(model, id, operator, &before[0], &outputs)? {
            return Ok(());
        }
    }
    let after = {
        let [inputs, outputs, observed] = known();
        let (inputs, outputs, observed) = model.node_mut(id).op.infer(inputs, outputs, observed)?;
        [inputs, outputs, observed]
    };
    let outlets = inputs.iter().chain(&outputs).chain(&observed);
    for (&outlet, inferred) in outlets.zip(after.iter().flatten()) {
        let known = model.outlet_fact(outlet)?;
        let fact = known.unify(inferred)?;
        if fact != *known {
            model.set_outlet_fact(outlet, fact)?;
        }
    }
    Ok(())
}

/// The bytes that a tensor takes, if its type and shape are known. Without elements, it counts as if it had some: the engine
/// goes through its other dimensions all the same.
fn size(fact: &InferenceFact) -> TractResult<Option<u64>> {
    let (Some(datum_type), Some(dims)) = (fact.datum_type.concretize(), fact.shape.concretize()) else {
        return Ok(None);
    };
    let mut size = datum_type.size_of() as u64;
    for dim in dims {
        let Ok(dim) = dim.to_i64() else { return Ok(None) };
        ensure!(dim >= 0, "a tensor would have a dimension of {dim}");
        size = size.saturating_mul((dim as u64).max(1));
    }
    Ok(Some(size))
}
