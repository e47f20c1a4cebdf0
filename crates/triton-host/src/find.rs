//! Where a model's backend lies: the rules of the reference.

use std::fs;
use std::path::{Component, Path, PathBuf};

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_model_config::proto::model_config::SchedulingChoice;

/// A backend in Python has this file in the place of a library; the library is then that of the backend `python`.
const PYTHON_FILE: &str = "model.py";
const PYTHON: &str = "python";
/// A backend in Python may bring what it needs along, in a file of this name.
const PYTHON_ENVIRONMENT: &str = "pb_exec_env_model.py.tar.gz";
/// The name of a library that chooses batches, where it is not named otherwise.
const BATCHER: &str = "batchstrategy.so";
/// The parameter of a configuration that names it otherwise.
const BATCHER_PATH: &str = "TRITON_BATCH_STRATEGY_PATH";

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub library: PathBuf,
    /// Where the backend looks for what else it needs.
    pub directory: PathBuf,
    /// Set for a backend that is written in Python.
    pub python: Option<PythonBackend>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonBackend {
    /// What the configuration names as `runtime` from then on.
    pub runtime: String,
    /// What it brings along.
    pub environment: Option<PathBuf>,
}

/// The folders in which a model's backend is looked for, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    folders: Vec<PathBuf>,
    backends: PathBuf,
}

impl Places {
    /// For a version of a model in `model`, whose backend is `backend` in the folder of `backends`.
    pub(crate) fn new(model: &Path, version: u64, backends: &Path, backend: &str) -> Self {
        let folders = vec![model.join(version.to_string()), model.to_owned(), backends.join(backend)];
        Self { folders, backends: backends.to_owned() }
    }

    /// The folders that belong to the model.
    fn of_model(&self) -> &[PathBuf] {
        &self.folders[..2]
    }

    /// The model's own library for its backend, if it brings one or names one.
    pub(crate) fn brings_its_own(&self, config: &ModelConfig, backend: &str) -> bool {
        let library = library_name(backend);
        !config.runtime.is_empty() && config.runtime != PYTHON_FILE
            || self.of_model().iter().any(|folder| folder.join(&library).is_file())
    }

    /// The backend.
    ///
    /// # Errors
    /// `InvalidArg` that says what was looked for, and where.
    pub(crate) fn find(&self, config: &ModelConfig, backend: &str) -> Result<Found> {
        let runtime = config.runtime.as_str();
        if !runtime.is_empty() && runtime != PYTHON_FILE {
            check_runtime(runtime, &config.name)?;
            return self.library(runtime, &config.name);
        }
        let own_library = library_name(backend);
        if runtime.is_empty()
            && let Ok(found) = self.library(&own_library, &config.name)
        {
            return Ok(found);
        }
        let directory = self.backends.join(backend);
        if backend != PYTHON && directory.join(PYTHON_FILE).is_file() {
            let library = self.backends.join(PYTHON).join(library_name(PYTHON));
            if !library.is_file() {
                return Err(Error::invalid_arg(format!(
                    "the backend '{backend}' of model '{}' is written in Python, but '{}', which runs it, is not there",
                    config.name,
                    library.display()
                )));
            }
            let environment = Some(directory.join(PYTHON_ENVIRONMENT)).filter(|path| path.is_file());
            let python = Some(PythonBackend { runtime: PYTHON_FILE.to_owned(), environment });
            return Ok(Found { library, directory, python });
        }
        Err(Error::invalid_arg(format!("no '{own_library}' in {}", self.list())))
    }

    fn library(&self, name: &str, model: &str) -> Result<Found> {
        let found = self.folders.iter().find(|folder| folder.join(name).is_file());
        let directory = found.cloned().ok_or_else(|| {
            Error::invalid_arg(format!(
                "unable to find backend library '{name}' for model '{model}', searched: {}",
                self.list()
            ))
        })?;
        Ok(Found { library: directory.join(name), directory, python: None })
    }

    fn list(&self) -> String {
        let folders: Vec<_> = self.folders.iter().map(|folder| format!("'{}'", folder.display())).collect();
        folders.join(", ")
    }

    /// The library that chooses the model's batches, if there is one. There is none for batches of sequences.
    ///
    /// # Errors
    /// The configuration names one that is not there or not in the model's folder, or one for batches of sequences.
    pub(crate) fn batcher(&self, config: &ModelConfig) -> Result<Option<PathBuf>> {
        let sequences = matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)));
        let Some(named) = config.parameters.get(BATCHER_PATH) else {
            if sequences {
                return Ok(None);
            }
            return Ok(self.folders.iter().map(|folder| folder.join(BATCHER)).find(|path| path.is_file()));
        };
        let path = PathBuf::from(&named.string_value);
        let wrong = |reason: &str| {
            Error::invalid_arg(format!(
                "the parameter {BATCHER_PATH} of model '{}' names '{}', {reason}",
                config.name,
                path.display()
            ))
        };
        if sequences {
            return Err(wrong("but no library chooses the batches of sequences"));
        }
        let model = &self.folders[1];
        let resolved = fs::canonicalize(&path).map_err(|_| wrong("which is not there"))?;
        let folder = fs::canonicalize(model).map_err(|_| wrong("but the model's folder is not there"))?;
        if !resolved.starts_with(folder) {
            return Err(wrong("which is not in the model's folder"));
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
        (file(&library_name(&name)) || file(PYTHON_FILE)).then_some(name)
    });
    let mut installed: Vec<_> = installed.collect();
    installed.sort();
    installed
}

fn library_name(backend: &str) -> String {
    format!("libtriton_{backend}.so")
}

/// A runtime is the name of a file, not a way to one.
fn check_runtime(runtime: &str, model: &str) -> Result<()> {
    let mut parts = Path::new(runtime).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(()),
        _ => Err(Error::invalid_arg(format!(
            "the runtime '{runtime}' of model '{model}' leads out of the folders of backends; it takes the name of a \
             file"
        ))),
    }
}

#[cfg(test)]
mod tests;
