//! The Python environments of models: which interpreter runs a model, and with which variables.
//!
//! A model gets, in this order,
//!
//! 1. the environment that its parameter `EXECUTION_ENV_PATH` names: a folder, or an archive as conda-pack writes it, which
//!    is unpacked once for each content;
//! 2. an environment with what the `requirements.txt` beside its configuration lists, which is made once for each content
//!    and interpreter;
//! 3. the server's interpreter: the one that its options name, that of the active virtual environment, or `python3`.
//!
//! Unpacked and installed environments are kept in a cache folder that several servers may share. Knows nothing of the
//! server, of models but their folder, and of what runs in the interpreter.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

mod activation;
mod archive;
mod cache;
mod command;
mod error;
mod interpreter;
mod requested;
mod requirements;

pub use archive::ArchiveLimits;
pub use cache::{InUse, cache_folder};
pub use error::Error;
pub use interpreter::{OLDEST, Version};

use cache::{Cache, Digests};
use interpreter::Interpreter;
use requested::NamedEnvironment;

/// What holds for all models of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The interpreter of models that name no environment: a program, by path or by name, or the folder of an environment.
    pub interpreter: Option<PathBuf>,
    /// The folder of the virtual environment that the server was started in.
    pub active: Option<PathBuf>,
    /// Where unpacked and installed environments are kept; none stands for a folder of the user's cache.
    pub cache: Option<PathBuf>,
    /// Whether a `requirements.txt` beside a model's configuration is installed.
    pub installs_requirements: bool,
    /// How large an archive may become.
    pub archives: ArchiveLimits,
    /// How long the script that activates an environment may take.
    pub activation: Duration,
    /// How long one step of an installation may take.
    pub installation: Duration,
}

impl Default for Settings {
    /// Takes the active environment from the variable `VIRTUAL_ENV`.
    fn default() -> Self {
        Self {
            interpreter: None,
            active: std::env::var_os("VIRTUAL_ENV").filter(|folder| !folder.is_empty()).map(PathBuf::from),
            cache: None,
            installs_requirements: true,
            archives: ArchiveLimits::default(),
            activation: Duration::from_secs(60),
            installation: Duration::from_secs(3600),
        }
    }
}

/// What a model asks for.
#[derive(Clone, Copy, Debug)]
pub struct Requested<'a> {
    /// The model's folder, which has its configuration and versions.
    pub model_folder: &'a Path,
    /// The parameter `EXECUTION_ENV_PATH` of its configuration.
    pub execution_env_path: Option<&'a str>,
}

/// How to run a model's Python.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The interpreter's program, as an absolute path.
    pub interpreter: PathBuf,
    /// The interpreter's version.
    pub version: Version,
    /// Variables that differ from the server's: their values, or none for those to remove.
    pub variables: Vec<(OsString, Option<OsString>)>,
    /// What it is and where it comes from, for the log.
    pub origin: String,
    /// Keeps it in the cache, if it is there.
    pub in_use: Option<Arc<InUse>>,
}

/// The environments of a server's models. Remembers which archives it has read, so that a reload reads none again.
#[derive(Debug)]
pub struct Environments {
    settings: Settings,
    digests: Digests,
}

impl Environments {
    /// Nothing is looked up or created before the first model needs it.
    pub fn new(settings: Settings) -> Self {
        Self { settings, digests: Digests::default() }
    }

    /// The environment of a model. Blocks, for minutes if something has to be unpacked or installed; what takes long is
    /// reported as lines of text to `progress`.
    ///
    /// # Errors
    /// There is no such environment, it cannot be made, or its interpreter cannot run models. An environment that could not
    /// be made leaves nothing behind.
    pub fn prepare(&self, model: &Requested<'_>, progress: &dyn Fn(&str)) -> Result<Environment, Error> {
        let parameter = model.execution_env_path.filter(|path| !path.is_empty());
        if let Some(parameter) = parameter {
            return self.named(parameter, model.model_folder, progress);
        }
        if self.settings.installs_requirements
            && let Some(text) = requirements::read(model.model_folder)?
        {
            return self.installed(&text, model.model_folder, progress);
        }
        let (interpreter, origin) = interpreter::of_server(&self.settings)?;
        Ok(interpreter.into_environment(Vec::new(), origin))
    }

    /// What `EXECUTION_ENV_PATH` names.
    fn named(&self, parameter: &str, model: &Path, progress: &dyn Fn(&str)) -> Result<Environment, Error> {
        match requested::resolve(parameter, model)? {
            NamedEnvironment::Folder(folder) => {
                let origin = format!("the environment {}", folder.display());
                self.activated(&folder, origin)
            }
            NamedEnvironment::Archive(archive) => {
                let cache = self.cache()?;
                let digest = self.digests.of(&archive)?;
                let limits = self.settings.archives;
                let unpack =
                    |folder: &Path, _: &File| archive::unpack(&archive, &digest, folder, limits, progress);
                let origin =
                    |folder: &Path| format!("{}, unpacked to {}", archive.display(), folder.display());
                let entry = cache.entry(&format!("archive-{digest}"));
                entry.with(&unpack, progress, &|folder| self.activated(folder, origin(folder))).map(kept)
            }
        }
    }

    /// An environment with a folder and a script that activates it.
    fn activated(&self, folder: &Path, origin: String) -> Result<Environment, Error> {
        let variables = activation::run(folder, self.settings.activation)?;
        let interpreter = match Interpreter::in_environment(folder) {
            Some(program) => Interpreter::probe(&program, &variables)?,
            // As with NVIDIA's backend, an environment may consist of variables alone.
            None => match activation::search_path(&variables)
                .and_then(|path| interpreter::find("python3", &path))
            {
                Some(program) => Interpreter::probe(&program, &variables)?,
                None => interpreter::of_server(&self.settings)?.0,
            },
        };
        Ok(interpreter.into_environment(variables, origin))
    }

    /// What a `requirements.txt` lists.
    fn installed(&self, text: &str, model: &Path, progress: &dyn Fn(&str)) -> Result<Environment, Error> {
        let (base, _) = interpreter::of_server(&self.settings)?;
        let cache = self.cache()?;
        let key = requirements::key(text, model, &base);
        let install = |folder: &Path, lock: &File| {
            requirements::install(model, &base, folder, lock, self.settings.installation, progress)
        };
        let opened = cache.entry(&key).with(&install, progress, &|folder| {
            let variables = requirements::variables(folder);
            let program = Interpreter::in_environment(folder).ok_or_else(|| Error::NoInterpreter {
                name: "bin/python3".to_owned(),
                place: format!("the environment {}", folder.display()),
            })?;
            let interpreter = Interpreter::probe(&program, &variables)?;
            let origin = format!(
                "an environment with {} in {}",
                model.join(requirements::FILE).display(),
                folder.display()
            );
            Ok(interpreter.into_environment(variables, origin))
        });
        opened.map(kept)
    }

    fn cache(&self) -> Result<Cache, Error> {
        Ok(Cache::new(match &self.settings.cache {
            Some(folder) => folder.clone(),
            None => cache_folder("python-environments")?,
        }))
    }
}

/// An environment of the cache, which keeps it there.
fn kept((environment, in_use): (Environment, InUse)) -> Environment {
    Environment { in_use: Some(Arc::new(in_use)), ..environment }
}

#[cfg(test)]
mod tests;
