//! Loading and unloading by request (Triton's model repository extension): parameters, and waiting for the outcome.

use nereid_backend_api::{Error, Result};
use nereid_core::{Overrides, ScopedName, Server};
use tokio::sync::oneshot;

/// Parameter of an unload request: whether to unload an ensemble's members, too.
pub const UNLOAD_DEPENDENTS: &str = "unload_dependents";

/// A parameter of a load request, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadParameter<'n> {
    /// A JSON configuration that replaces the model's own.
    Config,
    /// A file of the model's directory, with its path there.
    File(&'n str),
}

impl<'n> LoadParameter<'n> {
    /// The parameter with this name.
    ///
    /// # Errors
    /// `InvalidArg` if it is unknown.
    pub fn named(name: &'n str) -> Result<Self> {
        match name.strip_prefix("file:") {
            Some(path) => Ok(Self::File(path)),
            None if name == "config" => Ok(Self::Config),
            None => Err(Error::invalid_arg(format!(
                "unknown load parameter '{name}' (known: 'config', 'file:<version>/<name>')"
            ))),
        }
    }
}

/// Checks the name of a repository: repositories have none.
///
/// # Errors
/// `Unsupported` for a name.
pub fn check_repository(name: &str) -> Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "repository name is '{name}'; only an empty name is supported, which means all repositories"
    )))
}

/// Loads a model; returns when it is loaded.
///
/// # Errors
/// The model cannot be loaded.
pub async fn load(server: &Server, name: ScopedName<'_>, overrides: Overrides) -> Result<()> {
    let (done, outcome) = oneshot::channel();
    server.load_model(name, overrides, |result| {
        // The client may have disconnected.
        let _ = done.send(result);
    })?;
    finished(outcome).await
}

/// Unloads a model, with an ensemble's members if `with_dependents`; returns once it accepts no more requests.
///
/// # Errors
/// The model cannot be unloaded.
pub async fn unload(server: &Server, name: ScopedName<'_>, with_dependents: bool) -> Result<()> {
    let (done, outcome) = oneshot::channel();
    let done = |result| {
        let _ = done.send(result);
    };
    if with_dependents {
        server.unload_model_and_dependents(name, done)?;
    } else {
        server.unload_model(name, done)?;
    }
    finished(outcome).await
}

async fn finished(outcome: oneshot::Receiver<Result<()>>) -> Result<()> {
    outcome.await.unwrap_or_else(|_| Err(Error::internal("the task was abandoned")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_parameters_are_a_configuration_or_files() {
        assert_eq!(LoadParameter::named("config"), Ok(LoadParameter::Config));
        assert_eq!(LoadParameter::named("file:1/model.onnx"), Ok(LoadParameter::File("1/model.onnx")));
        for unknown in ["", "Config", "files:1/x", "config "] {
            assert!(LoadParameter::named(unknown).is_err(), "{unknown}");
        }
    }
}
