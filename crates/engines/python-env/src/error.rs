//! Why a model gets no environment.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nereid_model_files::FileError;

use crate::interpreter::{OLDEST, Version};

/// Why a model gets no environment. The display names the path and the cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The value of `EXECUTION_ENV_PATH` leads to nothing that is an environment.
    #[error("EXECUTION_ENV_PATH '{path}': {cause}")]
    Path {
        /// The value, with the model's folder in it.
        path: String,
        /// The cause.
        cause: FileError,
    },
    /// The folder has no script that activates it.
    #[error("{}: an environment needs a script 'bin/activate', as conda-pack and venv write it", .0.display())]
    NoActivation(PathBuf),
    /// There is no interpreter.
    #[error(
        "no Python: '{name}' is not in {place}; install it, or name an interpreter with --backend-config=python,python=PATH"
    )]
    NoInterpreter {
        /// What was looked for.
        name: String,
        /// Where.
        place: String,
    },
    /// The interpreter is too old.
    #[error("{} is Python {found}; models need {}.{} or newer", .program.display(), OLDEST.0, OLDEST.1)]
    TooOld {
        /// Its path.
        program: PathBuf,
        /// Its version.
        found: Version,
    },
    /// The interpreter cannot load native modules of the stable interface.
    #[error("{} is {what}; models need CPython with the global interpreter lock", .program.display())]
    NotCPython {
        /// Its path.
        program: PathBuf,
        /// What it is.
        what: String,
    },
    /// The interpreter does not start.
    #[error("{} does not work: {cause}", .program.display())]
    Broken {
        /// Its path.
        program: PathBuf,
        /// What it wrote, or how it ended.
        cause: String,
    },
    /// A script or an installer failed.
    #[error("{what} failed: {words}")]
    Failed {
        /// What was run.
        what: String,
        /// Its last words.
        words: String,
    },
    /// A script or an installer did not end in time.
    #[error("{what} did not end within {} s{}", .limit.as_secs(), after(.words))]
    Slow {
        /// What was run.
        what: String,
        /// Its last words.
        words: String,
        /// The time it had.
        limit: Duration,
    },
    /// The archive is refused.
    #[error("{}: {cause}", .path.display())]
    Archive {
        /// Its path.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The list of requirements cannot be read.
    #[error("{}: {cause}", .path.display())]
    Requirements {
        /// Its path.
        path: PathBuf,
        /// Why.
        cause: FileError,
    },
    /// The cache folder cannot be used.
    #[error("cannot keep Python environments in {}: {cause}", .folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// Why.
        cause: String,
    },
    /// The system's error.
    #[error("{what}: {cause}")]
    Io {
        /// What was done, with the path.
        what: String,
        /// The cause.
        cause: io::Error,
    },
}

impl Error {
    /// Whether the environment itself is damaged, so that making it again helps.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::NoInterpreter { .. } | Self::Broken { .. } | Self::NoActivation(_))
    }

    /// For `map_err` of calls of the system.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause }
    }
}

/// Last words behind a colon, if there are any.
fn after(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}
