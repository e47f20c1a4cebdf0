//! What all readers of JSON bodies share: where the text begins, and the errors.
//!
//! As in the reference, what cannot be parsed is an `Internal` error on every route. Text that is not UTF-8 is not JSON,
//! but the reference reads it, and refuses unknown names in it with `InvalidArg`.

use std::fmt::Display;

use jiter::{JiterError, JiterErrorType, JsonErrorType};
use nereid_core::backend_api::Error;

/// A body's text, without a byte-order mark before it.
pub(crate) fn text(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
}

/// The error for malformed JSON.
pub(crate) fn malformed(error: impl Display) -> Error {
    Error::internal(format!("cannot parse the request's JSON: {error}"))
}

/// The error for text that is not UTF-8.
pub(crate) fn not_utf8() -> Error {
    Error::invalid_arg("the request's JSON is not valid UTF-8")
}

/// The error of the reader.
pub(crate) fn syntax(error: JiterError) -> Error {
    match error.error_type {
        JiterErrorType::JsonError(JsonErrorType::InvalidUnicodeCodePoint) => not_utf8(),
        _ => malformed(error),
    }
}
