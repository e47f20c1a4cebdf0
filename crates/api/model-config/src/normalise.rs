//! Fills in the defaults of a configuration, as Triton does.
//!
//! Uses only the configuration and the machine's GPU numbers. Values that depend on the model's files, such as its
//! tensors, are left unchanged, and so is every value that [`validate`](crate::validate) must check.

use crate::backend::{self, ENSEMBLE_PLATFORM};
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_instance_group::Kind;
use crate::proto::model_optimization_policy::PinnedMemoryBuffer;
use crate::proto::model_sequence_batching::StrategyChoice;
use crate::proto::model_version_policy::{Latest, PolicyChoice};
use crate::proto::{ModelConfig, ModelInstanceGroup, ModelVersionPolicy};

/// Default idle limit of a sequence.
const SEQUENCE_IDLE_MICROSECONDS: u64 = 1_000_000;

/// Backends with two instances on the CPU by default; others have one.
const TWO_INSTANCES: &[&str] = &["onnxruntime", "tensorflow"];

/// The GPUs of a machine, for the instance groups of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelGpus {
    /// Their numbers. A group of `KIND_GPU` that lists none runs on all of them.
    pub numbers: Vec<i32>,
    /// Whether the model's backend uses GPUs: groups of `KIND_AUTO` then run there.
    pub are_default: bool,
}

/// Fills in the defaults of a configuration whose name is set, without using GPUs. Idempotent.
pub fn normalise(config: &mut ModelConfig) {
    normalise_for(config, &ModelGpus::default());
}

/// [Fills in the defaults](normalise) on a machine with these GPUs.
pub fn normalise_for(config: &mut ModelConfig, gpus: &ModelGpus) {
    config.version_policy.get_or_insert(ModelVersionPolicy {
        policy_choice: Some(PolicyChoice::Latest(Latest { num_versions: 1 })),
    });
    fill_scheduling(config);
    let has_steps = matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if has_steps || config.platform == ENSEMBLE_PLATFORM {
        // Ensembles have neither backend nor instances.
        return;
    }
    backend::fill(config);
    let optimization = config.optimization.get_or_insert_default();
    optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    fill_instances(config, gpus);
}

fn fill_scheduling(config: &mut ModelConfig) {
    let largest = config.max_batch_size;
    let prefer_largest = |sizes: &mut Vec<i32>| {
        if sizes.is_empty() && largest > 0 {
            sizes.push(largest);
        }
    };
    match &mut config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            prefer_largest(&mut batching.preferred_batch_size);
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            if batching.max_sequence_idle_microseconds == 0 {
                batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_MICROSECONDS;
            }
            if let Some(StrategyChoice::Oldest(oldest)) = &mut batching.strategy_choice {
                prefer_largest(&mut oldest.preferred_batch_size);
            }
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
    }
}

fn fill_instances(config: &mut ModelConfig, gpus: &ModelGpus) {
    let ModelGpus { numbers: gpus, are_default } = gpus;
    if config.instance_group.is_empty() {
        // The default group is named after the model, without a number.
        let name = config.name.clone();
        config.instance_group.push(ModelInstanceGroup { name, ..ModelInstanceGroup::default() });
    }
    let on_processor = if TWO_INSTANCES.contains(&config.backend.as_str()) { 2 } else { 1 };
    for (index, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", config.name);
        }
        if group.kind == Kind::Auto as i32 {
            let are_here =
                *are_default && !gpus.is_empty() && group.gpus.iter().all(|gpu| gpus.contains(gpu));
            group.set_kind(if are_here { Kind::Gpu } else { Kind::Cpu });
        }
        if group.count == 0 {
            group.count = if group.kind == Kind::Cpu as i32 { on_processor } else { 1 };
        }
        if group.kind == Kind::Gpu as i32 && group.gpus.is_empty() {
            group.gpus.clone_from(gpus);
        }
    }
}

/// Replaces the default instance group, if the configuration has only that, with the backend's preferred groups. The
/// configuration is normalised before and after.
pub fn prefer_groups(config: &mut ModelConfig, groups: Vec<ModelInstanceGroup>) {
    let is_default = |group: &ModelInstanceGroup| {
        let kind = group.kind();
        let (name, gpus) = (config.name.clone(), group.gpus.clone());
        let nobody_asked =
            ModelInstanceGroup { name, gpus, count: 1, kind: group.kind, ..ModelInstanceGroup::default() };
        matches!(kind, Kind::Cpu | Kind::Gpu) && *group == nobody_asked
    };
    if let [only] = &config.instance_group[..]
        && !groups.is_empty()
        && is_default(only)
    {
        config.instance_group = groups;
        // Like the default group, the first group is named after the model, without a number.
        config.instance_group[0].name.clone_from(&config.name);
        normalise(config);
    }
}

#[cfg(test)]
mod tests;
