//! A class for the backend `python` that runs TorchScript models with PyTorch's own Python.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process;

use nereid_python_env::cache_folder;

use crate::compile::CompileError;

/// The class.
const SOURCE: &str = include_str!("model.py");

/// Writes the class to a file in the user's cache, and returns its path.
///
/// # Errors
/// It cannot be written.
pub fn class_file() -> Result<PathBuf, CompileError> {
    let folder = cache_folder("libtorch").map_err(|error| CompileError::Cache(error.to_string()))?;
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    // A separate folder, because files beside the class can be imported.
    let folder = folder.join(format!("python-{:016x}", hasher.finish()));
    let (file, part) = (folder.join("model.py"), folder.join(format!("part-{}", process::id())));
    let kept = |error| CompileError::Cache(format!("{}: {error}", folder.display()));
    if fs::read(&file).ok().is_none_or(|found| found != SOURCE.as_bytes()) {
        fs::create_dir_all(&folder).map_err(kept)?;
        fs::write(&part, SOURCE).map_err(kept)?;
        fs::rename(&part, &file).map_err(kept)?;
    }
    Ok(file)
}
