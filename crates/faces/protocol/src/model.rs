//! Models and their versions, as clients name them.

use nereid_backend_api::{Error, Result};
use nereid_core::{RequestHead, ResolvedModel, ScopedName, Server};

/// Parses a version.
///
/// # Errors
/// `InvalidArg` if it is not a number of 64 bits.
pub fn parse_version(text: &str, model: &str) -> Result<u64> {
    text.parse().map_err(|_| {
        Error::invalid_arg(format!("model '{model}': '{text}' is not a version; expected a 64-bit integer"))
    })
}

/// The head of a request, from its headers. Values that are not UTF-8 have replacement characters.
pub fn request_head<'h>(headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> RequestHead {
    headers.into_iter().map(|(name, value)| (name, String::from_utf8_lossy(value))).collect()
}

/// Resolves a model that returns exactly one response to each request.
///
/// # Errors
/// The model cannot be resolved, or is decoupled; `streaming` names the API for such models.
pub async fn resolve_single(
    server: &Server,
    name: ScopedName<'_>,
    version: Option<u64>,
    head: impl FnOnce() -> RequestHead,
    streaming: &str,
) -> Result<ResolvedModel> {
    let model = server.resolve_with(name, version, head).await?;
    if model.is_decoupled() {
        return Err(Error::unsupported(format!(
            "model '{name}': this call doesn't support models with decoupled transaction policy, which return any \
             number of responses; use {streaming}"
        )));
    }
    Ok(model)
}

/// The error with code `InvalidArg`, which the reference answers in some places for unknown models.
pub fn as_invalid_arg(error: Error) -> Error {
    Error::invalid_arg(error.message().to_owned())
}
