//! A class for the backend `python` that runs TorchScript models and packages of AOTInductor with PyTorch's own Python.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process;

use nereid_python_env::cache_folder;

use crate::compile::CompileError;

/// The class, and the module that it imports.
const FILES: [(&str, &str); 2] =
    [("model.py", include_str!("model.py")), ("torch_naming.py", include_str!("torch_naming.py"))];

/// Writes the class to a file in the user's cache, and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn class_file() -> Result<PathBuf, CompileError> {
    let folder = cache_folder("libtorch").map_err(|error| CompileError::Cache(error.to_string()))?;
    let mut hasher = DefaultHasher::new();
    FILES.hash(&mut hasher);
    // A separate folder, because files next to the class can be imported.
    let folder = folder.join(format!("python-{:016x}", hasher.finish()));
    let kept = |error| CompileError::Cache(format!("{}: {error}", folder.display()));
    for (name, source) in FILES {
        let (file, part) = (folder.join(name), folder.join(format!("part-{}-{name}", process::id())));
        if fs::read(&file).ok().is_none_or(|found| found != source.as_bytes()) {
            fs::create_dir_all(&folder).map_err(kept)?;
            fs::write(&part, source).map_err(kept)?;
            fs::rename(&part, &file).map_err(kept)?;
        }
    }
    Ok(folder.join("model.py"))
}
