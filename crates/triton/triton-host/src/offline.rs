//! Parses texts like the C functions, without C, for the fuzz target and the test that replays its corpus. Not meant
//! for anything else.

use std::ffi::CString;

use nereid_backend_api::{ModelConfig, Result};

/// The JSON document in the bytes of `TRITONSERVER_MessageNewFromSerializedJson`.
///
/// # Errors
/// The bytes are not a JSON document.
pub fn message(bytes: &[u8]) -> Result<String> {
    crate::message::parse(bytes.to_vec()).map(|message| message.json().to_owned())
}

/// The configuration of a model after `TRITONBACKEND_ModelSetConfig` with this document.
///
/// # Errors
/// The document is not a configuration, or is another model's.
pub fn completed(config: &ModelConfig, json: &str) -> Result<ModelConfig> {
    crate::model::completed(config, json)
}

/// A name or a value of the server as C reads it.
pub fn text(text: &str) -> CString {
    crate::text::c_string(text)
}
