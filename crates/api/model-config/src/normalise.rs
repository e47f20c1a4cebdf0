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

/// Fills in the defaults of a configuration whose name is set, without using GPUs. Idempotent.
pub fn normalise(config: &mut ModelConfig) {
    normalise_for(config, &[]);
}

/// [Fills in the defaults](normalise) for a backend that may use these GPUs: instance groups without a device run on
/// them.
pub fn normalise_for(config: &mut ModelConfig, gpus: &[i32]) {
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

fn fill_instances(config: &mut ModelConfig, gpus: &[i32]) {
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
            let are_here = !gpus.is_empty() && group.gpus.iter().all(|gpu| gpus.contains(gpu));
            group.set_kind(if are_here { Kind::Gpu } else { Kind::Cpu });
        }
        if group.count == 0 {
            group.count = if group.kind == Kind::Cpu as i32 { on_processor } else { 1 };
        }
        if group.kind == Kind::Gpu as i32 && group.gpus.is_empty() {
            group.gpus = gpus.to_vec();
        }
    }
}

/// Replaces the default instance group, if the configuration has only that, with the backend's preferred groups. The
/// configuration is normalised before and after.
pub fn prefer_groups(config: &mut ModelConfig, groups: Vec<ModelInstanceGroup>) {
    let (name, kind) = (config.name.clone(), Kind::Cpu as i32);
    let nobody_asked = ModelInstanceGroup { name, kind, count: 1, ..ModelInstanceGroup::default() };
    if !groups.is_empty() && config.instance_group == [nobody_asked] {
        config.instance_group = groups;
        // Like the default group, the first group is named after the model, without a number.
        config.instance_group[0].name.clone_from(&config.name);
        normalise(config);
    }
}

#[cfg(test)]
mod tests;
