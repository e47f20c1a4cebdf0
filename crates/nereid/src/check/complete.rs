//! Completes one model's configuration, as loading it would, and gives it as text. Makes no instance.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_core::backend_api::{Backend, Error, Result};
use nereid_core::model_config::{backend_name, nearest_name, to_text};
use nereid_core::{ModelSpec, complete_config};
use nereid_repository::{LocalRepository, ReadOptions};

/// The completed `config.pbtxt` of the model of this name; of its versions, the highest that would be served tells.
///
/// # Errors
/// There is no such model, or it could not be loaded, and why.
pub(super) fn complete(
    name: &str,
    repositories: &[PathBuf],
    reading: &ReadOptions,
    backends: &BTreeMap<String, Arc<dyn Backend>>,
) -> Result<String> {
    let spec = find(name, repositories, reading)?;
    let &version = spec
        .versions
        .last()
        .ok_or_else(|| Error::not_found(format!("model '{name}' has no version folder to serve")))?;
    let backend = backend_name(&spec.config).and_then(|backend| backends.get(backend)).ok_or_else(|| {
        let known: Vec<_> = backends.keys().map(String::as_str).collect();
        Error::unsupported(format!(
            "model '{name}' is of no backend that is here; there are {}",
            known.join(", ")
        ))
    })?;
    Ok(to_text(&complete_config(&spec, version, backend.as_ref())?))
}

fn find(name: &str, repositories: &[PathBuf], reading: &ReadOptions) -> Result<ModelSpec> {
    let mut models = Vec::new();
    for path in repositories {
        models.extend(LocalRepository::new(path).models(reading)?);
    }
    let mut named = models.extract_if(.., |(model, _)| model == name);
    match (named.next(), named.next()) {
        (Some((_, spec)), None) => spec,
        (Some(_), Some(_)) => {
            Err(Error::invalid_arg(format!("model '{name}' stands in more than one repository")))
        }
        (None, _) => {
            drop(named);
            let names = models.iter().map(|(model, _)| model.as_str());
            let hint = nearest_name(name, names)
                .map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
            Err(Error::not_found(format!("there is no model '{name}'{hint}")))
        }
    }
}
