//! Versions of models, as clients give them.

use nereid_backend_api::{Error, Result};

/// Parses a version.
///
/// # Errors
/// `InvalidArg` if it is not a number of 64 bits.
pub fn parse_version(text: &str, model: &str) -> Result<u64> {
    text.parse().map_err(|_| {
        Error::invalid_arg(format!("model '{model}': '{text}' is not a version; expected a 64-bit integer"))
    })
}

/// The error with code `InvalidArg`: what the reference answers in some places for models it does not know.
pub fn as_invalid_arg(error: Error) -> Error {
    Error::invalid_arg(error.message().to_owned())
}
