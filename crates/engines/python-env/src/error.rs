//! Errors of preparing an environment.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nereid_model_files::FileError;
use nereid_private_folders::UnusableFolder;

use crate::interpreter::{OLDEST, Version};

/// Why an environment cannot be prepared. The message names the path and the cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The value of `EXECUTION_ENV_PATH` does not lead to an environment.
    #[error("EXECUTION_ENV_PATH '{path}': {cause}")]
    Path {
        /// The value, with the model's folder inserted.
        path: String,
        /// The cause.
        cause: FileError,
    },
    /// The sandbox for what the environment contains cannot be prepared.
    #[error(transparent)]
    Sandbox(#[from] nereid_sandbox::Error),
    /// The folder has no script that activates it.
    #[error("{}: an environment needs a script 'bin/activate', as conda-pack and venv write it", .0.display())]
    NoActivation(PathBuf),
    /// The interpreter was not found.
    #[error(
        "no Python: '{name}' is not in {place}; install it, or name an interpreter with --backend-config=python,python=PATH"
    )]
    NoInterpreter {
        /// The program searched for.
        name: String,
        /// The places searched.
        place: String,
    },
    /// The interpreter is too old.
    #[error("{} is Python {found}; models need {}.{} or newer", .program.display(), OLDEST.0, OLDEST.1)]
    TooOld {
        /// The interpreter's path.
        program: PathBuf,
        /// The interpreter's version.
        found: Version,
    },
    /// The interpreter cannot load native modules of the stable interface.
    #[error("{} is {what}; models need CPython with the global interpreter lock", .program.display())]
    NotCPython {
        /// The interpreter's path.
        program: PathBuf,
        /// The implementation that it reports.
        what: String,
    },
    /// The interpreter does not start.
    #[error("{} does not work: {cause}", .program.display())]
    Broken {
        /// The interpreter's path.
        program: PathBuf,
        /// The interpreter's output, or its exit status.
        cause: String,
    },
    /// A script or an installer failed.
    #[error("{what} failed: {words}")]
    Failed {
        /// The command.
        what: String,
        /// The end of its output.
        words: String,
    },
    /// A script or an installer exceeded its time limit.
    #[error("{what} did not end within {} s{}", .limit.as_secs(), after(.words))]
    Slow {
        /// The command.
        what: String,
        /// The end of its output.
        words: String,
        /// The time limit.
        limit: Duration,
    },
    /// The archive is refused.
    #[error("{}: {cause}", .path.display())]
    Archive {
        /// The archive's path.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The list of requirements cannot be read.
    #[error("{}: {cause}", .path.display())]
    Requirements {
        /// The list's path.
        path: PathBuf,
        /// The cause.
        cause: FileError,
    },
    /// The cache folder cannot be used.
    #[error("cannot keep Python environments in {}: {cause}", .folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The system's error.
    #[error("{what}: {cause}")]
    Io {
        /// The failed operation, with the path.
        what: String,
        /// The cause.
        cause: io::Error,
    },
}

impl From<UnusableFolder> for Error {
    fn from(UnusableFolder { folder, cause }: UnusableFolder) -> Self {
        Self::Cache { folder, cause }
    }
}

impl Error {
    /// Whether the environment itself is damaged, so that recreating it helps.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::NoInterpreter { .. } | Self::Broken { .. } | Self::NoActivation(_))
    }

    /// Converts a system error; for `map_err`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause }
    }
}

/// Formats program output after a colon, if there is any.
fn after(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}
