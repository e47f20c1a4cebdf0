//! JSON documents exchanged with the server.

use std::ptr;
use std::slice;

use serde_json::Value;
use triton_sys::*;

use crate::error::{Result, check};

/// A document that we own.
pub(crate) struct Message {
    handle: *mut TRITONSERVER_Message,
}

impl Message {
    /// # Safety
    /// The caller owns `handle` and transfers it.
    pub(crate) unsafe fn own(handle: *mut TRITONSERVER_Message) -> Self {
        Self { handle }
    }

    pub(crate) fn of(json: &Value) -> Result<Self> {
        let text = json.to_string();
        let mut handle = ptr::null_mut();
        // SAFETY: the text has this length and is copied by the server.
        unsafe {
            check(TRITONSERVER_MessageNewFromSerializedJson(&mut handle, text.as_ptr().cast(), text.len()))?
        };
        Ok(Self { handle })
    }

    pub(crate) fn handle(&self) -> *mut TRITONSERVER_Message {
        self.handle
    }

    pub(crate) fn json(&self) -> Result<Value> {
        // SAFETY: the message lives as long as this value.
        unsafe { json(self.handle) }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: the message is ours and not used after this. A failed deletion has no remedy.
        drop(unsafe { check(TRITONSERVER_MessageDelete(self.handle)) });
    }
}

/// The content of a message, owned or borrowed.
///
/// # Safety
/// `message` lives during the call.
pub(crate) unsafe fn json(message: *mut TRITONSERVER_Message) -> Result<Value> {
    let (mut base, mut length) = (ptr::null(), 0);
    // SAFETY: the message lives, and both addresses may be written.
    unsafe { check(TRITONSERVER_MessageSerializeToJson(message, &mut base, &mut length))? };
    if base.is_null() || length == 0 {
        return Ok(Value::Null);
    }
    // SAFETY: the server guarantees this many bytes, alive as long as the message.
    let text = unsafe { slice::from_raw_parts(base.cast::<u8>(), length) };
    Ok(serde_json::from_slice(text)?)
}
