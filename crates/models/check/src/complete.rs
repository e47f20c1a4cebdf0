//! Completes one model's configuration, as a load would, and prints it. Creates no instance.

use std::path::PathBuf;
use std::time::Instant;

use nereid_core::backend_api::{Error, Result, block_on};
use nereid_core::model_config::{ModelConfig, nearest_name, to_text};
use nereid_core::{ModelId, ModelSource, ModelSpec, Overrides, Progress, complete_config};
use nereid_repository::{ReadOptions, Repositories};

use crate::Context;

/// The completed `config.pbtxt` of the named model, by the highest version that would be served.
///
/// # Errors
/// The model does not exist, or why it cannot be loaded.
pub fn complete(name: &str, repositories: &[PathBuf], context: &Context<'_>) -> Result<String> {
    completed(name, repositories, context).map(|config| to_text(&config))
}

/// The completed configuration of the named model, by the highest version that would be served.
///
/// # Errors
/// As [`complete`].
pub fn completed(name: &str, repositories: &[PathBuf], context: &Context<'_>) -> Result<ModelConfig> {
    let spec = find(name, repositories, &context.reading)?;
    let &version = spec
        .versions
        .last()
        .ok_or_else(|| Error::not_found(format!("model '{name}' has no version directory to serve")))?;
    complete_config(&spec, version, context.backends)
}

fn find(name: &str, repositories: &[PathBuf], reading: &ReadOptions) -> Result<ModelSpec> {
    let source = Repositories::new(repositories.to_vec(), reading.clone());
    let as_of = Instant::now();
    let names: Vec<_> = block_on(source.list())?.into_iter().map(|listed| listed.name).collect();
    if names.iter().all(|other| other != name) {
        let near = nearest_name(name, names.iter().map(String::as_str));
        let hint = near.map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
        return Err(Error::not_found(format!("no model '{name}'{hint}")));
    }
    let (id, overrides, progress) = (ModelId::plain(name), Overrides::default(), Progress::default());
    block_on(source.fetch(&id, &overrides, &progress, as_of))?.read()
}
