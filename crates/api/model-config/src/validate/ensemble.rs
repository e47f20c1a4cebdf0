//! The rules for an ensemble by itself: its steps, and the graph formed by their tensors.
//!
//! Each tensor of an ensemble is an input of the ensemble or written by one step; a step runs when all its tensors
//! are available. Conditions may let several steps write a tensor, see [`super::conditions`]. Knows nothing of the models
//! behind the steps: [`super::members`] does.

use std::collections::{BTreeMap, HashSet};

use super::conditions;
use super::report::Report;
use crate::ensemble_rules::{EnsembleRules, ON_ERROR, TIMEOUT};
use crate::proto::model_ensembling::Step;
use crate::proto::{ModelConfig, ModelEnsembling};

/// The version number that means the latest version.
const LATEST: i64 = -1;

pub(super) fn check(config: &ModelConfig, ensemble: &ModelEnsembling, report: &mut Report) {
    if config.optimization.is_some() {
        report.add("optimization", "does not apply to an ensemble; set it on its models");
    }
    if ensemble.step.is_empty() {
        report.add("ensemble_scheduling.step", "is required");
        return;
    }
    let mut whole = true;
    for (index, step) in ensemble.step.iter().enumerate() {
        let path = step_path(index);
        if step.model_name.is_empty() {
            report.add(format!("{path}.model_name"), "is required");
        }
        if step.model_version < LATEST {
            let reason = format!("is {}, must be a version number, or -1 for the latest", step.model_version);
            report.add(format!("{path}.model_version"), reason);
        }
        for (field, map) in [("input_map", &step.input_map), ("output_map", &step.output_map)] {
            if map.is_empty() {
                report.add(format!("{path}.{field}"), "is required");
                whole = false;
            }
        }
    }
    let rules = EnsembleRules::of(config).unwrap_or_else(|invalid| {
        whole = false;
        for parameter in invalid {
            report.add(format!("parameters[{:?}]", parameter.key), parameter.reason);
        }
        None
    });
    if whole {
        let graph = Graph::new(config, &ensemble.step, rules.as_ref());
        graph.check_writers(report);
        graph.check_ends(config, report);
        graph.check_cycles(report);
        if let Some(rules) = rules.as_ref().filter(|_| report.is_empty()) {
            let order = order_of(&graph.edges(), &(0..ensemble.step.len()).collect());
            conditions::check(config, &ensemble.step, rules, &order, report);
        }
    }
}

pub(super) fn step_path(index: usize) -> String {
    format!("ensemble_scheduling.step[{index}]")
}

/// A tensor's use in a step: the step's index, and the key in its map.
type Place<'a> = (usize, &'a str);

/// A tensor between steps.
#[derive(Default)]
struct Tensor<'a> {
    is_input: bool,
    is_output: bool,
    /// Whether it fills rows of another tensor that no step wrote.
    fills: bool,
    readers: Vec<Place<'a>>,
    writers: Vec<Place<'a>>,
}

struct Graph<'a> {
    steps: &'a [Step],
    rules: Option<&'a EnsembleRules<'a>>,
    tensors: BTreeMap<&'a str, Tensor<'a>>,
}

impl<'a> Graph<'a> {
    fn new(config: &'a ModelConfig, steps: &'a [Step], rules: Option<&'a EnsembleRules<'a>>) -> Self {
        let mut tensors: BTreeMap<&str, Tensor<'_>> = BTreeMap::new();
        for (index, step) in steps.iter().enumerate() {
            for (key, tensor) in step.input_map.iter().filter(|(key, _)| *key != ON_ERROR && *key != TIMEOUT)
            {
                tensors.entry(tensor).or_default().readers.push((index, key));
            }
            for (key, tensor) in &step.output_map {
                tensors.entry(tensor).or_default().writers.push((index, key));
            }
        }
        for input in &config.input {
            if let Some(tensor) = tensors.get_mut(input.name.as_str()) {
                tensor.is_input = true;
            }
        }
        for output in &config.output {
            if let Some(tensor) = tensors.get_mut(output.name.as_str()) {
                tensor.is_output = true;
            }
        }
        for filler in rules.iter().flat_map(|rules| rules.fillers()) {
            if let Some(tensor) = filler.tensor().and_then(|tensor| tensors.get_mut(tensor)) {
                tensor.fills = true;
            }
        }
        Self { steps, rules, tensors }
    }

    /// Checks that each tensor has one writer, and that each tensor of a step is used or produced elsewhere. With
    /// conditions, several steps may write a tensor.
    fn check_writers(&self, report: &mut Report) {
        for (name, tensor) in &self.tensors {
            for (place, (index, key)) in tensor.writers.iter().enumerate().skip(1) {
                if self.rules.is_some() && tensor.writers[place - 1].0 != *index {
                    continue;
                }
                let field = format!("{}.output_map[{key:?}]", step_path(*index));
                let (first, _) = tensor.writers[0];
                report.add(field, format!("tensor '{name}' is written by step {first} too"));
            }
            if tensor.readers.is_empty() && !tensor.is_output && !tensor.fills {
                for (index, key) in tensor.writers.iter().take(1) {
                    let field = format!("{}.output_map[{key:?}]", step_path(*index));
                    let reason =
                        format!("no step reads tensor '{name}', and it is not an output of the ensemble");
                    let candidates = self.names(|tensor| tensor.writers.is_empty() && !tensor.is_input);
                    report.add_unknown(field, reason, name, candidates);
                }
            }
            if tensor.writers.is_empty() && !tensor.is_input {
                for (index, key) in &tensor.readers {
                    let field = format!("{}.input_map[{key:?}]", step_path(*index));
                    let reason =
                        format!("no step writes tensor '{name}', and it is not an input of the ensemble");
                    let written = self.names(|tensor| tensor.is_input || !tensor.writers.is_empty());
                    report.add_unknown(field, reason, name, written);
                }
            }
        }
    }

