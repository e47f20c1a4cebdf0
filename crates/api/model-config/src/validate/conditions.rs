//! The rules for conditions, maps and fallbacks of an ensemble: every tensor exists wherever it is read.
//!
//! A step runs under a conjunction of conditions: its own, and those under which their tensors exist. A tensor exists where
//! one of the steps that write it runs. These steps exclude each other in pairs, so the shares of all cases that they run in
//! add up to one if and only if the tensor always exists.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::ensemble::step_path;
use super::report::Report;
use crate::ensemble_rules::{EnsembleRules, Filler};
use crate::proto::ModelConfig;
use crate::proto::model_ensembling::Step;

/// Limit of the conditions of one step, inherited ones included.
const MAX_CONDITIONS: usize = 60;
/// Limit of the steps that write one tensor.
pub(super) const MAX_WRITERS: usize = 64;

/// The share of all cases. Each further condition halves it.
const WHOLE: u128 = 1 << MAX_CONDITIONS;

/// Condition tensors, and what they have to be: all of them.
type Guard<'a> = BTreeMap<&'a str, bool>;

/// Checks the rules of an ensemble whose graph is connected and without cycles; `order` is its topological order.
pub(super) fn check(
    config: &ModelConfig,
    steps: &[Step],
    rules: &EnsembleRules<'_>,
    order: &[usize],
    report: &mut Report,
) {
    let mut check = Check {
        inputs: config.input.iter().map(|input| (input.name.as_str(), input.optional)).collect(),
        steps,
        rules,
        writers: rules.writers(steps),
        fallbacks: HashMap::new(),
        guards: vec![Guard::new(); steps.len()],
        report,
    };
    check.check_steps();
    check.check_fallbacks();
    if check.report.is_empty() {
        order.iter().for_each(|&step| check.check_guard(step));
        check.check_exclusion();
    }
    if check.report.is_empty() {
        check.check_outputs(config);
        check.check_fillers();
        check.check_tolerance(config);
    }
}

struct Check<'a, 'r> {
    /// The inputs of the ensemble, and whether they are optional.
    inputs: HashMap<&'a str, bool>,
    steps: &'a [Step],
    rules: &'a EnsembleRules<'a>,
    writers: BTreeMap<&'a str, Vec<usize>>,
    /// The fallbacks of steps.
    fallbacks: HashMap<usize, Vec<usize>>,
    /// The conditions of each step.
    guards: Vec<Guard<'a>>,
    report: &'r mut Report,
}

