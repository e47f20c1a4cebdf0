//! Loads models to find problems that only their backends detect, without serving them.

use std::path::Path;

use nereid_core::try_load;
use nereid_repository::read_model;

use super::Context;
use super::model::CheckedFolder;
use super::report::Finding;

/// Loads each served version of a model and creates an instance of it. Ensembles are not loaded: their composition is
/// checked without.
pub(crate) fn check(folder: &CheckedFolder, context: &Context<'_>) -> Vec<Finding> {
    if folder.is_ensemble() {
        return Vec::new();
    }
    let spec = match read_model(&folder.path, &folder.name, &context.reading) {
        Ok(spec) => spec,
        Err(error) => return vec![Finding::error(&folder.path, error.message())],
    };
    let load = |version: &u64| {
        let error = try_load(&spec, *version, context.backends, &context.gpus).err()?;
        let path = version_folder(&folder.path, *version);
        Some(Finding::error(path, format!("cannot be loaded: {}", error.message().trim_end())))
    };
    spec.versions.iter().filter_map(load).collect()
}

fn version_folder(model: &Path, version: u64) -> std::path::PathBuf {
    model.join(version.to_string())
}
