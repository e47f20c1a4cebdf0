//! The rules for instance groups: counts, devices and resources.

use std::collections::HashMap;

use super::report::Report;
use crate::backend::{ENSEMBLE_PLATFORM, TENSORRT_PLATFORM};
use crate::proto::model_instance_group::Kind;
use crate::proto::{ModelConfig, ModelInstanceGroup, ModelRateLimiter};

/// Limit of a model's instances, over all groups and devices. Each is a thread; the reference has no limit, and fails
/// when the machine does.
const MOST_INSTANCES: i64 = 4096;

pub(super) fn check(config: &ModelConfig, report: &mut Report) {
    if config.platform == ENSEMBLE_PLATFORM {
        if !config.instance_group.is_empty() {
            report.add("instance_group", "an ensemble has no instances of its own");
        }
        return;
    }
    let mut total = 0_i64;
    let mut resources = HashMap::new();
    for (index, group) in config.instance_group.iter().enumerate() {
        let path = format!("instance_group[{index}]");
        let within = total <= MOST_INSTANCES;
        total = total.saturating_add(instances(group));
        if group.count < 0 {
            let reason = format!("is {}, must be 0 (the backend's default) or more", group.count);
            report.add(format!("{path}.count"), reason);
        } else if within && total > MOST_INSTANCES {
            let reason = format!("raises the model's instances to {total}, must be at most {MOST_INSTANCES}");
            report.add(format!("{path}.count"), reason);
        }
        check_devices(&path, group, report);
        check_profiles(config, &path, group, report);
        if let Some(limiter) = &group.rate_limiter {
            check_resources(&path, limiter, &mut resources, report);
        }
    }
}

/// The group's instances on all its devices, at least one each.
fn instances(group: &ModelInstanceGroup) -> i64 {
    let devices = i64::try_from(group.gpus.len()).unwrap_or(i64::MAX).max(1);
    i64::from(group.count.max(1)).saturating_mul(devices)
}

fn check_devices(path: &str, group: &ModelInstanceGroup, report: &mut Report) {
    if let Ok(kind @ (Kind::Cpu | Kind::Model)) = Kind::try_from(group.kind)
        && !group.gpus.is_empty()
    {
        report.add(format!("{path}.gpus"), format!("must be empty for {}", kind.as_str_name()));
    }
    for (position, gpu) in group.gpus.iter().enumerate().filter(|&(_, &gpu)| gpu < 0) {
        report.add(format!("{path}.gpus[{position}]"), format!("{gpu} is not the number of a GPU"));
    }
}

fn check_profiles(config: &ModelConfig, path: &str, group: &ModelInstanceGroup, report: &mut Report) {
    if group.profile.is_empty() {
        return;
    }
    if config.platform != TENSORRT_PLATFORM && config.backend != "tensorrt" {
        report.add(format!("{path}.profile"), "only TensorRT models have optimization profiles");
        return;
    }
    for (position, profile) in group.profile.iter().enumerate() {
        if !profile.parse::<i32>().is_ok_and(|number| number >= 0) {
            let field = format!("{path}.profile[{position}]");
            report.add(field, format!("'{profile}' is not the number of a profile, must be \"0\" or more"));
        }
    }
}

/// Checks that a resource is either global or per device, consistently in all groups. `seen` has the first use, by
/// name.
fn check_resources<'a>(
    path: &str,
    limiter: &'a ModelRateLimiter,
    seen: &mut HashMap<&'a str, bool>,
    report: &mut Report,
) {
    let mut names = HashMap::new();
    for (position, resource) in limiter.resources.iter().enumerate() {
        let path = format!("{path}.rate_limiter.resources[{position}]");
        if resource.name.is_empty() {
            report.add(format!("{path}.name"), "is required");
            continue;
        }
        let name = resource.name.as_str();
        if *seen.entry(name).or_insert(resource.global) != resource.global {
            let reason = format!("resource '{name}' is both global and per device: must be one or the other");
            report.add(format!("{path}.global"), reason);
        } else if let Some(count) = names.insert(name, resource.count) {
            let reason = format!("resource '{name}' is set twice, with {count} and {}", resource.count);
            report.add(format!("{path}.name"), reason);
        }
    }
}
