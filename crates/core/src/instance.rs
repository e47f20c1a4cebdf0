//! A model's instances: how many there are, and the thread each runs on.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use nereid_backend_api::{
    Batch, BatchMonitor, Error, Instance, InstanceContext, InstanceKind, ModelConfig, Result,
};
use nereid_model_config::proto::model_instance_group::Kind;

use crate::scheduler::Scheduler;

/// The instances a configuration asks for: one on the processor if it asks for none.
///
/// Their names are the reference's: the group's name, or `<model>_<group>` if it has none, and behind it the number
/// of the instance if the group has several.
pub(crate) fn plan_instances(model: &str, config: &ModelConfig) -> Result<Vec<InstanceContext>> {
    if config.instance_group.is_empty() {
        return Ok(vec![InstanceContext { name: format!("{model}_0"), kind: InstanceKind::Cpu }]);
    }
    let mut instances = Vec::new();
    for (index, group) in config.instance_group.iter().enumerate() {
        let prefix = if group.name.is_empty() { format!("{model}_{index}") } else { group.name.clone() };
        let kind = match group.kind() {
            Kind::Auto | Kind::Cpu => InstanceKind::Cpu,
            Kind::Model => InstanceKind::Model,
            Kind::Gpu => {
                return Err(Error::invalid_arg(format!(
                    "instance group '{prefix}' asks for KIND_GPU, but no GPU is offered; KIND_CPU or KIND_AUTO will do"
                )));
            }
        };
        match group.count {
            ..=1 => instances.push(InstanceContext { name: prefix, kind }),
            count => instances.extend(
                (0..count).map(|number| InstanceContext { name: format!("{prefix}_{number}"), kind }),
            ),
        }
    }
    Ok(instances)
}

/// Runs an instance on a thread of its own until its scheduler is closed and empty.
pub(crate) fn spawn(
    name: &str,
    mut instance: Box<dyn Instance>,
    scheduler: Arc<dyn Scheduler>,
    monitor: Arc<dyn BatchMonitor>,
) -> io::Result<JoinHandle<()>> {
    let label = name.to_owned();
    Builder::new().name(name.to_owned()).spawn(move || {
        while let Some(requests) = scheduler.next() {
            let batch = Batch::new(requests, Arc::clone(&monitor));
            // A batch dropped by a panic answers its requests; the instance goes on with the next one.
            if catch_unwind(AssertUnwindSafe(|| instance.execute(batch))).is_err() {
                tracing::error!("instance '{label}' panicked; its requests were answered with an error");
            }
        }
    })
}
