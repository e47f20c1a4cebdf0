//! Loads a version up to its instances: the backend reads the model and completes its configuration, which is then
//! checked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nereid_backend_api::{Backend, Error, Model, ModelConfig, NoPeers, Peers, Result};
use nereid_model_config::{
    Stage, adopt_completed, adopt_parameters, normalise, prefer_groups, scheduler_name, validate,
};

use crate::backends::Backends;
use crate::instance::plan_instances;
use crate::spec::{Completion, ModelSpec};

/// Loads a version. Returns the model and the configuration to serve it with.
///
/// # Errors
/// The reason why it cannot be served.
pub(crate) fn load(
    spec: &ModelSpec,
    version: u64,
    backend: &dyn Backend,
    peers: &Arc<dyn Peers>,
) -> Result<(Box<dyn Model>, ModelConfig)> {
    let model = backend.load(spec.context(version, peers))?;
    let mut config = completed(spec, model.completed_config())?;
    prefer_groups(&mut config, model.preferred_groups());
    if let Some(changes) = changes(&spec.config, &config) {
        tracing::info!("completed the configuration of '{}' version {version}: {changes}", spec.id.name);
    }
    Ok((model, config))
}

/// The configuration that a version would be served with: what its backend completes from the model's files, and the
/// defaults. Makes no instance.
///
/// # Errors
/// The reason why the version cannot be served.
pub fn complete_config(spec: &ModelSpec, version: u64, backends: &Backends) -> Result<ModelConfig> {
    if let Some(fault) = &spec.fault {
        return Err(fault.clone());
    }
    let peers: Arc<dyn Peers> = Arc::new(NoPeers);
    let backend = backends.select(&spec.context(version, &peers))?;
    load(spec, version, &*backend, &peers).map(|(_, config)| config)
}

/// Loads a version and makes one instance of it, on a machine with these GPUs, and ends both again.
///
/// # Errors
/// The reason why the version cannot be served.
pub fn try_load(spec: &ModelSpec, version: u64, backends: &Backends, gpus: &[i32]) -> Result<()> {
    if let Some(fault) = &spec.fault {
        return Err(fault.clone());
    }
    let peers: Arc<dyn Peers> = Arc::new(NoPeers);
    let load = || {
        let backend = backends.select(&spec.context(version, &peers))?;
        let (model, config) = load(spec, version, &*backend, &peers)?;
        match plan_instances(&spec.id.name, &config, gpus)?.into_iter().next() {
            Some((instance, _)) => model.create_instance(instance).map(drop),
            None => Ok(()),
        }
    };
    catch_unwind(AssertUnwindSafe(load))
        .unwrap_or_else(|_| Err(Error::internal("the backend panicked while loading the model")))
}

fn completed(spec: &ModelSpec, handed_back: Option<&ModelConfig>) -> Result<ModelConfig> {
    let mut config = spec.config.clone();
    match (spec.completion, handed_back) {
        (Completion::Off, _) => return Ok(config),
        (Completion::Needed, None) => {
            return Err(Error::not_found(format!(
                "model '{}' has no configuration file, and its backend '{}' does not complete one: write a \
                 config.pbtxt that lists its inputs and outputs",
                spec.id.name, config.backend
            )));
        }
        (Completion::Allowed, None) => {}
        (Completion::Allowed | Completion::Needed, Some(completed)) => {
            adopt_completed(&mut config, completed.clone()).map_err(|error| {
                Error::internal(format!("the configuration of model '{}': {error}", spec.id.name))
            })?;
            adopt_parameters(&mut config, completed);
            normalise(&mut config);
        }
    }
    validate(&config, Stage::Final)
        .map_err(|errors| Error::invalid_arg(format!("the configuration, as completed: {errors}")))?;
    Ok(config)
}

/// The values that completion added, for the log: operators who tune the model need to know them.
fn changes(given: &ModelConfig, completed: &ModelConfig) -> Option<String> {
    let mut changes = Vec::new();
    if given.input != completed.input {
        let names: Vec<_> = completed.input.iter().map(|input| format!("'{}'", input.name)).collect();
        changes.push(format!("input {}", names.join(", ")));
    }
    if given.output != completed.output {
        let names: Vec<_> = completed.output.iter().map(|output| format!("'{}'", output.name)).collect();
        changes.push(format!("output {}", names.join(", ")));
    }
    if given.max_batch_size != completed.max_batch_size {
        changes.push(format!("max_batch_size {}", completed.max_batch_size));
    }
    if given.scheduling_choice.is_none()
        && let Some(choice) = &completed.scheduling_choice
    {
        changes.push(scheduler_name(choice).to_owned());
    }
    (!changes.is_empty()).then(|| changes.join("; "))
}

#[cfg(test)]
mod tests;
