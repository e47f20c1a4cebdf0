//! The rules for instance groups: how many, and on what.

use super::report::Report;
use crate::backend::ENSEMBLE_PLATFORM;
use crate::proto::ModelConfig;
use crate::proto::model_instance_group::Kind;

pub(super) fn check(config: &ModelConfig, report: &mut Report) {
    if config.platform == ENSEMBLE_PLATFORM {
        if !config.instance_group.is_empty() {
            report.add("instance_group", "an ensemble has no instances of its own");
        }
        return;
    }
    for (index, group) in config.instance_group.iter().enumerate() {
        let field = |name: &str| format!("instance_group[{index}].{name}");
        if group.count < 0 {
            let reason = format!("is {}, must be 0 (the backend's default) or more", group.count);
            report.add(field("count"), reason);
        }
        match Kind::try_from(group.kind) {
            Ok(kind @ (Kind::Cpu | Kind::Model)) if !group.gpus.is_empty() => {
                report.add(field("gpus"), format!("must be empty for {}", kind.as_str_name()));
            }
            Ok(_) => {}
            Err(_) => report.add(field("kind"), format!("{} is not a kind of instance", group.kind)),
        }
        for (position, gpu) in group.gpus.iter().enumerate().filter(|&(_, &gpu)| gpu < 0) {
            report.add(field(&format!("gpus[{position}]")), format!("{gpu} is not the number of a GPU"));
        }
    }
}
