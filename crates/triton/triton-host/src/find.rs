//! Finds the library of a model's backend by Triton's rules.

use std::fs;
use std::path::{Path, PathBuf};

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_plugin::{Kind, SearchPath, is_file_name};

/// A backend written in Python has this file instead of a library; the backend `python` runs it.
const PYTHON_FILE: &str = "model.py";
const PYTHON: &str = "python";
/// How to install NVIDIA's library for that backend.
const PYTHON_HINT: &str =
    "; it comes with `pip install nvidia-pytriton`: see 'Python models' in docs/models.md";
/// A backend written in Python may come with its own environment, in a file of this name.
const PYTHON_ENVIRONMENT: &str = "pb_exec_env_model.py.tar.gz";
/// The parameter of a configuration that names the batching library.
const BATCHER_PATH: &str = "TRITON_BATCH_STRATEGY_PATH";

/// A backend's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendFiles {
    pub library: PathBuf,
    /// The backend's folder, with its other files.
    pub directory: PathBuf,
    /// Set for a backend written in Python.
    pub python: Option<PythonBackend>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonBackend {
    /// Replaces the configuration's `runtime`.
    pub runtime: String,
    /// The backend's own environment.
    pub environment: Option<PathBuf>,
}

impl PythonBackend {
    fn in_folder(folder: &Path) -> Self {
        let environment = Some(folder.join(PYTHON_ENVIRONMENT)).filter(|path| path.is_file());
        Self { runtime: PYTHON_FILE.to_owned(), environment }
    }
}

/// The folders searched for a model's backend, in this order: version, model, backend.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    folders: [PathBuf; 3],
    backends: PathBuf,
}

impl Places {
    /// The folders for a version of the model in `model`, with `backend` in the folder `backends`.
    pub(crate) fn new(model: &Path, version: u64, backends: &Path, backend: &str) -> Self {
        let folders = [model.join(version.to_string()), model.to_owned(), backends.join(backend)];
        Self { folders, backends: backends.to_owned() }
    }

    /// The folders that belong to the model.
    fn of_model(&self) -> &[PathBuf] {
        &self.folders[..2]
    }

    /// Whether the model has or names its own library for its backend.
    pub(crate) fn has_own_library(&self, config: &ModelConfig, backend: &str) -> bool {
        let library = Kind::BACKEND.library_name(backend);
        !config.runtime.is_empty() && config.runtime != PYTHON_FILE
            || self.of_model().iter().any(|folder| folder.join(&library).is_file())
    }

    /// Finds the backend.
    ///
    /// # Errors
    /// `InvalidArg`, with the files and folders searched.
    pub(crate) fn find(&self, config: &ModelConfig, backend: &str) -> Result<BackendFiles> {
        let runtime = config.runtime.as_str();
        let is_named = !runtime.is_empty() && runtime != PYTHON_FILE;
        if is_named && !is_file_name(runtime) {
            return Err(Error::invalid_arg(format!(
                "model '{}': runtime '{runtime}' is not a file name",
                config.name
            )));
        }
        let file = if is_named { runtime.to_owned() } else { Kind::BACKEND.library_name(backend) };
        let in_python = SearchPath::in_directory(&self.backends, backend);
        let missing = if runtime == PYTHON_FILE {
            in_python.find(PYTHON_FILE).err()
        } else {
            match SearchPath::new(self.folders.to_vec()).find(&file) {
                Ok(found) => {
                    return Ok(BackendFiles {
                        library: found.library,
                        directory: found.folder,
                        python: None,
                    });
                }
                Err(error) => Some(error),
            }
        };
        if !is_named
            && backend != PYTHON
            && let Ok(found) = in_python.find(PYTHON_FILE)
        {
            return self.python_backend(found.folder, backend);
        }
        let missing =
            missing.map_or_else(|| format!("'{PYTHON}' is not written in Python"), |error| error.to_string());
        let missing = if is_named { format!("model '{}': {missing}", config.name) } else { missing };
        let hint = if file == Kind::BACKEND.library_name(PYTHON) { PYTHON_HINT } else { "" };
        let missing = missing + hint;
        Err(Error::invalid_arg(missing))
    }

    /// The backend, if it has a `model.py` in its folder and no library.
    pub(crate) fn written_in_python(&self, config: &ModelConfig, backend: &str) -> Option<PythonBackend> {
        let named = !config.runtime.is_empty() && config.runtime != PYTHON_FILE;
        let library = Kind::BACKEND.library_name(backend);
        let has_library =
            config.runtime.is_empty() && SearchPath::new(self.folders.to_vec()).find(&library).is_ok();
        if named || has_library || backend == PYTHON {
            return None;
        }
        let found = SearchPath::in_directory(&self.backends, backend).find(PYTHON_FILE).ok()?;
        Some(PythonBackend::in_folder(&found.folder))
    }

    /// A backend with a `model.py` in its folder, run by the backend `python`.
    fn python_backend(&self, directory: PathBuf, backend: &str) -> Result<BackendFiles> {
        let python = Kind::BACKEND.library_name(PYTHON);
        let found = SearchPath::in_directory(&self.backends, PYTHON).find(&python).map_err(|error| {
            Error::invalid_arg(format!(
                "backend '{backend}' is written in Python and needs the backend '{PYTHON}': {error}{PYTHON_HINT}"
            ))
        })?;
        let python = PythonBackend::in_folder(&directory);
        Ok(BackendFiles { library: found.library, directory, python: Some(python) })
    }

    /// The library that chooses the model's batches, if any. Models with sequences have none.
    ///
    /// # Errors
    /// The configuration names a library that does not exist, is outside the model's folder, or is for sequences.
    pub(crate) fn batcher(&self, config: &ModelConfig) -> Result<Option<PathBuf>> {
        let sequences = matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)));
        let Some(named) = config.parameters.get(BATCHER_PATH) else {
            if sequences {
                return Ok(None);
            }
            let search = SearchPath::new(self.folders.to_vec());
            return Ok(search
                .find(&Kind::BATCHING_STRATEGY.library_name(""))
                .ok()
                .map(|found| found.library));
        };
        let path = PathBuf::from(&named.string_value);
        let wrong = |reason: &str| {
            Error::invalid_arg(format!(
                "model '{}': parameter {BATCHER_PATH} names '{}', {reason}",
                config.name,
                path.display()
            ))
        };
        if sequences {
            return Err(wrong("but a library cannot choose the batches of sequences"));
        }
        let model = &self.folders[1];
        let resolved = fs::canonicalize(&path).map_err(|_| wrong("which does not exist"))?;
        let folder = fs::canonicalize(model).map_err(|_| wrong("but the model's folder does not exist"))?;
        if !resolved.starts_with(folder) {
            return Err(wrong("which is not in the model's folder"));
        }
        // Opening a FIFO would wait for another process.
        if !resolved.is_file() {
            return Err(wrong("which is not a regular file"));
        }
        Ok(Some(path))
    }
}

/// The names of the backends that are installed in this folder, ascending.
pub(crate) fn installed(backends: &Path) -> Vec<String> {
    let folders = fs::read_dir(backends).into_iter().flatten().flatten();
    let installed = folders.filter_map(|folder| {
        let name = folder.file_name().into_string().ok()?;
        let file = |file: &str| folder.path().join(file).is_file();
        (file(&Kind::BACKEND.library_name(&name)) || file(PYTHON_FILE)).then_some(name)
    });
    let mut installed: Vec<_> = installed.collect();
    installed.sort();
    installed
}

#[cfg(test)]
mod tests;
