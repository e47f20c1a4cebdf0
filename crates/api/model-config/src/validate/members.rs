//! How an ensemble fits its models.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::ensemble::step_path;
use super::report::Report;
use super::tensor::ANY_SIZE;
use super::{ValidationErrors, ensemble};
use crate::ensemble_rules::{Constant, EACH, EnsembleRules, Filler, IF, ON_ERROR, StepRules, UNLESS};
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_ensembling::Step;
use crate::proto::{DataType, ModelConfig};

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

/// The constants of an ensemble, by tensor.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct EnsembleConstants {
    /// Values of tensors where the step that writes them did not run.
    pub if_skipped: BTreeMap<String, (tensor_types::DataType, Constant)>,
    /// Values of tensors whose step failed.
    pub on_error: BTreeMap<String, (tensor_types::DataType, Constant)>,
}

/// The constants of an ensemble that [`validate_ensemble`] accepted, with the same configurations.
pub fn ensemble_constants(config: &ModelConfig, models: &BTreeMap<&str, &ModelConfig>) -> EnsembleConstants {
    let mut constants = EnsembleConstants::default();
    let Ok(Some(rules)) = EnsembleRules::of(config) else { return constants };
    let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else {
        return constants;
    };
    let (mut tensors, mut report) = (Tensors::of(config), Report::default());
    for (index, (step, of_step)) in ensemble.step.iter().zip(&rules.steps).enumerate() {
        if let Some(member) = models.get(step.model_name.as_str()) {
            tensors.check_step(&step_path(index), step, of_step, member, &mut report);
        }
    }
    let read = |tensor: &str, filler: &Filler<'_>| {
        let (form, Filler::Json(json)) = (tensors.forms.get(tensor)?, filler) else { return None };
        let data_type = form.element_type()?;
        Some((tensor.to_owned(), (data_type, Constant::new(json, data_type, &form.dims).ok()?)))
    };
    constants.if_skipped = rules.if_skipped.iter().filter_map(|(tensor, filler)| read(tensor, filler)).collect();
    constants.on_error = rules.on_error.iter().filter_map(|(tensor, filler)| read(tensor, filler)).collect();
    constants
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

/// Type and shape of a tensor, as declared by its first user.
struct Form<'a> {
    /// The model that declares them.
    model: &'a str,
    data_type: i32,
    dims: Cow<'a, [i64]>,
    batches: bool,
    /// Whether these are the elements of a mapped step, of which scalars are passed with one dimension.
    is_mapped: bool,
}

impl Form<'_> {
    fn full_dims(&self) -> Vec<i64> {
        let batch = self.batches.then_some(ANY_SIZE);
        batch.into_iter().chain(self.dims.iter().copied()).collect()
    }

    fn element_type(&self) -> Option<tensor_types::DataType> {
        DataType::try_from(self.data_type).ok()?.element_type()
    }

    /// A model without batching matches one with batching if its first dimension is the batch.
    fn fits(&self, other: &Form<'_>) -> bool {
        let takes_scalars = |form: &Form<'_>| form.is_mapped && matches!(form.dims[..], [_, 1]);
        (takes_scalars(self) && other.dims.len() == 1)
            || (takes_scalars(other) && self.dims.len() == 1)
            || same_shape(&self.dims, &other.dims) || same_shape(&self.full_dims(), &other.full_dims())
    }
}

fn type_name(number: i32) -> &'static str {
    DataType::try_from(number).unwrap_or_default().as_str_name()
}

/// Variable dimensions match any size.
fn same_shape(left: &[i64], right: &[i64]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(&left, &right)| left == ANY_SIZE || right == ANY_SIZE || left == right)
}

/// The tensors of an ensemble.
struct Tensors<'a> {
    /// By name.
    forms: HashMap<&'a str, Form<'a>>,
    /// Whether the ensemble has a batch dimension.
    batches: bool,
}

impl<'a> Tensors<'a> {
    fn of(config: &'a ModelConfig) -> Self {
        let batches = config.max_batch_size > 0;
        let model = config.name.as_str();
        let mut tensors = HashMap::new();
        for input in &config.input {
            let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
            let form = Form { model, data_type: input.data_type, dims: dims.into(), batches, is_mapped: false };
            tensors.entry(input.name.as_str()).or_insert(form);
        }
        for output in &config.output {
            let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
            let form = Form { model, data_type: output.data_type, dims: dims.into(), batches, is_mapped: false };
            tensors.entry(output.name.as_str()).or_insert(form);
        }
        Self { forms: tensors, batches }
    }

