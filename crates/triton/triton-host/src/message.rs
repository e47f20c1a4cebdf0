//! JSON documents exchanged with C.

use std::sync::Arc;

use nereid_backend_api::{Error, Result};
use serde_json::value::RawValue;

use crate::boundary::exports;
use std::ffi::c_char;
use triton_sys::*;

/// A JSON document.
pub(crate) struct Message(String);

impl Message {
    /// A document created by the server.
    pub(crate) fn new(json: impl Into<String>) -> Arc<Self> {
        Arc::new(Self(json.into()))
    }

    pub(crate) fn json(&self) -> &str {
        &self.0
    }
}

/// The document in a text.
pub(crate) fn parse(text: Vec<u8>) -> Result<Message> {
    let text = String::from_utf8(text).map_err(|_| Error::invalid_arg("the message is not UTF-8"))?;
    serde_json::from_str::<&RawValue>(&text)
        .map_err(|error| Error::invalid_arg(format!("the message is not JSON: {error}")))?;
    Ok(Message(text))
}

exports! {
    fn TRITONSERVER_MessageNewFromSerializedJson(
        message: *mut *mut TRITONSERVER_Message,
        base: *const c_char,
        byte_size: usize,
    ) {
        let parsed = parse(base.bytes(byte_size as u64)?)?;
        message.give(Arc::new(parsed))?;
    }

    fn TRITONSERVER_MessageDelete(message: *mut TRITONSERVER_Message) {
        message.delete()?;
    }

    fn TRITONSERVER_MessageSerializeToJson(
        message: *mut TRITONSERVER_Message,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) {
        let message = message.get()?;
        base.set(message.0.as_ptr().cast())?;
        byte_size.set(message.0.len())?;
    }
}
