//! Describes a model and its instance to the process that hosts them.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{
    Error, HostPolicy, InstanceContext, InstanceKind, ModelConfig, ModelContext, NoPeers, Result,
};
use nereid_model_config::{from_json, to_json};

use crate::model::Arguments;

const CONFIG: &str = "config";
const NAME: &str = "name";
const VERSION: &str = "version";
const DIRECTORY: &str = "directory";
const COMPLETE: &str = "complete";
const INSTANCE: &str = "instance";
const KIND: &str = "kind";
const POLICY: &str = "host_policy";

/// Describes a model to a process that hosts it.
pub fn model_arguments(context: &ModelContext) -> Arguments {
    of(context, &context.config, context.complete)
}

/// Describes an instance of a model, with the configuration completed, to a process that hosts it.
pub fn instance_arguments(
    context: &ModelContext,
    config: &ModelConfig,
    instance: &InstanceContext,
) -> Arguments {
    let mut arguments = of(context, config, false);
    let kind = match instance.kind {
        InstanceKind::Cpu => "cpu".to_owned(),
        InstanceKind::Model => "model".to_owned(),
        InstanceKind::Gpu(device) => device.to_string(),
    };
    let policy = instance.host_policy.name.clone();
    arguments.extend([(INSTANCE, instance.name.clone()), (KIND, kind), (POLICY, policy)]);
    arguments
}

fn of(context: &ModelContext, config: &ModelConfig, complete: bool) -> Arguments {
    vec![
        (CONFIG, to_json(config)),
        (NAME, context.name.clone()),
        (VERSION, context.version.to_string()),
        (DIRECTORY, context.directory.to_string_lossy().into_owned()),
        (COMPLETE, complete.to_string()),
    ]
}

/// The model that arguments describe.
pub(super) fn model(arguments: &[(&str, &str)]) -> Result<ModelContext> {
    let config = from_json(value(arguments, CONFIG)?)
        .map_err(|error| Error::internal(format!("the configuration from the server: {error}")))?;
    Ok(ModelContext {
        name: value(arguments, NAME)?.to_owned(),
        version: number(arguments, VERSION)?,
        directory: PathBuf::from(value(arguments, DIRECTORY)?),
        config,
        complete: value(arguments, COMPLETE)? == "true",
        peers: Arc::new(NoPeers),
    })
}

/// The instance that arguments describe.
pub(super) fn instance(arguments: &[(&str, &str)]) -> Result<InstanceContext> {
    let kind = match value(arguments, KIND)? {
        "cpu" => InstanceKind::Cpu,
        "model" => InstanceKind::Model,
        _ => InstanceKind::Gpu(number(arguments, KIND)?),
    };
    let mut context = InstanceContext::new(value(arguments, INSTANCE)?, kind);
    context.host_policy = HostPolicy { name: value(arguments, POLICY)?.to_owned(), ..HostPolicy::default() };
    Ok(context)
}

fn value<'a>(arguments: &[(&str, &'a str)], name: &str) -> Result<&'a str> {
    let found = arguments.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| Error::internal(format!("the server did not send '{name}'")))
}

fn number<T: std::str::FromStr>(arguments: &[(&str, &str)], name: &str) -> Result<T> {
    let value = value(arguments, name)?;
    value.parse().map_err(|_| Error::internal(format!("the server sent '{value}' as '{name}'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn described_model_round_trips() {
        let config = nereid_testkit::normalised("m", "max_batch_size: 3 backend: 'x'");
        for (version, complete, kind) in [
            (1, false, InstanceKind::Cpu),
            (u64::MAX, true, InstanceKind::Gpu(7)),
            (3, true, InstanceKind::Model),
        ] {
            let context =
                ModelContext { version, complete, ..nereid_testkit::context("/a folder/m", config.clone()) };
            let arguments = model_arguments(&context);
            let pairs: Vec<_> = arguments.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let found = model(&pairs).unwrap();
            assert_eq!((found.version, found.complete, &found.config), (version, complete, &config));
            assert_eq!((found.name, found.directory), (context.name.clone(), context.directory.clone()));
            let described = InstanceContext::new("m_0_1", kind);
            let arguments = instance_arguments(&context, &config, &described);
            let pairs: Vec<_> = arguments.iter().map(|(name, value)| (*name, value.as_str())).collect();
            assert_eq!(instance(&pairs).unwrap(), described);
            // The configuration was completed before.
            assert!(!model(&pairs).unwrap().complete);
            for missing in 0..pairs.len() {
                let mut less = pairs.clone();
                let (name, _) = less.remove(missing);
                let error = model(&less).and_then(|_| instance(&less)).unwrap_err();
                assert!(name == COMPLETE || error.message().contains(&format!("'{name}'")), "{error}");
            }
        }
    }
}