    fn check_step(
        &mut self,
        path: &str,
        step: &'a Step,
        rules: &StepRules<'a>,
        member: &'a ModelConfig,
        report: &mut Report,
    ) {
        let batches = member.max_batch_size > 0;
        let model = member.name.as_str();
        let whole = |data_type, dims: &'a [i64]| Form {
            model,
            data_type,
            dims: dims.into(),
            batches,
            is_mapped: false,
        };
        // A mapped step has one element of the tensor's first dimension, behind the ensemble's batch dimension.
        let ensemble_batches = self.batches;
        let element = |data_type, dims: &'a [i64]| Form {
            dims: std::iter::once(ANY_SIZE).chain(dims.iter().copied()).collect(),
            batches: ensemble_batches,
            is_mapped: true,
            ..whole(data_type, dims)
        };
        for input in &member.input {
            for given in rules.inputs.iter().filter(|given| given.name == input.name) {
                let form = match given.each {
                    true => element(input.data_type, &input.dims),
                    false => whole(input.data_type, &input.dims),
                };
                self.check(&format!("{path}.input_map[{:?}]", given.key), given.tensor, form, report);
            }
        }
        for output in &member.output {
            if let Some((key, tensor)) = step.output_map.get_key_value(&output.name) {
                let form = match rules.is_mapped() {
                    true => Form { is_mapped: false, ..element(output.data_type, &output.dims) },
                    false => whole(output.data_type, &output.dims),
                };
                self.check(&format!("{path}.output_map[{key:?}]"), tensor, form, report);
            }
        }
    }

    /// Checks types and shapes of conditions, and of the values of tensors that no step wrote.
    fn check_rules(&self, rules: &EnsembleRules<'_>, report: &mut Report) {
        for (index, step) in rules.steps.iter().enumerate() {
            for (tensor, is) in step.conditions() {
                let field = format!("{}.input_map[{:?}]", step_path(index), if is { IF } else { UNLESS });
                let Some(form) = self.forms.get(tensor) else { continue };
                if form.data_type != DataType::TypeBool as i32 {
                    let reason = format!(
                        "tensor '{tensor}' is {} in '{}', but a condition is TYPE_BOOL",
                        type_name(form.data_type),
                        form.model
                    );
                    report.add(field, reason);
                } else if form.dims.iter().any(|&dim| dim != 1 && dim != ANY_SIZE) {
                    let reason = format!(
                        "tensor '{tensor}' has the shape {:?} in '{}', but a condition is one value for each request, or \
                         for each row of a batch",
                        form.full_dims(),
                        form.model
                    );
                    report.add(field, reason);
                }
            }
        }
        let skipped = rules.if_skipped.iter().map(|(tensor, filler)| ("$if_skipped", tensor, filler));
        let failed = rules.on_error.iter().map(|(tensor, filler)| ("$on_error", tensor, filler));
        for (kind, tensor, filler) in skipped.chain(failed) {
            let Some(form) = self.forms.get(tensor) else { continue };
            if let Err(reason) = self.check_filler(tensor, form, filler) {
                report.add(format!("parameters[{:?}]", format!("{kind}:{tensor}")), reason);
            }
        }
    }

    fn check_filler(&self, tensor: &str, form: &Form<'a>, filler: &Filler<'_>) -> Result<(), String> {
        match filler {
            Filler::Tensor(value) => {
                let Some(other) = self.forms.get(value) else { return Ok(()) };
                if other.data_type == form.data_type && other.fits(form) {
                    return Ok(());
                }
                Err(format!(
                    "tensor '{tensor}' is {} with the shape {:?} in '{}', but '{value}' is {} with the shape {:?} in '{}'",
                    type_name(form.data_type),
                    form.full_dims(),
                    form.model,
                    type_name(other.data_type),
                    other.full_dims(),
                    other.model
                ))
            }
            Filler::Json(json) => {
                if self.batches && !form.batches {
                    return Err(format!(
                        "tensor '{tensor}' has no batch dimension in '{}', unlike the ensemble, so it cannot be a constant",
                        form.model
                    ));
                }
                let data_type =
                    form.element_type().ok_or_else(|| format!("tensor '{tensor}' has no type"))?;
                Constant::new(json, data_type, &form.dims).map(drop)
            }
        }
    }

    fn check(&mut self, field: &str, tensor: &'a str, form: Form<'a>, report: &mut Report) {
        let Some(known) = self.forms.get(tensor) else {
            self.forms.insert(tensor, form);
            return;
        };
        if known.data_type != form.data_type {
            let reason = format!(
                "tensor '{tensor}' is {} in '{}' and {} in '{}'",
                type_name(known.data_type),
                known.model,
                type_name(form.data_type),
                form.model
            );
            report.add(field, reason);
        } else if !known.fits(&form) {
            let reason = format!(
                "tensor '{tensor}' has the shape {:?} in '{}' and {:?} in '{}'",
                known.full_dims(),
                known.model,
                form.full_dims(),
                form.model
            );
            report.add(field, reason);
        }
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
