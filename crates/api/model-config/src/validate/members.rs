//! How an ensemble fits its models.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::ensemble::step_path;
use super::forms::Tensors;
use super::report::Report;
use super::{ValidationErrors, ensemble};
use crate::ensemble_rules::{EACH, EnsembleRules, IF, ON_ERROR, StepRules, UNLESS};
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_ensembling::Step;

/// Checks an ensemble that [`validate`](crate::validate) accepted against the completed configurations of its models,
/// by name. Returns whether the ensemble is decoupled, which it is if one of its models is; the reference puts that
/// into its configuration's `model_transaction_policy`.
///
/// Configurations that are not ensembles pass.
///
/// # Errors
/// Every broken rule, as an error of the ensemble.
pub fn validate_ensemble(
    config: &ModelConfig,
    models: &BTreeMap<&str, &ModelConfig>,
) -> Result<bool, ValidationErrors> {
    let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else {
        return Ok(config.model_transaction_policy.is_some_and(|policy| policy.decoupled));
    };
    let mut report = Report::default();
    let mut tensors = Tensors::of(config);
    // `validate` has reported invalid parameters.
    let rules = EnsembleRules::of(config).unwrap_or(None);
    for (index, step) in ensemble.step.iter().enumerate() {
        let path = step_path(index);
        if step.model_name == config.name {
            report.add(format!("{path}.model_name"), "an ensemble cannot be a step of itself");
            continue;
        }
        let Some(member) = models.get(step.model_name.as_str()) else {
            let reason = format!("model '{}' does not exist", step.model_name);
            let names = models.keys().copied().filter(|&name| name != config.name);
            report.add_unknown(format!("{path}.model_name"), reason, &step.model_name, names);
            continue;
        };
        if let Some(between) = leads_to(member, &config.name, models) {
            let reason = format!("ensemble '{between}' has '{}' as a step in turn", config.name);
            report.add(format!("{path}.model_name"), reason);
        }
        if member.max_batch_size > 0 && member.max_batch_size < config.max_batch_size {
            let (name, most) = (&member.name, member.max_batch_size);
            let reason = format!("is {}, but model '{name}' accepts at most {most}", config.max_batch_size);
            report.add("max_batch_size", reason);
        }
        let of_step = StepRules::of(step);
        check_names(&path, step, &of_step, member, &mut report);
        tensors.check_step(&path, step, &of_step, member, &mut report);
        if rules.is_some() {
            check_member(&path, &of_step, member, &mut report);
        }
    }
    let streams = match &rules {
        Some(rules) => {
            tensors.check_rules(rules, &mut report);
            false
        }
        None => streams(config, &ensemble.step, models, &mut report),
    };
    report.finish(&config.name)?;
    Ok(streams)
}

/// The name of an ensemble reachable from `from` that has `target` as a step, if any.
fn leads_to<'a>(
    from: &'a ModelConfig,
    target: &str,
    models: &BTreeMap<&str, &'a ModelConfig>,
) -> Option<&'a str> {
    let mut seen = HashSet::new();
    let mut waiting = vec![from];
    while let Some(model) = waiting.pop() {
        let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &model.scheduling_choice else { continue };
        if ensemble.step.iter().any(|step| step.model_name == target) {
            return Some(&model.name);
        }
        let below = ensemble.step.iter().filter_map(|step| models.get(step.model_name.as_str()));
        waiting.extend(below.filter(|model| seen.insert(model.name.as_str())));
    }
    None
}

/// Checks that the maps name the model's tensors, and all required inputs.
fn check_names(path: &str, step: &Step, rules: &StepRules<'_>, member: &ModelConfig, report: &mut Report) {
    let inputs = || member.input.iter().map(|input| input.name.as_str());
    let outputs = || member.output.iter().map(|output| output.name.as_str());
    let (known_inputs, known_outputs): (HashSet<_>, HashSet<_>) = (inputs().collect(), outputs().collect());
    for input in rules.inputs.iter().filter(|input| !known_inputs.contains(input.name)) {
        let reason = format!("model '{}' has no input '{}'", member.name, input.name);
        let directives = [IF, UNLESS, ON_ERROR, EACH].into_iter().filter(|_| input.key.starts_with('$'));
        report.add_unknown(
            format!("{path}.input_map[{:?}]", input.key),
            reason,
            input.name,
            inputs().chain(directives),
        );
    }
    for key in step.output_map.keys().filter(|key| !known_outputs.contains(key.as_str())) {
        let reason = format!("model '{}' has no output '{key}'", member.name);
        report.add_unknown(format!("{path}.output_map[{key:?}]"), reason, key, outputs());
    }
    for input in member.input.iter().filter(|input| !input.optional) {
        if !rules.inputs.iter().any(|given| given.name == input.name) {
            let given = rules.inputs.iter().map(|given| given.name);
            let reason = format!("missing input '{}' of model '{}'", input.name, member.name);
            report.add_missing(format!("{path}.input_map"), reason, &input.name, given);
        }
    }
}

/// Checks that a model can be a member of an ensemble with conditions, maps or fallbacks.
fn check_member(path: &str, rules: &StepRules<'_>, member: &ModelConfig, report: &mut Report) {
    let name = &member.name;
    for (index, input) in rules.inputs.iter().enumerate() {
        if rules.inputs[..index].iter().any(|other| other.name == input.name) {
            let reason = format!("input '{}' of model '{name}' is mapped twice", input.name);
            report.add(format!("{path}.input_map[{:?}]", input.key), reason);
        }
    }
    if member.model_transaction_policy.is_some_and(|policy| policy.decoupled) {
        let reason =
            format!("model '{name}' is decoupled, which conditions, maps and fallbacks do not support");
        report.add(format!("{path}.model_name"), reason);
    }
    if rules.is_mapped() && matches!(member.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))) {
        let reason = format!("model '{name}' has sequence_batching, so the step cannot be mapped ('{EACH}')");
        report.add(format!("{path}.model_name"), reason);
    }
}

/// Whether the ensemble contains a decoupled model. Answers of such a model cannot be joined with other tensors,
/// because nothing shows which ones belong together.
fn streams(
    config: &ModelConfig,
    steps: &[Step],
    models: &BTreeMap<&str, &ModelConfig>,
    report: &mut Report,
) -> bool {
    // Zero stands for the request itself, every other number for one stream of answers.
    let mut source: HashMap<&str, usize> =
        config.input.iter().map(|input| (input.name.as_str(), 0)).collect();
    let mut last = 0;
    for index in ensemble::order(config, steps) {
        let step = &steps[index];
        let sources: BTreeSet<usize> =
            step.input_map.values().filter_map(|tensor| source.get(tensor.as_str()).copied()).collect();
        if sources.len() > 1 {
            let reason =
                "joins the answers of a decoupled model with other tensors, which cannot be matched up";
            report.add(format!("{}.input_map", step_path(index)), reason);
        }
        let decouples = models
            .get(step.model_name.as_str())
            .and_then(|member| member.model_transaction_policy)
            .is_some_and(|policy| policy.decoupled);
        let stream = if decouples {
            last += 1;
            last
        } else {
            sources.first().copied().unwrap_or(0)
        };
        for tensor in step.output_map.values() {
            source.entry(tensor).or_insert(stream);
        }
    }
    let ends: BTreeSet<_> =
        config.output.iter().filter_map(|output| source.get(output.name.as_str())).collect();
    if ends.len() > 1 {
        report
            .add("output", "some outputs come from a decoupled model and others do not, or from another one");
    }
    last > 0
}
