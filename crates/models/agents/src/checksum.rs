//! The agent `checksum`: refuses models whose files are not the expected ones.
//!
//! The parameters are `MD5:<file>`, as of Triton's agent, `SHA256:<file>` and `BLAKE3:<file>` with the digest as value; and
//! `MINISIGN:<manifest>` with a public key of minisign, for a signed list of the model's files.

mod digest;
mod manifest;

use std::path::Path;

use nereid_core::backend_api::{Error, ErrorCode, Result};
use nereid_core::{AgentAction, AgentContext, AgentModel, ModelLocation, RepositoryAgent};
use nereid_model_files as model_files;

use self::digest::Algorithm;

/// The agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum;

/// A model that it checks.
struct ModelCheck {
    location: ModelLocation,
    parameters: Vec<(String, String)>,
}

impl RepositoryAgent for Checksum {
    fn begin(&self, context: AgentContext) -> Result<Box<dyn AgentModel>> {
        let AgentContext { location, parameters, .. } = context;
        Ok(Box::new(ModelCheck { location, parameters }))
    }

    fn needs_files(&self) -> bool {
        true
    }
}

impl AgentModel for ModelCheck {
    fn act(&self, action: AgentAction) -> Result<()> {
        match (action, &self.location) {
            (AgentAction::Load, ModelLocation::Folder(folder)) => {
                self.parameters.iter().try_for_each(|(name, value)| check(folder, name, value))
            }
            (AgentAction::Load, ModelLocation::Remote(address)) => Err(Error::unsupported(format!(
                "'{address}' is not on this machine, so that it can be checked"
            ))),
            _ => Ok(()),
        }
    }

    fn location(&self) -> ModelLocation {
        self.location.clone()
    }
}

/// Checks one parameter.
fn check(folder: &Path, name: &str, value: &str) -> Result<()> {
    let Some((what, file)) = name.split_once(':').filter(|(_, file)| !file.is_empty()) else {
        return Err(Error::invalid_arg(format!("'{name}' is not of the form ALGORITHM:FILE")));
    };
    if what.eq_ignore_ascii_case("minisign") {
        return manifest::check(folder, file, value);
    }
    let algorithm = Algorithm::parse(what).ok_or_else(|| {
        let message = format!("unknown checksum algorithm '{what}' (known: MD5, SHA256, BLAKE3, MINISIGN)");
        Error::new(ErrorCode::Unsupported, message)
    })?;
    check_file(folder, file, algorithm, value)
}

/// Checks that a file of the model has this digest, in hexadecimal digits.
fn check_file(folder: &Path, file: &str, algorithm: Algorithm, expected: &str) -> Result<()> {
    let path = model_files::inside(folder, file);
    let digest = path.and_then(|path| model_files::open(&path)).map_err(|error| error.to_string());
    let digest = digest.and_then(|file| algorithm.digest(file).map_err(|error| error.to_string()));
    let digest = digest.map_err(|error| Error::invalid_arg(format!("cannot check '{file}': {error}")))?;
    if digest.eq_ignore_ascii_case(expected.trim()) {
        return Ok(());
    }
    Err(Error::invalid_arg(format!("'{file}' has {algorithm} {digest}, expected {expected}")))
}

#[cfg(test)]
mod tests;
