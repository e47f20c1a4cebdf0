//! Types and shapes of an ensemble's tensors: all models that use a tensor declare the same.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::ensemble::step_path;
use super::report::Report;
use super::tensor::ANY_SIZE;
use crate::ensemble_rules::{Constant, EnsembleRules, Filler, IF, StepRules, UNLESS};
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_ensembling::Step;
use crate::proto::{DataType, ModelConfig};

/// The constants of an ensemble, by tensor.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct EnsembleConstants {
    /// Values of tensors where the step that writes them did not run.
    pub if_skipped: BTreeMap<String, (tensor_types::DataType, Constant)>,
    /// Values of tensors whose step failed.
    pub on_error: BTreeMap<String, (tensor_types::DataType, Constant)>,
}

/// The constants of an ensemble that [`validate_ensemble`](crate::validate_ensemble) accepted, with the same configurations.
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
    constants.if_skipped =
        rules.if_skipped.iter().filter_map(|(tensor, filler)| read(tensor, filler)).collect();
    constants.on_error = rules.on_error.iter().filter_map(|(tensor, filler)| read(tensor, filler)).collect();
    constants
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
            || same_shape(&self.dims, &other.dims)
            || same_shape(&self.full_dims(), &other.full_dims())
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
pub(super) struct Tensors<'a> {
    /// By name.
    forms: HashMap<&'a str, Form<'a>>,
    /// Whether the ensemble has a batch dimension.
    batches: bool,
}

impl<'a> Tensors<'a> {
    pub(super) fn of(config: &'a ModelConfig) -> Self {
        let batches = config.max_batch_size > 0;
        let model = config.name.as_str();
        let mut tensors = HashMap::new();
        for input in &config.input {
            let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
            let form =
                Form { model, data_type: input.data_type, dims: dims.into(), batches, is_mapped: false };
            tensors.entry(input.name.as_str()).or_insert(form);
        }
        for output in &config.output {
            let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
            let form =
                Form { model, data_type: output.data_type, dims: dims.into(), batches, is_mapped: false };
            tensors.entry(output.name.as_str()).or_insert(form);
        }
        Self { forms: tensors, batches }
    }

    pub(super) fn check_step(
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
    pub(super) fn check_rules(&self, rules: &EnsembleRules<'_>, report: &mut Report) {
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
