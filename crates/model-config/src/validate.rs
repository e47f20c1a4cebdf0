//! The rules that a configuration must obey, whatever its backend.
//!
//! What the reference refuses is refused here, and a little that it lets pass: tensors of the same name, a negative
//! number of instances, shapes that no tensor can have. What only a backend, a device or the model's files can tell
//! is not looked at, nor is the graph of an ensemble.

mod tensor;

use crate::backend::{ENSEMBLE_PLATFORM, backend_name, is_pair};
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_instance_group::Kind;
use crate::proto::model_sequence_batching::StrategyChoice;
use crate::proto::model_version_policy::PolicyChoice;

/// The first rule that a configuration breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model '{model}', field '{field}': {reason}")]
pub struct ValidationError {
    model: String,
    field: String,
    reason: String,
}

impl ValidationError {
    /// The model's name; empty where that is what is missing.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The path of the field at fault, such as `input[0].dims`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong, and what would be right.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// A broken rule, before the model's name is put to it.
struct Fault {
    field: String,
    reason: String,
}

impl Fault {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// Checks a configuration whose name has been filled in. Fields that are left out are held to their defaults, so
/// it may be called before and after a backend has completed the configuration.
pub fn validate(config: &ModelConfig) -> Result<(), ValidationError> {
    check(config).map_err(|fault| ValidationError {
        model: config.name.clone(),
        field: fault.field,
        reason: fault.reason,
    })
}

fn check(config: &ModelConfig) -> Result<(), Fault> {
    if config.name.is_empty() {
        return Err(Fault::new("name", "must be given"));
    }
    check_backend(config)?;
    if config.max_batch_size < 0 {
        let reason = format!("is {}, must be 0 (no batching) or more", config.max_batch_size);
        return Err(Fault::new("max_batch_size", reason));
    }
    tensor::check(config)?;
    check_versions(config)?;
    check_instances(config)?;
    check_batch_sizes(config)
}

fn check_backend(config: &ModelConfig) -> Result<(), Fault> {
    let is_ensemble = config.platform == ENSEMBLE_PLATFORM;
    let has_steps = matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    match (is_ensemble, has_steps) {
        (true, true) if config.backend.is_empty() => Ok(()),
        (true, true) => Err(Fault::new("backend", "an ensemble has no backend")),
        (true, false) => Err(Fault::new("ensemble_scheduling", "must be given for platform 'ensemble'")),
        (false, true) => Err(Fault::new("platform", "must be 'ensemble' where ensemble_scheduling is given")),
        (false, false) if config.platform.is_empty() && config.backend.is_empty() => {
            Err(Fault::new("backend", "'backend' or 'platform' must be given"))
        }
        (false, false) if backend_name(config).is_none() => {
            let reason = format!("'{}' is not a known platform; name a backend instead", config.platform);
            Err(Fault::new("platform", reason))
        }
        (false, false)
            if !config.backend.is_empty()
                && !config.platform.is_empty()
                && !is_pair(&config.backend, &config.platform) =>
        {
            let reason = format!("backend '{}' does not run platform '{}'", config.backend, config.platform);
            Err(Fault::new("platform", reason))
        }
        (false, false) => Ok(()),
    }
}

fn check_versions(config: &ModelConfig) -> Result<(), Fault> {
    let choice = config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    match choice {
        Some(PolicyChoice::Latest(latest)) if latest.num_versions == 0 => {
            Err(Fault::new("version_policy.latest.num_versions", "must be at least 1"))
        }
        Some(PolicyChoice::Specific(specific)) => {
            let field = "version_policy.specific.versions";
            if specific.versions.is_empty() {
                return Err(Fault::new(field, "must name at least one version"));
            }
            match specific.versions.iter().find(|&&version| version < 0) {
                Some(version) => Err(Fault::new(field, format!("{version} is not a version number"))),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn check_instances(config: &ModelConfig) -> Result<(), Fault> {
    if config.platform == ENSEMBLE_PLATFORM && !config.instance_group.is_empty() {
        return Err(Fault::new("instance_group", "an ensemble has no instances of its own"));
    }
    for (index, group) in config.instance_group.iter().enumerate() {
        let field = |name: &str| format!("instance_group[{index}].{name}");
        if group.count < 0 {
            let reason = format!("is {}, must be 0 (the backend's default) or more", group.count);
            return Err(Fault::new(field("count"), reason));
        }
        let Ok(kind) = Kind::try_from(group.kind) else {
            return Err(Fault::new(field("kind"), format!("{} is not a kind of instance", group.kind)));
        };
        if matches!(kind, Kind::Cpu | Kind::Model) && !group.gpus.is_empty() {
            let reason = format!("must be empty for {}", kind.as_str_name());
            return Err(Fault::new(field("gpus"), reason));
        }
        if let Some(gpu) = group.gpus.iter().find(|&&gpu| gpu < 0) {
            return Err(Fault::new(field("gpus"), format!("{gpu} is not the number of a GPU")));
        }
    }
    Ok(())
}

/// Preferred batch sizes lie within what the model can take.
fn check_batch_sizes(config: &ModelConfig) -> Result<(), Fault> {
    let (field, sizes) = match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            ("dynamic_batching.preferred_batch_size", &batching.preferred_batch_size)
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => match &batching.strategy_choice {
            Some(StrategyChoice::Oldest(oldest)) => {
                ("sequence_batching.oldest.preferred_batch_size", &oldest.preferred_batch_size)
            }
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    for &size in sizes {
        if size < 1 {
            return Err(Fault::new(field, format!("{size} is not a batch size, must be at least 1")));
        }
        if size > config.max_batch_size {
            let reason = format!("{size} is more than max_batch_size, which is {}", config.max_batch_size);
            return Err(Fault::new(field, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