impl<'a> Check<'a, '_> {
    fn check_steps(&mut self) {
        for (index, (step, rules)) in self.steps.iter().zip(&self.rules.steps).enumerate() {
            let path = step_path(index);
            if rules.inputs.is_empty() {
                self.report
                    .add(format!("{path}.input_map"), "has directives only; map an input of the model");
            }
            if let Some(timeout) = rules.timeout
                && rules.time_limit().is_none()
            {
                let reason =
                    format!("is '{timeout}', must be a duration up to a day, such as 250ms, 1.5s or 2m");
                self.report.add(format!("{path}.input_map[\"$timeout\"]"), reason);
            }
            for (key, tensor) in &step.output_map {
                if self.inputs.contains_key(tensor.as_str()) {
                    let reason = format!(
                        "writes the ensemble's input '{tensor}', which is not possible together with conditions, maps or \
                         fallbacks; write another tensor"
                    );
                    self.report.add(format!("{path}.output_map[{key:?}]"), reason);
                }
            }
            let conditions =
                rules.conditions().map(|(tensor, is)| (if is { "$if" } else { "$unless" }, tensor));
            let mapped =
                rules.inputs.iter().filter(|input| input.each).map(|input| (input.key, input.tensor));
            for (key, tensor) in conditions.chain(mapped) {
                if self.inputs.get(tensor) == Some(&true) {
                    let reason =
                        format!("input '{tensor}' of the ensemble is optional, so it may be missing");
                    self.report.add(format!("{path}.input_map[{key:?}]"), reason);
                }
            }
        }
        for (tensor, writers) in &self.writers {
            if writers.len() > MAX_WRITERS {
                let reason = format!(
                    "tensor '{tensor}' is written by {} steps, but at most {MAX_WRITERS} may write one tensor",
                    writers.len()
                );
                self.report.add(format!("{}.output_map", step_path(writers[0])), reason);
            }
        }
    }

    /// Checks that each fallback replaces a step, and writes nothing else.
    fn check_fallbacks(&mut self) {
        for (index, rules) in self.rules.steps.iter().enumerate() {
            let Some(tensor) = rules.on_error else { continue };
            let path = step_path(index);
            let Some(replaced) = self.rules.replaced_by(&self.writers, index) else {
                let field = format!("{path}.input_map[\"$on_error\"]");
                match self.writers.get(tensor) {
                    Some(writers) => {
                        let reason = format!(
                            "the steps {writers:?} write tensor '{tensor}' under other conditions; repeat the conditions \
                             of the step that may fail"
                        );
                        self.report.add(field, reason);
                    }
                    None => {
                        let reason = format!("no step without '$on_error' writes tensor '{tensor}'");
                        self.report.add_unknown(field, reason, tensor, self.writers.keys().copied());
                    }
                }
                continue;
            };
            self.fallbacks.entry(replaced).or_default().push(index);
            for (key, tensor) in &self.steps[index].output_map {
                if !self.steps[replaced].output_map.values().any(|it| it == tensor) {
                    let reason = format!(
                        "step {replaced}, which this step replaces if it fails, does not write tensor '{tensor}'"
                    );
                    self.report.add(format!("{path}.output_map[{key:?}]"), reason);
                }
            }
        }
    }

    /// Derives the conditions of a step, and checks that all its tensors exist under them. All steps before it in the
    /// graph have been checked.
    fn check_guard(&mut self, index: usize) {
        let rules = &self.rules.steps[index];
        let path = step_path(index);
        let mut guard = Guard::new();
        for (tensor, is) in rules.conditions() {
            let mut added = vec![(tensor, is)];
            match self.existence(tensor) {
                Ok(inherited) => added.extend(inherited),
                Err(()) => {
                    let key = if is { "$if" } else { "$unless" };
                    let reason = format!(
                        "tensor '{tensor}' exists only {}, which this step cannot inherit; give it a value elsewhere: \
                         parameter '$if_skipped:{tensor}'",
                        self.cases(tensor)
                    );
                    self.report.add(format!("{path}.input_map[{key:?}]"), reason);
                }
            }
            for (tensor, is) in added {
                if guard.insert(tensor, is).is_some_and(|other| other != is) {
                    let reason = format!("can never run: '{tensor}' would have to be true and false");
                    self.report.add(path.clone(), reason);
                }
            }
        }
        if guard.len() > MAX_CONDITIONS {
            let reason = format!("depends on {} conditions, but {MAX_CONDITIONS} are supported", guard.len());
            self.report.add(path.clone(), reason);
            return;
        }
        for input in &rules.inputs {
            if !self.exists(input.tensor, &guard) {
                let reason = format!(
                    "tensor '{0}' exists only {1}; give this step the same conditions, or the tensor a value elsewhere: \
                     parameter '$if_skipped:{0}'",
                    input.tensor,
                    self.cases(input.tensor)
                );
                self.report.add(format!("{path}.input_map[{:?}]", input.key), reason);
            }
        }
        self.guards[index] = guard;
    }

    /// Checks that the steps that write a tensor never run in the same case.
    fn check_exclusion(&mut self) {
        for (tensor, writers) in &self.writers {
            for (place, &index) in writers.iter().enumerate() {
                let excludes = |other: &usize| {
                    let (one, other) = (&self.guards[index], &self.guards[*other]);
                    one.iter().any(|(it, is)| other.get(it) == Some(&!is))
                };
                let Some(other) = writers[..place].iter().find(|other| !excludes(other)) else { continue };
                let reason = format!(
                    "tensor '{tensor}' is written by step {other} too; give both opposite conditions ('$if' and '$unless' \
                     of one tensor), or make one of them the fallback of the other ('$on_error')"
                );
                self.report.add(format!("{}.output_map", step_path(index)), reason);
            }
        }
    }

    /// The conditions under which a tensor exists; none if it always does.
    ///
    /// # Errors
    /// They are not a conjunction.
    fn existence(&self, tensor: &str) -> Result<Guard<'a>, ()> {
        if self.inputs.contains_key(tensor) || self.rules.if_skipped.contains_key(tensor) {
            return Ok(Guard::new());
        }
        let guards: Vec<_> = self.guards_of(tensor).collect();
        let [first, rest @ ..] = &guards[..] else { return Ok(Guard::new()) };
        let mut common = Guard::clone(first);
        common.retain(|tensor, is| rest.iter().all(|guard| guard.get(tensor) == Some(is)));
        if self.exists(tensor, &common) { Ok(common) } else { Err(()) }
    }

    /// Whether a tensor exists in all cases of a guard.
    fn exists(&self, tensor: &str, guard: &Guard<'_>) -> bool {
        if self.inputs.contains_key(tensor) || self.rules.if_skipped.contains_key(tensor) {
            return true;
        }
        let mut share = 0_u128;
        for of_writer in self.guards_of(tensor) {
            if of_writer.iter().any(|(it, is)| guard.get(it) == Some(&!is)) {
                continue;
            }
            let others = of_writer.keys().filter(|it| !guard.contains_key(*it)).count();
            share += WHOLE >> others;
        }
        share >= WHOLE
    }

    fn guards_of(&self, tensor: &str) -> impl Iterator<Item = &Guard<'a>> {
        self.writers.get(tensor).into_iter().flatten().map(|&step| &self.guards[step])
    }

    /// The cases in which a tensor exists, as text.
    fn cases(&self, tensor: &str) -> String {
        let case = |guard: &Guard<'_>| {
            let conditions: Vec<_> = guard.iter().map(|(tensor, is)| format!("'{tensor}' is {is}")).collect();
            conditions.join(" and ")
        };
        let cases: Vec<_> = self.guards_of(tensor).map(case).collect();
        format!("where {}", cases.join(", or "))
    }

    fn check_outputs(&mut self, config: &ModelConfig) {
        for (index, output) in config.output.iter().enumerate() {
            if !self.exists(&output.name, &Guard::new()) {
                let reason = format!(
                    "output '{0}' exists only {1}; let a step with the opposite condition write it, too, or give it a \
                     value elsewhere: parameter '$if_skipped:{0}'",
                    output.name,
                    self.cases(&output.name)
                );
                self.report.add(format!("output[{index}].name"), reason);
            }
        }
    }

    /// Checks the parameters `$if_skipped:` and `$on_error:`.
    fn check_fillers(&mut self) {
        let rules = self.rules;
        let skipped = rules.if_skipped.iter().map(|(tensor, filler)| ("$if_skipped", tensor, filler));
        let failed = rules.on_error.iter().map(|(tensor, filler)| ("$on_error", tensor, filler));
        for (kind, tensor, filler) in skipped.chain(failed) {
            let key = format!("{kind}:{tensor}");
            let field = format!("parameters[{key:?}]");
            if !self.writers.contains_key(tensor) {
                let names = self.writers.keys().copied();
                self.report.add_unknown(field, format!("no step writes tensor '{tensor}'"), tensor, names);
                continue;
            }
            if kind == "$if_skipped" && self.guards_of(tensor).all(Guard::is_empty) {
                let reason = format!(
                    "the step that writes tensor '{tensor}' has no condition, so it is never skipped"
                );
                self.report.add(field.clone(), reason);
            }
            let Filler::Tensor(value) = filler else { continue };
            let fills =
                |all: &BTreeMap<&str, Filler<'_>>| all.get(value).is_some_and(|it| it.tensor().is_some());
            if !self.inputs.contains_key(value) && !self.writers.contains_key(value) {
                let known = self.inputs.keys().chain(self.writers.keys()).copied();
                let reason = format!(
                    "there is no tensor '{value}' (a constant string is written as \"\\\"{value}\\\"\")"
                );
                self.report.add_unknown(field, reason, value, known);
            } else if self.inputs.get(value) == Some(&true) || !self.exists(value, &Guard::new()) {
                self.report.add(field, format!("tensor '{value}' may be missing itself"));
            } else if value == tensor || fills(&rules.if_skipped) || fills(&rules.on_error) {
                let reason =
                    format!("the value of tensor '{value}' may be another tensor in turn; name that one");
                self.report.add(field, reason);
            }
        }
    }

    /// Checks that all outputs of a step that may fail have a value if it does.
    fn check_tolerance(&mut self, config: &ModelConfig) {
        let cached = config.response_cache.is_some_and(|cache| cache.enable);
        let mut read: BTreeSet<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
        for rules in &self.rules.steps {
            read.extend(rules.inputs.iter().map(|input| input.tensor));
            read.extend(rules.conditions().map(|(tensor, _)| tensor));
        }
        read.extend(self.rules.fillers().filter_map(Filler::tensor));
        for (index, step) in self.steps.iter().enumerate() {
            let fallbacks = self.fallbacks.get(&index).map_or(&[][..], Vec::as_slice);
            let has_value = |tensor: &String| self.rules.on_error.contains_key(tensor.as_str());
            let tolerates = !fallbacks.is_empty() || step.output_map.values().any(has_value);
            if self.rules.steps[index].on_error.is_some() || !tolerates {
                continue;
            }
            if cached {
                let reason = format!(
                    "would keep answers without step {index}, which may fail; remove 'response_cache'"
                );
                self.report.add("response_cache", reason);
            }
            for (key, tensor) in step.output_map.iter().filter(|(_, tensor)| read.contains(tensor.as_str())) {
                let writes =
                    |fallback: &usize| self.steps[*fallback].output_map.values().any(|it| it == tensor);
                let all_write = !fallbacks.is_empty() && fallbacks.iter().all(writes);
                if !all_write && !has_value(tensor) {
                    let reason = format!(
                        "tensor '{tensor}' has no value if the step fails, unlike other outputs of the step; let its \
                         fallback write it, or set the parameter '$on_error:{tensor}'"
                    );
                    self.report.add(format!("{}.output_map[{key:?}]", step_path(index)), reason);
                }
            }
        }
    }
}
