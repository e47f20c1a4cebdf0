//! Requests to members, made from the request to the ensemble.

use nereid_backend_api::{InferRequest, PolicyContents, RequestTrace, RequestedOutput, Tensor};

use crate::plan::{Plan, PlannedStep};
use crate::wave::Sequence;

/// A request to a step's member. `template` is the ensemble's request without its inputs.
pub(crate) fn to_member(
    template: &InferRequest,
    step: &PlannedStep,
    inputs: Vec<Tensor>,
    sequence: &Sequence,
    policy_contents: Vec<PolicyContents>,
) -> InferRequest {
    InferRequest {
        id: template.id.clone(),
        inputs,
        policy_contents,
        outputs: step.outputs.iter().map(|(name, _)| RequestedOutput::new(name)).collect(),
        parameters: template.parameters.clone(),
        correlation_id: sequence.correlation_id.clone(),
        sequence: sequence.flags,
        priority: template.priority,
        timeout: template.timeout,
        deadline: template.deadline,
        flow: template.flow,
        allocator: None,
        trace: template.trace.as_ref().map(RequestTrace::child),
    }
}

/// Contents for host policies of inputs that a step takes from the ensemble's request.
pub(crate) fn policy_contents(
    template: &InferRequest,
    plan: &Plan,
    step: &PlannedStep,
) -> Vec<PolicyContents> {
    let mut found = Vec::new();
    for given in &template.policy_contents {
        let Some(&tensor) = plan.inputs.get(&given.input) else { continue };
        let readers = step.inputs.iter().filter(|(_, read)| *read == tensor);
        found.extend(readers.map(|(name, _)| PolicyContents { input: name.clone(), ..given.clone() }));
    }
    found
}

/// Joins the sequence of a further input into the sequence of a request: the first one counts.
pub(crate) fn join_sequences(
    sequence: &mut Option<Sequence>,
    of_tensor: Option<Sequence>,
    member: &str,
    ensemble: &str,
) {
    let Some(of_tensor) = of_tensor else { return };
    match sequence {
        Some(known) if *known != of_tensor => tracing::error!(
            "ensemble '{ensemble}': a step of model '{member}' reads tensors of different sequences; using {known:?}"
        ),
        _ => *sequence = Some(of_tensor),
    }
}
