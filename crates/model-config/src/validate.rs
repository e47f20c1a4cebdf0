//! The rules that a configuration must obey, whatever its backend.
//!
//! What the reference refuses is refused here, and a little that it lets pass: tensors of the same name, a negative
//! number of instances, shapes that no tensor can have. All broken rules are found in one go. What only a backend, a
//! device, the model's files or other models can tell is not looked at.

mod batching;
mod instances;
mod report;
mod tensor;

pub use report::{ValidationError, ValidationErrors};

use crate::backend::{ENSEMBLE_PLATFORM, backend_name, is_pair};
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_version_policy::PolicyChoice;
use report::Report;

/// How far a configuration has come when it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A backend may still complete it. Inputs and outputs may be missing, or lack their types and shapes; what is
    /// given has to be right all the same.
    BeforeCompletion,
    /// It is what will be served: nothing will be added.
    Final,
}

/// Checks a configuration whose name has been filled in, and that has been [normalised](crate::normalise). Fields
/// that are left out are held to their defaults.
///
/// # Errors
/// Every broken rule.
pub fn validate(config: &ModelConfig, stage: Stage) -> Result<(), ValidationErrors> {
    let mut report = Report::default();
    if config.name.is_empty() {
        report.add("name", "must be given");
    }
    check_backend(config, &mut report);
    if config.max_batch_size < 0 {
        let reason = format!("is {}, must be 0 (no batching) or more", config.max_batch_size);
        report.add("max_batch_size", reason);
    }
    tensor::check(config, stage, &mut report);
    check_versions(config, &mut report);
    instances::check(config, &mut report);
    batching::check(config, &mut report);
    report.finish(&config.name)
}

fn check_backend(config: &ModelConfig, report: &mut Report) {
    let is_ensemble = config.platform == ENSEMBLE_PLATFORM;
    let has_steps = matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    match (is_ensemble, has_steps) {
        (true, _) => {
            if !config.backend.is_empty() {
                report.add("backend", "an ensemble has no backend");
            }
            if !has_steps {
                report.add("ensemble_scheduling", "must be given for platform 'ensemble'");
            }
        }
        (false, true) => {
            report.add("platform", "must be 'ensemble' where ensemble_scheduling is given");
        }
        (false, false) if config.platform.is_empty() && config.backend.is_empty() => {
            report.add("backend", "'backend' or 'platform' must be given");
        }
        (false, false) if backend_name(config).is_none() => {
            let reason = format!("'{}' is not a known platform; name a backend instead", config.platform);
            report.add("platform", reason);
        }
        (false, false)
            if !config.backend.is_empty()
                && !config.platform.is_empty()
                && !is_pair(&config.backend, &config.platform) =>
        {
            let reason = format!("backend '{}' does not run platform '{}'", config.backend, config.platform);
            report.add("platform", reason);
        }
        (false, false) => {}
    }
}

fn check_versions(config: &ModelConfig, report: &mut Report) {
    let choice = config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    match choice {
        Some(PolicyChoice::Latest(latest)) if latest.num_versions == 0 => {
            report.add("version_policy.latest.num_versions", "must be at least 1");
        }
        Some(PolicyChoice::Specific(specific)) => {
            let field = "version_policy.specific.versions";
            if specific.versions.is_empty() {
                report.add(field, "must name at least one version");
            }
            for (index, version) in specific.versions.iter().enumerate().filter(|&(_, &version)| version < 0)
            {
                report.add(format!("{field}[{index}]"), format!("{version} is not a version number"));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
