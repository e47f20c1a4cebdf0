//! Conditions, maps, fallbacks and time limits in executable form: tensors and steps are numbers, as in the [`Plan`].

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nereid_backend_api::{Buffer, DataType, ModelConfig, Shape};
use nereid_model_config::{Constant, EnsembleConstants, EnsembleRules, Filler as Declared};

use crate::plan::Plan;
use crate::steps_of;

/// The compiled rules of an ensemble.
pub(crate) struct Flow {
    /// One for each step.
    pub steps: Vec<FlowStep>,
    /// One for each tensor.
    pub tensors: Vec<FlowTensor>,
    /// Maximum number of elements that a step is mapped over.
    pub max_elements: usize,
    /// Maximum number of elements of a step in progress.
    pub max_in_flight: usize,
}

pub(crate) struct FlowStep {
    /// Tensors, and what they have to be.
    pub conditions: Vec<(usize, bool)>,
    /// Whether the step runs once for each element, by input.
    pub each: Vec<bool>,
    /// The tensors that the step waits for, without duplicates.
    pub waits_for: Vec<usize>,
    /// The step that it replaces if that fails.
    pub replaces: Option<usize>,
    /// The steps that replace it if it fails, in order.
    pub fallbacks: Vec<usize>,
    /// Whether its outputs have values if it fails, and all of its fallbacks.
    pub has_values: bool,
    /// How long it may take.
    pub time_limit: Option<Duration>,
    /// Number of failures that were replaced; for the log.
    pub failures: AtomicU64,
}

#[derive(Default)]
pub(crate) struct FlowTensor {
    pub name: String,
    /// The steps that write it, without fallbacks.
    pub writers: Vec<usize>,
    /// The steps that wait for it.
    pub readers: Vec<usize>,
    /// The value in rows that no step wrote.
    pub if_skipped: Option<Filler>,
    /// The value in rows whose step failed.
    pub on_error: Option<Filler>,
}

/// The value of a tensor that no step wrote.
#[derive(Clone, Debug)]
pub(crate) enum Filler {
    /// Another tensor.
    Tensor(usize),
    /// A constant, in each row.
    Constant { data_type: DataType, shape: Shape, contents: Buffer },
}

impl Flow {
    /// Compiles a validated configuration; `None` for a plain ensemble.
    pub(crate) fn new(config: &ModelConfig, constants: &EnsembleConstants, plan: &Plan) -> Option<Self> {
        let rules = EnsembleRules::of(config).ok()??;
        let steps = &steps_of(config)?.step;
        let number = |name: &str| plan.tensors.get(name).copied();
        let mut tensors: Vec<_> = plan.tensors.iter().map(|(name, &number)| (number, name)).collect();
        tensors.sort_unstable();
        let mut tensors: Vec<_> = tensors
            .into_iter()
            .map(|(_, name)| FlowTensor { name: name.clone(), ..FlowTensor::default() })
            .collect();
        let writers = rules.writers(steps);
        for (tensor, writers) in &writers {
            tensors[number(tensor)?].writers.clone_from(writers);
        }
        let of_constant = |(data_type, Constant { shape, contents }): &(DataType, Constant)| {
            let contents = Buffer::own(contents.clone());
            Filler::Constant { data_type: *data_type, shape: Shape::from(&shape[..]), contents }
        };
        let of_tensor = |filler: &Declared<'_>| filler.tensor().and_then(number).map(Filler::Tensor);
        for (tensor, constant) in &constants.if_skipped {
            tensors[number(tensor)?].if_skipped = Some(of_constant(constant));
        }
        for (tensor, constant) in &constants.on_error {
            tensors[number(tensor)?].on_error = Some(of_constant(constant));
        }
        for (tensor, filler) in rules.if_skipped.iter().filter(|(_, filler)| filler.tensor().is_some()) {
            tensors[number(tensor)?].if_skipped = of_tensor(filler);
        }
        for (tensor, filler) in rules.on_error.iter().filter(|(_, filler)| filler.tensor().is_some()) {
            tensors[number(tensor)?].on_error = of_tensor(filler);
        }
        let replaced: Vec<_> = (0..steps.len()).map(|step| rules.replaced_by(&writers, step)).collect();
        let mut fallbacks = vec![Vec::new(); steps.len()];
        for (fallback, replaced) in replaced.iter().enumerate() {
            if let Some(replaced) = *replaced {
                fallbacks[replaced].push(fallback);
            }
        }
        let mut flow_steps = Vec::new();
        for (index, of_step) in rules.steps.iter().enumerate() {
            let conditions: Option<Vec<_>> =
                of_step.conditions().map(|(tensor, is)| Some((number(tensor)?, is))).collect();
            let conditions = conditions?;
            let inputs = plan.steps[index].inputs.iter().map(|&(_, tensor)| tensor);
            let mut waits_for: Vec<_> = inputs.chain(conditions.iter().map(|&(tensor, _)| tensor)).collect();
            waits_for.sort_unstable();
            waits_for.dedup();
            waits_for.iter().for_each(|&tensor| tensors[tensor].readers.push(index));
            let outputs = &plan.steps[index].outputs;
            flow_steps.push(FlowStep {
                conditions,
                each: of_step.inputs.iter().map(|input| input.each).collect(),
                waits_for,
                replaces: replaced[index],
                fallbacks: std::mem::take(&mut fallbacks[index]),
                time_limit: of_step.time_limit(),
                failures: AtomicU64::new(0),
                has_values: outputs.iter().any(|&(_, tensor)| tensors[tensor].on_error.is_some()),
            });
        }
        let (max_elements, max_in_flight) = (rules.max_elements, rules.max_in_flight);
        Some(Self { steps: flow_steps, tensors, max_elements, max_in_flight })
    }

    /// The steps that these tensors may need.
    pub(crate) fn needed_for(&self, mut tensors: Vec<usize>) -> Vec<bool> {
        let mut needed = vec![false; self.steps.len()];
        let mut seen = vec![false; self.tensors.len()];
        while let Some(tensor) = tensors.pop() {
            if std::mem::replace(&mut seen[tensor], true) {
                continue;
            }
            let FlowTensor { writers, if_skipped, on_error, .. } = &self.tensors[tensor];
            for filler in [if_skipped, on_error].into_iter().flatten() {
                if let Filler::Tensor(filler) = filler {
                    tensors.push(*filler);
                }
            }
            for &writer in writers {
                for step in std::iter::once(writer).chain(self.steps[writer].fallbacks.iter().copied()) {
                    if !std::mem::replace(&mut needed[step], true) {
                        tensors.extend(&self.steps[step].waits_for);
                    }
                }
            }
        }
        needed
    }
}
