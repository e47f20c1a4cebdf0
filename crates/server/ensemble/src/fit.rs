//! Fits ensembles to the served models: checks their tensors and completes their configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_core::{Labels, Model, ModelId, ModelSpec, ModelTable, ScopedName, VersionState};
use nereid_model_config::proto::ModelTransactionPolicy;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::{EnsembleConstants, Stage, ensemble_constants, validate, validate_ensemble};

use crate::steps_of;

/// Maximum length of a member's failure reason in a message, in characters.
const REASON: usize = 500;

/// An ensemble that fits its members.
pub(crate) struct EnsembleFit {
    /// The configuration, completed by the members: whether the ensemble is decoupled, and the namespace of each member.
    pub config: ModelConfig,
    /// The labels of its outputs; outputs without labels have those of the members.
    pub labels: BTreeMap<String, Labels>,
    /// The constants of its tensors.
    pub constants: EnsembleConstants,
}

/// Fits an ensemble to the served models.
///
/// # Errors
/// `InvalidArg` with all reasons why it cannot be served: missing members, and tensors that do not fit.
pub(crate) fn fit(spec: &ModelSpec, models: &ModelTable) -> Result<EnsembleFit> {
    let (config, members) = fit_config(&spec.id, &spec.config, models)?;
    let constants = constants_of(&config, &members, models);
    let mut labels = spec.labels.clone();
    for (step, member) in steps_of(&config).into_iter().flat_map(|ensemble| &ensemble.step).zip(&members) {
        for (output, tensor) in &step.output_map {
            let is_output = config.output.iter().any(|output| output.name == *tensor);
            if let Some(of_member) = member.labels(output).filter(|_| is_output) {
                labels.entry(tensor.clone()).or_insert_with(|| of_member.clone());
            }
        }
    }
    Ok(EnsembleFit { config, labels, constants })
}

/// Whether a served ensemble still fits the served models with the same configuration and constants.
///
/// # Errors
/// As [`fit()`].
pub(crate) fn still_fits(
    ensemble: &Model,
    constants: &EnsembleConstants,
    models: &ModelTable,
) -> Result<bool> {
    let (config, members) = fit_config(ensemble.id(), ensemble.declared_config(), models)?;
    Ok(config == *ensemble.config() && *constants == constants_of(&config, &members, models))
}

fn constants_of(config: &ModelConfig, members: &[Arc<Model>], models: &ModelTable) -> EnsembleConstants {
    let configs = members.iter().map(|member| (member.name(), latest(member, models)));
    ensemble_constants(config, &configs.collect())
}

/// The configuration as it is served, and the member of each step.
fn fit_config(
    id: &ModelId,
    given: &ModelConfig,
    models: &ModelTable,
) -> Result<(ModelConfig, Vec<Arc<Model>>)> {
    let mut config = given.clone();
    let of_config = |errors| Error::invalid_arg(format!("the ensemble's configuration is wrong: {errors}"));
    validate(&config, Stage::Final).map_err(of_config)?;
    let mut members = Vec::new();
    let (mut unfit, mut evicted) = (BTreeSet::new(), BTreeSet::new());
    if let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &mut config.scheduling_choice {
        for step in &mut ensemble.step {
            let version = u64::try_from(step.model_version).ok();
            match member(id, &step.model_name, version, models) {
                Ok(member) => {
                    step.model_namespace.clone_from(&member.id().namespace);
                    members.push(member);
                }
                Err(reason) => {
                    let mut states = models.states_of(ScopedName::everywhere(&step.model_name));
                    let reasons =
                        if states.any(VersionState::is_evicted) { &mut evicted } else { &mut unfit };
                    reasons.insert(format!("it depends on '{}', {reason}", step.model_name));
                }
            }
        }
    }
    // An evicted member is a reason only if no other member is missing: its load would follow.
    if unfit.is_empty() {
        unfit = evicted;
    }
    if !unfit.is_empty() {
        let reasons: Vec<_> = unfit.into_iter().collect();
        return Err(Error::invalid_arg(format!("ensemble '{id}' cannot be served: {}", reasons.join("; "))));
    }
    // Includes other models, through which a cycle may lead back to the ensemble.
    let mut configs: BTreeMap<_, _> = models.ready().map(|model| (model.name(), model.config())).collect();
    configs.extend(members.iter().map(|member| (member.name(), latest(member, models))));
    let is_decoupled = validate_ensemble(&config, &configs).map_err(of_config)?;
    if is_decoupled && config.response_cache.is_some_and(|cache| cache.enable) {
        return Err(Error::invalid_arg(format!(
            "ensemble '{id}' is decoupled, like one of its models: its responses cannot be cached; remove \
             'response_cache'"
        )));
    }
    config.model_transaction_policy = Some(ModelTransactionPolicy { decoupled: is_decoupled });
    Ok((config, members))
}

/// Like the reference, ensembles are checked against the latest version of a model.
fn latest<'a>(member: &'a Arc<Model>, models: &'a ModelTable) -> &'a ModelConfig {
    models.find_exactly(member.id(), None).unwrap_or(member).config()
}

/// The model of a step: one of the ensemble's own namespace, or else the only one of that name.
///
/// # Errors
/// The reason why the model cannot be a member.
fn member(
    ensemble: &ModelId,
    name: &str,
    version: Option<u64>,
    models: &ModelTable,
) -> Result<Arc<Model>, String> {
    let own = ModelId { name: name.to_owned(), namespace: ensemble.namespace.clone() };
    let mut known: Vec<_> = models
        .namespaces(name)
        .map(|namespace| ModelId { name: name.to_owned(), namespace: namespace.clone() })
        .filter(|id| *id == own || models.versions(id).any(|(_, state)| is_ready(state)))
        .collect();
    if known.contains(&own) {
        known = vec![own];
    }
    let id = match known.as_slice() {
        [] => return Err("which is not loaded".into()),
        [id] => id,
        _ => return Err(format!("which {} models of other namespaces are", known.len())),
    };
    if let Ok(model) = models.find_exactly(id, version) {
        return Ok(Arc::clone(model));
    }
    let loaded: Vec<_> =
        models.versions(id).filter(|(_, state)| is_ready(state)).map(|(version, _)| version).collect();
    match version {
        Some(version) if !loaded.is_empty() => {
            Err(format!("whose required version {version} is not loaded; loaded are {loaded:?}"))
        }
        _ => Err(format!("which has no loaded version{}", why(id, models))),
    }
}

fn is_ready(state: &VersionState) -> bool {
    matches!(state, VersionState::Ready(_))
}

/// The known reasons why a model has no ready version.
fn why(id: &ModelId, models: &ModelTable) -> String {
    let failed = models.failure(id).map(|error| format!(" ({})", error.message()));
    let states = models
        .versions(id)
        .map(|(version, state)| format!(" (version {version}: {})", state.reason().unwrap_or(state.name())));
    shortened(failed.into_iter().chain(states).collect())
}

/// Limits the length of a reason: reasons of nested ensembles contain those of their members.
fn shortened(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(REASON) {
        reason.truncate(end);
        reason.push_str("...)");
    }
    reason
}
