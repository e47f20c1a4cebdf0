//! The Python environments of models: which interpreter runs a model, and with which variables.
//!
//! The first of these applies to a model:
//!
//! 1. the environment named by its parameter `EXECUTION_ENV_PATH`: a folder, or an archive written by conda-pack,
//!    unpacked once per content;
//! 2. an environment with the packages in the `requirements.txt` next to its configuration, created once per content
//!    and interpreter;
//! 3. the server's interpreter: the one named by its options, else the active virtual environment's, else `python3`.
//!
//! Unpacked and installed environments are kept in a cache folder that several servers may share. This crate depends
//! neither on the server nor on the code run by the interpreter; of models it knows only their folder.

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
mod confined;
mod error;
mod interpreter;
mod requested;
mod requirements;
mod sources;

pub use archive::ArchiveLimits;
pub use cache::InUse;
pub use error::Error;
pub use interpreter::{OLDEST, Version};
pub use sources::keep_sources;

use cache::{Cache, Digests};
use interpreter::Interpreter;
use nereid_private_folders::cache_folder;
use nereid_sandbox::Policy;
use requested::NamedEnvironment;

/// Settings for all models of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The interpreter of models that name no environment: a program, by path or by name, or the folder of an environment.
    pub interpreter: Option<PathBuf>,
    /// The folder of the virtual environment that the server was started in.
    pub active: Option<PathBuf>,
    /// Folder for unpacked and installed environments; `None` for a folder in the user's cache.
    pub cache: Option<PathBuf>,
    /// Whether to install the `requirements.txt` next to a model's configuration.
    pub installs_requirements: bool,
    /// Size limits of archives.
    pub archives: ArchiveLimits,
    /// Time limit of the activation script.
    pub activation: Duration,
    /// Time limit of each installation step.
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

/// The environment requested by a model.
#[derive(Clone, Copy, Debug)]
pub struct Requested<'a> {
    /// The model's folder, which has its configuration and versions.
    pub model_folder: &'a Path,
    /// The parameter `EXECUTION_ENV_PATH` of its configuration.
    pub execution_env_path: Option<&'a str>,
    /// What the model's processes may do. What runs to prepare its environment may do no more, except for installers of its
    /// packages, which use the network.
    pub policy: &'a Policy,
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
    /// Description of the environment and its origin, for the log.
    pub origin: String,
    /// The files and folders that the interpreter reads.
    pub folders: Vec<PathBuf>,
    /// Keeps the environment's cache entry, if it has one.
    pub in_use: Option<Arc<InUse>>,
}

/// The environments of a server's models. Remembers archives' digests, so that a reload reads no archive again.
#[derive(Debug)]
pub struct Environments {
    settings: Settings,
    digests: Digests,
}

impl Environments {
    /// The first model that needs an environment triggers all lookups and creation.
    pub fn new(settings: Settings) -> Self {
        Self { settings, digests: Digests::default() }
    }

    /// Checks the interpreter of models that name no environment.
    ///
    /// # Errors
    /// The interpreter is missing or unsuitable.
    pub fn check_default(&self) -> Result<(), Error> {
        interpreter::of_server(&self.settings).map(drop)
    }

    /// Whether the default interpreter has these packages. Starts the interpreter, and imports no package.
    pub fn has_packages(&self, names: &[&str]) -> bool {
        interpreter::of_server(&self.settings).is_ok_and(|(interpreter, _)| interpreter.has_packages(names))
    }

    /// Prepares the environment of a model. Blocks, for minutes if it has to unpack or install; reports long steps as
    /// lines of text to `progress`.
    ///
    /// # Errors
    /// The environment is missing, cannot be created, or has an unsuitable interpreter. An environment that could not
    /// be created leaves nothing behind.
    pub fn prepare(&self, model: &Requested<'_>, progress: &dyn Fn(&str)) -> Result<Environment, Error> {
        let parameter = model.execution_env_path.filter(|path| !path.is_empty());
        if let Some(parameter) = parameter {
            return self.named(parameter, model, progress);
        }
        if self.settings.installs_requirements
            && let Some(text) = requirements::read(model.model_folder)?
        {
            return self.installed(&text, model, progress);
        }
        let (interpreter, origin) = interpreter::of_server(&self.settings)?;
        Ok(interpreter.into_environment(Vec::new(), origin))
    }

    /// The environment named by `EXECUTION_ENV_PATH`.
    fn named(
        &self,
        parameter: &str,
        model: &Requested<'_>,
        progress: &dyn Fn(&str),
    ) -> Result<Environment, Error> {
        match requested::resolve(parameter, model.model_folder)? {
            NamedEnvironment::Folder(folder) => {
                let origin = format!("the environment {}", folder.display());
                self.activated(&folder, origin, model.policy)
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
                entry
                    .with(&unpack, progress, &|folder| self.activated(folder, origin(folder), model.policy))
                    .map(with_entry)
            }
        }
    }

    /// An environment with a folder and a script that activates it.
    fn activated(&self, folder: &Path, origin: String, policy: &Policy) -> Result<Environment, Error> {
        let policy = confined::within(policy, folder);
        let variables = activation::run(folder, self.settings.activation, &policy)?;
        let interpreter = match Interpreter::in_environment(folder) {
            Some(program) => Interpreter::probe_within(&policy, &program, &variables)?,
            // As with NVIDIA's backend, an environment may consist of variables alone.
            None => match activation::search_path(&variables)
                .and_then(|path| interpreter::find("python3", &path))
            {
                Some(program) => Interpreter::probe_within(&policy, &program, &variables)?,
                None => interpreter::of_server(&self.settings)?.0,
            },
        };
        let mut environment = interpreter.into_environment(variables, origin);
        environment.folders.push(folder.to_owned());
        Ok(environment)
    }

    /// The environment with the packages of a `requirements.txt`.
    fn installed(
        &self,
        text: &str,
        requested: &Requested<'_>,
        progress: &dyn Fn(&str),
    ) -> Result<Environment, Error> {
        let model = requested.model_folder;
        let (base, _) = interpreter::of_server(&self.settings)?;
        let cache = self.cache()?;
        let key = requirements::key(text, model, &base);
        let install = |folder: &Path, lock: &File| {
            requirements::install(requested, &base, folder, lock, self.settings.installation, progress)
        };
        let opened = cache.entry(&key).with(&install, progress, &|folder| {
            let variables = requirements::variables(folder);
            let program = Interpreter::in_environment(folder).ok_or_else(|| Error::NoInterpreter {
                name: "bin/python3".to_owned(),
                place: format!("the environment {}", folder.display()),
            })?;
            let policy = confined::within(requested.policy, folder);
            let interpreter = Interpreter::probe_within(&policy, &program, &variables)?;
            let origin = format!(
                "an environment with {} in {}",
                model.join(requirements::FILE).display(),
                folder.display()
            );
            Ok(interpreter.into_environment(variables, origin))
        });
        opened.map(with_entry)
    }

    fn cache(&self) -> Result<Cache, Error> {
        Ok(Cache::new(match &self.settings.cache {
            Some(folder) => folder.clone(),
            None => cache_folder("python-environments")?,
        }))
    }
}

/// An environment of the cache, which keeps it there.
fn with_entry((environment, in_use): (Environment, InUse)) -> Environment {
    Environment { in_use: Some(Arc::new(in_use)), ..environment }
}

#[cfg(test)]
mod tests;
