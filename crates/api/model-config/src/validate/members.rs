//! How an ensemble fits its models.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::ensemble::step_path;
use super::report::Report;
use super::tensor::ANY_SIZE;
use super::{ValidationErrors, ensemble};
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
        check_names(&path, step, member, &mut report);
        tensors.check_step(&path, step, member, &mut report);
    }
    let streams = streams(config, &ensemble.step, models, &mut report);
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
fn check_names(path: &str, step: &Step, member: &ModelConfig, report: &mut Report) {
    let inputs = || member.input.iter().map(|input| input.name.as_str());
    let outputs = || member.output.iter().map(|output| output.name.as_str());
    let (known_inputs, known_outputs): (HashSet<_>, HashSet<_>) = (inputs().collect(), outputs().collect());
    for key in step.input_map.keys().filter(|key| !known_inputs.contains(key.as_str())) {
        let reason = format!("model '{}' has no input '{key}'", member.name);
        report.add_unknown(format!("{path}.input_map[{key:?}]"), reason, key, inputs());
    }
    for key in step.output_map.keys().filter(|key| !known_outputs.contains(key.as_str())) {
        let reason = format!("model '{}' has no output '{key}'", member.name);
        report.add_unknown(format!("{path}.output_map[{key:?}]"), reason, key, outputs());
    }
    for input in member.input.iter().filter(|input| !input.optional) {
        if !step.input_map.contains_key(&input.name) {
            let given = step.input_map.keys().map(String::as_str);
            let reason = format!("missing input '{}' of model '{}'", input.name, member.name);
            report.add_missing(format!("{path}.input_map"), reason, &input.name, given);
        }
    }
}

/// Type and shape of a tensor, as declared by its first user.
struct Form<'a> {
    /// The model that declares them.
    model: &'a str,
    data_type: i32,
    dims: &'a [i64],
    batches: bool,
}

impl Form<'_> {
    fn full_dims(&self) -> Vec<i64> {
        let batch = self.batches.then_some(ANY_SIZE);
        batch.into_iter().chain(self.dims.iter().copied()).collect()
    }

    /// A model without batching matches one with batching if its first dimension is the batch.
    fn fits(&self, other: &Form<'_>) -> bool {
        same_shape(self.dims, other.dims) || same_shape(&self.full_dims(), &other.full_dims())
    }
}

/// Variable dimensions match any size.
fn same_shape(left: &[i64], right: &[i64]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(&left, &right)| left == ANY_SIZE || right == ANY_SIZE || left == right)
}

/// The tensors of an ensemble, by name.
struct Tensors<'a>(HashMap<&'a str, Form<'a>>);

impl<'a> Tensors<'a> {
    fn of(config: &'a ModelConfig) -> Self {
        let batches = config.max_batch_size > 0;
        let model = config.name.as_str();
        let mut tensors = HashMap::new();
        for input in &config.input {
            let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
            let form = Form { model, data_type: input.data_type, dims, batches };
            tensors.entry(input.name.as_str()).or_insert(form);
        }
        for output in &config.output {
            let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
            let form = Form { model, data_type: output.data_type, dims, batches };
            tensors.entry(output.name.as_str()).or_insert(form);
        }
        Self(tensors)
    }

    fn check_step(&mut self, path: &str, step: &'a Step, member: &'a ModelConfig, report: &mut Report) {
        let batches = member.max_batch_size > 0;
        let model = member.name.as_str();
        for input in &member.input {
            if let Some((key, tensor)) = step.input_map.get_key_value(&input.name) {
                let form = Form { model, data_type: input.data_type, dims: &input.dims, batches };
                self.check(&format!("{path}.input_map[{key:?}]"), tensor, form, report);
            }
        }
        for output in &member.output {
            if let Some((key, tensor)) = step.output_map.get_key_value(&output.name) {
                let form = Form { model, data_type: output.data_type, dims: &output.dims, batches };
                self.check(&format!("{path}.output_map[{key:?}]"), tensor, form, report);
            }
        }
    }

    fn check(&mut self, field: &str, tensor: &'a str, form: Form<'a>, report: &mut Report) {
        let Some(known) = self.0.get(tensor) else {
            self.0.insert(tensor, form);
            return;
        };
        if known.data_type != form.data_type {
            let name = |number: i32| DataType::try_from(number).unwrap_or_default().as_str_name();
            let reason = format!(
                "tensor '{tensor}' is {} in '{}' and {} in '{}'",
                name(known.data_type),
                known.model,
                name(form.data_type),
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
