//! A class for the backend `python` that runs TorchScript models and packages of AOTInductor with PyTorch's own Python.

use std::path::PathBuf;

use nereid_python_env::keep_sources;

use crate::compile::CompileError;

/// The class, and the module that it imports.
const FILES: [(&str, &str); 2] =
    [("model.py", include_str!("model.py")), ("torch_naming.py", include_str!("torch_naming.py"))];

/// Writes the class to a file in the user's cache, and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn class_file() -> Result<PathBuf, CompileError> {
    let folder = keep_sources("libtorch", &FILES).map_err(|error| CompileError::Cache(error.to_string()))?;
    Ok(folder.join("model.py"))
}
