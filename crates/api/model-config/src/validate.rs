//! The rules for configurations, independent of the backend.
//!
//! At least as strict as Triton, and in a few points stricter: tensors with the same name, a negative number of
//! instances, impossible shapes. All violations are reported at once. Rules that depend on a backend, a device or the
//! model's files are not checked here.

mod batch_io;
mod batching;
mod conditions;
mod ensemble;
mod enums;
mod extras;
mod files;
mod forms;
mod instances;
mod members;
mod objective;
mod report;
mod sequence;
mod state;
mod tensor;
mod warmup;

pub use files::stays_in_folder;
pub use forms::{EnsembleConstants, ensemble_constants};
pub use members::validate_ensemble;
pub use report::{ValidationError, ValidationErrors};

use crate::backend::{ENSEMBLE_PLATFORM, backend_name, check_pair, is_known_backend, platform_names};
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_version_policy::PolicyChoice;
use report::Report;

/// How complete a configuration is when it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A backend may still complete it. Inputs and outputs may be missing, or lack their types and shapes; everything
    /// present must be valid.
    BeforeCompletion,
    /// The configuration to serve, which will not change.
    Final,
}

/// Checks a configuration whose name is set and that is [normalised](crate::normalise). Omitted fields are checked
/// with their defaults. [`validate_ensemble`] checks whether an ensemble fits its models.
///
/// # Errors
/// Every broken rule.
pub fn validate(config: &ModelConfig, stage: Stage) -> Result<(), ValidationErrors> {
    let mut report = Report::default();
    if config.name.is_empty() {
        report.add("name", "is required");
    }
    check_backend(config, &mut report);
    if config.max_batch_size < 0 {
        let reason = format!("is {}, must be 0 (no batching) or more", config.max_batch_size);
        report.add("max_batch_size", reason);
    }
    enums::check(config, &mut report);
    tensor::check(config, stage, &mut report);
    batch_io::check(config, stage, &mut report);
    check_versions(config, &mut report);
    instances::check(config, &mut report);
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => batching::check(config, batching, &mut report),
        Some(SchedulingChoice::SequenceBatching(batching)) => sequence::check(config, batching, &mut report),
        Some(SchedulingChoice::EnsembleScheduling(steps)) => ensemble::check(config, steps, &mut report),
        None => {}
    }
    objective::check(config, stage, &mut report);
    warmup::check(config, stage, &mut report);
    extras::check(config, &mut report);
    files::check(config, &mut report);
    report.finish(&config.name)
}

fn check_backend(config: &ModelConfig, report: &mut Report) {
    let is_ensemble = config.platform == ENSEMBLE_PLATFORM;
    let has_steps = matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if is_ensemble || has_steps {
        if !is_ensemble {
            report.add("platform", "must be 'ensemble' if ensemble_scheduling is set");
        }
        if !has_steps {
            report.add("ensemble_scheduling", "is required for platform 'ensemble'");
        }
        if is_ensemble && !config.backend.is_empty() {
            report.add("backend", "an ensemble has no backend");
        }
        return;
    }
    if config.platform.is_empty() && config.backend.is_empty() {
        report.add("backend", "'backend' or 'platform' is required");
    } else if backend_name(config).is_none() {
        if is_known_backend(&config.platform) {
            let reason = format!("'{}' is a backend; name it in the field 'backend'", config.platform);
            report.add("platform", reason);
        } else {
            let reason = format!("'{}' is not a known platform; name a backend instead", config.platform);
            let names = platform_names().chain([ENSEMBLE_PLATFORM]);
            report.add_unknown("platform", reason, &config.platform, names);
        }
    } else if let Err(platforms) = check_pair(&config.backend, &config.platform) {
        let platforms = platforms.join("' or '");
        let reason = if config.platform.is_empty() {
            format!("is required for backend '{}': '{platforms}'", config.backend)
        } else {
            let (backend, platform) = (&config.backend, &config.platform);
            format!("backend '{backend}' does not run platform '{platform}', must be '{platforms}'")
        };
        report.add("platform", reason);
    }
    if !stays_inside(&config.runtime) {
        report.add("runtime", format!("'{}' is outside the backend's folder", config.runtime));
    }
}

/// Whether a path appended to a folder stays below that folder.
fn stays_inside(path: &str) -> bool {
    let mut depth = 0_usize;
    path.split('/').all(|part| {
        match part {
            "" | "." => {}
            ".." => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return false,
            },
            _ => depth += 1,
        }
        true
    })
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
