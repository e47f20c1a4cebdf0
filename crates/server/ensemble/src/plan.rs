//! The graph of an ensemble in executable form: tensors and steps are numbers.

use std::collections::BTreeMap;

use nereid_backend_api::{InferRequest, ModelConfig, Shape};
use nereid_core::ModelId;
use nereid_model_config::StepRules;

use crate::steps_of;

/// The compiled graph.
pub(crate) struct Plan {
    /// The ensemble's name.
    pub name: String,
    /// Whether its requests have a batch dimension.
    pub batches: bool,
    /// Whether a request may have any number of responses.
    pub is_decoupled: bool,
    /// The tensor of each input of the ensemble, by the input's name.
    pub inputs: BTreeMap<String, usize>,
    /// In the configuration's order.
    pub outputs: Vec<PlannedOutput>,
    pub steps: Vec<PlannedStep>,
    /// The steps that read each tensor; a step that reads a tensor several times is listed as often.
    pub readers: Vec<Vec<usize>>,
    /// The step that writes each tensor.
    pub writers: Vec<Option<usize>>,
    /// Maximum number of requests in progress per step; 0 for no limit.
    pub max_inflight: usize,
    /// The number of each tensor, by name.
    pub tensors: BTreeMap<String, usize>,
}

pub(crate) struct PlannedOutput {
    pub name: String,
    pub tensor: usize,
    /// Dimensions between the steps, without a batch dimension.
    pub dims: Shape,
}

pub(crate) struct PlannedStep {
    pub model: ModelId,
    /// `None` for the latest.
    pub version: Option<u64>,
    /// Inputs of the member, and the tensor of each.
    pub inputs: Vec<(String, usize)>,
    /// Outputs of the member, and the tensor of each.
    pub outputs: Vec<(String, usize)>,
    /// Rank of the step: greater than the ranks of all steps that it waits for.
    pub rank: usize,
}

impl Plan {
    /// Compiles a validated configuration.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let ensemble = steps_of(config);
        let mut numbers = BTreeMap::new();
        let mut number = |name: &str| {
            let next = numbers.len();
            *numbers.entry(name.to_owned()).or_insert(next)
        };
        let inputs = config.input.iter().map(|input| (input.name.clone(), number(&input.name))).collect();
        let outputs = config.output.iter().map(|output| {
            let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
            let tensor = number(&output.name);
            PlannedOutput { name: output.name.clone(), tensor, dims: Shape::from(&dims[..]) }
        });
        let outputs = outputs.collect();
        let mut steps = Vec::new();
        for step in ensemble.into_iter().flat_map(|ensemble| &ensemble.step) {
            let namespace = step.model_namespace.clone();
            let mut numbered = |name: &str, tensor: &str| (name.to_owned(), number(tensor));
            let inputs = StepRules::of(step).inputs;
            steps.push(PlannedStep {
                model: ModelId { name: step.model_name.clone(), namespace },
                version: u64::try_from(step.model_version).ok(),
                inputs: inputs.iter().map(|input| numbered(input.name, input.tensor)).collect(),
                outputs: step.output_map.iter().map(|(name, tensor)| numbered(name, tensor)).collect(),
                rank: 0,
            });
        }
        let (mut readers, mut writers) = (vec![Vec::new(); numbers.len()], vec![None; numbers.len()]);
        for (index, step) in steps.iter().enumerate() {
            step.inputs.iter().for_each(|&(_, tensor)| readers[tensor].push(index));
            step.outputs.iter().for_each(|&(_, tensor)| writers[tensor] = Some(index));
        }
        rank(&mut steps, &writers);
        Self {
            name: config.name.clone(),
            batches: config.max_batch_size > 0,
            is_decoupled: config.model_transaction_policy.is_some_and(|policy| policy.decoupled),
            inputs,
            outputs,
            steps,
            readers,
            writers,
            max_inflight: ensemble.map_or(0, |ensemble| ensemble.max_inflight_requests as usize),
            tensors: numbers,
        }
    }

    /// The outputs that a request names, or all.
    pub(crate) fn wanted_by(&self, request: &InferRequest) -> Vec<usize> {
        let is_wanted = |name: &str| {
            request.outputs.is_empty() || request.outputs.iter().any(|output| output.name == name)
        };
        let outputs = self.outputs.iter().enumerate();
        outputs.filter(|(_, output)| is_wanted(&output.name)).map(|(index, _)| index).collect()
    }

    /// The steps needed to compute these outputs.
    pub(crate) fn needed_for(&self, outputs: &[usize]) -> Vec<bool> {
        let mut needed = vec![false; self.steps.len()];
        let mut tensors: Vec<_> = outputs.iter().map(|&output| self.outputs[output].tensor).collect();
        while let Some(tensor) = tensors.pop() {
            if let Some(step) = self.writers[tensor].filter(|&step| !needed[step]) {
                needed[step] = true;
                tensors.extend(self.steps[step].inputs.iter().map(|&(_, tensor)| tensor));
            }
        }
        needed
    }
}

/// Ranks the steps of an acyclic graph.
fn rank(steps: &mut [PlannedStep], writers: &[Option<usize>]) {
    // A rank is the length of the longest path to the step, so one round per step is enough.
    for _ in 0..steps.len() {
        let mut changed = false;
        for index in 0..steps.len() {
            let before = steps[index].inputs.iter().filter_map(|&(_, tensor)| writers[tensor]);
            let rank = before.map(|step| steps[step].rank + 1).max().unwrap_or(0);
            changed |= std::mem::replace(&mut steps[index].rank, rank) != rank;
        }
        if !changed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let step = |model: &str, inputs: &str, output: &str| {
            let inputs = inputs.split(' ').enumerate();
            let inputs =
                inputs.map(|(index, tensor)| format!("input_map {{ key: 'X{index}' value: '{tensor}' }}"));
            let inputs: String = inputs.collect();
            format!("step {{ model_name: '{model}' {inputs} output_map {{ key: 'Y' value: '{output}' }} }}")
        };
        // The steps are out of order on purpose.
        let text = format!(
            "name: 'e' max_batch_size: 4 input {{ name: 'A' }} output {{ name: 'D' dims: [ 3 ] }}
             output {{ name: 'C' dims: [ 6 ] reshape {{ shape: [ 2, 3 ] }} }} output {{ name: 'b' }}
             ensemble_scheduling {{ {} {} {} {} }}",
            step("join", "b c b", "D"),
            step("right", "A", "c"),
            step("left", "A", "b"),
            step("more", "c", "C"),
        );
        Plan::new(&nereid_model_config::parse_text(&text).unwrap())
    }

    #[test]
    fn steps_are_ranked_behind_those_they_wait_for() {
        let plan = plan();
        let ranks: Vec<_> = plan.steps.iter().map(|step| (step.model.name.as_str(), step.rank)).collect();
        assert_eq!(ranks, [("join", 1), ("right", 0), ("left", 0), ("more", 1)]);
        assert_eq!(plan.readers[plan.steps[2].outputs[0].1], [0, 0]);
        assert_eq!(plan.outputs[1].dims, [2, 3].into());
    }

    #[test]
    fn only_steps_that_lead_to_a_requested_output_are_needed() {
        let plan = plan();
        assert_eq!(plan.needed_for(&[0]), [true, true, true, false]);
        assert_eq!(plan.needed_for(&[1]), [false, true, false, true]);
        // Another step reads this output, too.
        assert_eq!(plan.needed_for(&[2]), [false, false, true, false]);
        assert_eq!(plan.needed_for(&[1, 2]), [false, true, true, true]);
    }
}