    /// Checks that the graph uses the ensemble's inputs and produces its outputs.
    fn check_ends(&self, config: &ModelConfig, report: &mut Report) {
        for (index, input) in config.input.iter().enumerate() {
            let fills =
                |rules: &EnsembleRules<'_>| rules.fillers().any(|it| it.tensor() == Some(&input.name));
            if !self.tensors.contains_key(input.name.as_str()) && !self.rules.is_some_and(fills) {
                let reason = format!("no step reads input '{}'", input.name);
                let candidates = self.names(|tensor| tensor.writers.is_empty() && !tensor.is_input);
                report.add_unknown(format!("input[{index}].name"), reason, &input.name, candidates);
            }
        }
        for (index, output) in config.output.iter().enumerate() {
            let written = |tensor: &Tensor<'_>| tensor.is_input || !tensor.writers.is_empty();
            if !self.tensors.get(output.name.as_str()).is_some_and(written) {
                let reason = format!("no step writes output '{}'", output.name);
                report.add_unknown(
                    format!("output[{index}].name"),
                    reason,
                    &output.name,
                    self.names(written),
                );
            }
        }
    }

    fn names(&self, accept: impl Fn(&Tensor<'_>) -> bool) -> impl Iterator<Item = &'a str> {
        self.tensors.iter().filter(move |(_, tensor)| accept(tensor)).map(|(name, _)| *name)
    }

    /// Edges from each step to the readers of its outputs. Only tensors written by a step create dependencies; all
    /// others are available from the start, or reported already. With rules, also from tensors to the readers of those
    /// that they are the value of, and from a step to its fallbacks.
    fn edges(&self) -> Vec<(usize, usize)> {
        // Further writers are errors of their own.
        let writers = if self.rules.is_some() { conditions::MAX_WRITERS } else { 1 };
        let mut edges = Vec::new();
        let mut connect = |written: &Tensor<'_>, read: &Tensor<'_>| {
            for (writer, _) in written.writers.iter().take(writers).filter(|_| !written.is_input) {
                edges.extend(read.readers.iter().map(|(reader, _)| (*writer, *reader)));
            }
        };
        self.tensors.values().for_each(|tensor| connect(tensor, tensor));
        let Some(rules) = self.rules else { return edges };
        for (tensor, filler) in rules.if_skipped.iter().chain(&rules.on_error) {
            let filler = filler.tensor().and_then(|filler| self.tensors.get(filler));
            if let (Some(filler), Some(filled)) = (filler, self.tensors.get(tensor)) {
                connect(filler, filled);
            }
        }
        let writers = rules.writers(self.steps);
        let replaced = |fallback| Some((rules.replaced_by(&writers, fallback)?, fallback));
        edges.extend((0..self.steps.len()).filter_map(replaced));
        edges
    }

    /// Reports steps that wait for each other, which never run.
    fn check_cycles(&self, report: &mut Report) {
        let edges = self.edges();
        let backwards: Vec<(usize, usize)> = edges.iter().map(|&(from, to)| (to, from)).collect();
        let mut left: HashSet<usize> = (0..self.steps.len()).collect();
        // Remove the steps that can run, then the steps that no cycle waits for.
        for edges in [edges, backwards] {
            for step in order_of(&edges, &left) {
                left.remove(&step);
            }
        }
        if left.is_empty() {
            return;
        }
        let mut steps: Vec<usize> = left.into_iter().collect();
        steps.sort_unstable();
        let reason = match steps[..] {
            [_] => "reads its own output, so it can never run".to_owned(),
            _ => format!("steps {steps:?} wait for each other's tensors, so they can never run"),
        };
        report.add(step_path(steps[0]), reason);
    }
}

/// The steps in execution order, without steps that wait for each other.
pub(super) fn order(config: &ModelConfig, steps: &[Step]) -> Vec<usize> {
    order_of(&Graph::new(config, steps, None).edges(), &(0..steps.len()).collect())
}

/// The nodes of `among` that are not reachable from a cycle, in topological order.
fn order_of(edges: &[(usize, usize)], among: &HashSet<usize>) -> Vec<usize> {
    let mut waiting: BTreeMap<usize, usize> = among.iter().map(|&step| (step, 0)).collect();
    let mut followers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(from, to) in edges.iter().filter(|(from, to)| among.contains(from) && among.contains(to)) {
        followers.entry(from).or_default().push(to);
        *waiting.entry(to).or_default() += 1;
    }
    let free = waiting.iter().filter(|&(_, &count)| count == 0).map(|(&step, _)| step);
    let mut order: Vec<usize> = free.collect();
    let mut done = 0;
    while let Some(step) = order.get(done).copied() {
        done += 1;
        for follower in followers.get(&step).into_iter().flatten() {
            if let Some(count) = waiting.get_mut(follower) {
                *count -= 1;
                if *count == 0 {
                    order.push(*follower);
                }
            }
        }
    }
    order
}
