//! One model's folder: its configuration, its versions, its labels.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{Labels, ModelSpec};
use nereid_model_config::{ModelConfig, Stage};

/// The configuration's file name.
const CONFIG: &str = "config.pbtxt";

/// Reads the folder of the model `name`.
///
/// # Errors
/// A configuration or a label file that cannot be read or is wrong; the message names the file.
pub fn read_model(folder: &Path, name: &str) -> Result<ModelSpec> {
    let config = read_config(folder, name)?;
    let labels = read_labels(folder, &config)?;
    let choice = nereid_model_config::served_versions(config.version_policy.as_ref(), &versions(folder)?);
    for version in choice.missing {
        tracing::error!("the configuration of '{name}' asks for version {version}, which has no folder");
    }
    let versions = choice.served.into_iter().filter_map(|version| version.try_into().ok()).collect();
    Ok(ModelSpec { name: name.to_owned(), directory: folder.to_owned(), config, versions, labels })
}

fn read_config(folder: &Path, name: &str) -> Result<ModelConfig> {
    let path = folder.join(CONFIG);
    let bytes = fs::read(&path)
        .map_err(|error| Error::not_found(format!("cannot read '{}': {error}", path.display())))?;
    // A comment in another encoding does no harm; a name in one will not be found.
    let text = String::from_utf8_lossy(&bytes);
    let mut config = nereid_model_config::parse_text(&text).map_err(|error| {
        Error::invalid_arg(format!(
            "{}:{}:{}: {}",
            path.display(),
            error.line(),
            error.column(),
            error.message()
        ))
    })?;
    if config.name.is_empty() {
        name.clone_into(&mut config.name);
    }
    if config.name != name {
        return Err(Error::invalid_arg(format!(
            "'{}' is the configuration of a model named '{}', but its folder is '{name}'",
            path.display(),
            config.name
        )));
    }
    nereid_model_config::normalise(&mut config);
    nereid_model_config::validate(&config, Stage::Final)
        .map_err(|error| Error::invalid_arg(format!("{}: {error}", path.display())))?;
    Ok(config)
}

fn read_labels(folder: &Path, config: &ModelConfig) -> Result<BTreeMap<String, Labels>> {
    let labelled = config.output.iter().filter(|output| !output.label_filename.is_empty());
    labelled
        .map(|output| {
            // A slash at its beginning is the folder's, as in the reference.
            let path = folder.join(output.label_filename.trim_start_matches('/'));
            let text = fs::read_to_string(&path).map_err(|error| {
                Error::not_found(format!(
                    "cannot read the labels of output '{}' in '{}': {error}",
                    output.name,
                    path.display()
                ))
            })?;
            Ok((output.name.clone(), text.lines().map(str::to_owned).collect()))
        })
        .collect()
}

/// The folders whose name is a version: a whole number without a leading zero (0 itself is one).
fn versions(folder: &Path) -> Result<Vec<i64>> {
    let unreadable =
        |error: std::io::Error| Error::not_found(format!("cannot read '{}': {error}", folder.display()));
    let mut versions = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let version = entry.file_name().to_str().and_then(version);
        if let Some(version) = version.filter(|_| entry.path().is_dir()) {
            versions.push(version);
        }
    }
    Ok(versions)
}

fn version(name: &str) -> Option<i64> {
    let canonical = name == "0" || !name.starts_with('0');
    let digits = name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| canonical && digits)
}

#[cfg(test)]
mod tests;
