//! Arguments of the process: the arguments of `initialize`, with Triton's names, and paths.

use std::path::Path;

use nereid_backend_api::{InstanceContext, InstanceKind, ModelConfig, ModelContext};
use nereid_model_config::to_json;
use nereid_worker::Arguments;

/// Arguments of the model without an instance, in the order in which models see them.
pub(crate) fn of_model(context: &ModelContext, file: &Path) -> Arguments {
    let mut arguments = vec![("model_config", to_json(&context.config))];
    arguments.extend(places(context, file, &context.config));
    arguments
}

/// Arguments of an instance of the model, with its configuration completed.
pub(crate) fn of_instance(
    context: &ModelContext,
    file: &Path,
    config: &ModelConfig,
    instance: &InstanceContext,
) -> Arguments {
    let (kind, device) = match instance.kind {
        InstanceKind::Cpu => ("CPU", 0),
        InstanceKind::Gpu(device) => ("GPU", device),
        InstanceKind::Model => ("MODEL", 0),
    };
    let mut arguments = vec![
        ("model_config", to_json(config)),
        ("model_instance_kind", kind.to_owned()),
        ("model_instance_name", instance.name.clone()),
        ("model_instance_device_id", device.to_string()),
    ];
    arguments.extend(places(context, file, config));
    arguments
}

fn places(context: &ModelContext, file: &Path, config: &ModelConfig) -> Arguments {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let decoupled = config.model_transaction_policy.is_some_and(|policy| policy.decoupled);
    vec![
        ("model_repository", text(&context.directory)),
        ("model_version", context.version.to_string()),
        ("model_name", context.name.clone()),
        ("nereid.model_file", text(file)),
        ("nereid.version_directory", text(&context.version_directory())),
        ("nereid.model_directory", text(&context.directory)),
        ("nereid.decoupled", decoupled.to_string()),
    ]
}
