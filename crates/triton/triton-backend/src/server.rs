//! The server: functions that a model may call.

use std::ffi::CString;
use std::ptr;

use serde_json::Value;
use triton_sys::*;

use crate::error::{Result, c_string, check};
use crate::infer::{InferRequest, Responses};
use crate::message::Message;

/// The server that loaded the backend. Clones must not be used after the backend's models are unloaded.
#[derive(Clone)]
pub struct Server {
    handle: *mut TRITONSERVER_Server,
}

// SAFETY: all functions of the server may be called from any thread.
unsafe impl Send for Server {}
// SAFETY: as above.
unsafe impl Sync for Server {}

impl Server {
    /// # Safety
    /// The server outlives the value.
    pub(crate) unsafe fn new(handle: *mut TRITONSERVER_Server) -> Self {
        Self { handle }
    }

    pub(crate) fn handle(&self) -> *mut TRITONSERVER_Server {
        self.handle
    }

    /// Starts an inference with any model of the server. Reading the responses blocks. A model that waits for itself,
    /// with all its instances doing so, waits forever.
    ///
    /// # Errors
    /// The request does not fit the model, or the model is not ready.
    pub fn infer(&self, request: InferRequest) -> Result<Responses> {
        request.start(self)
    }

    /// Whether a model is ready; `None` checks the newest version.
    ///
    /// # Errors
    /// The server's error, such as `NotFound`.
    pub fn is_model_ready(&self, name: &str, version: Option<u32>) -> Result<bool> {
        let name = c_string(name)?;
        let mut ready = false;
        // SAFETY: the server lives, the name ends with a zero, and the address may be written.
        unsafe {
            check(TRITONSERVER_ServerModelIsReady(self.handle, name.as_ptr(), number(version), &mut ready))?;
        }
        Ok(ready)
    }

    /// The server's name, version and extensions, as JSON.
    ///
    /// # Errors
    /// The server's error.
    pub fn metadata(&self) -> Result<Value> {
        // SAFETY: the server lives, and the address may be written.
        answer(|message| unsafe { TRITONSERVER_ServerMetadata(self.handle, message) })
    }

    /// A model's inputs, outputs and versions, as JSON.
    ///
    /// # Errors
    /// The server's error, such as `NotFound`.
    pub fn model_metadata(&self, name: &str, version: Option<u32>) -> Result<Value> {
        let name = c_string(name)?;
        // SAFETY: the server lives, the name ends with a zero, and the address may be written.
        answer(|message| unsafe {
            TRITONSERVER_ServerModelMetadata(self.handle, name.as_ptr(), number(version), message)
        })
    }

    /// A model's statistics, as JSON.
    ///
    /// # Errors
    /// The server's error, such as `NotFound`.
    pub fn model_statistics(&self, name: &str, version: Option<u32>) -> Result<Value> {
        let name = c_string(name)?;
        // SAFETY: the server lives, the name ends with a zero, and the address may be written.
        answer(|message| unsafe {
            TRITONSERVER_ServerModelStatistics(self.handle, name.as_ptr(), number(version), message)
        })
    }

    /// Loads a model, and waits for it.
    ///
    /// # Errors
    /// The reason why the model could not be loaded; `Unavailable` if the server does not allow models to be
    /// controlled.
    pub fn load_model(&self, name: &str) -> Result<()> {
        self.control(name, TRITONSERVER_ServerLoadModel)
    }

    /// Unloads a model, without waiting until it is unloaded.
    ///
    /// # Errors
    /// The server's error.
    pub fn unload_model(&self, name: &str) -> Result<()> {
        self.control(name, TRITONSERVER_ServerUnloadModel)
    }

    fn control(
        &self,
        name: &str,
        call: unsafe extern "C" fn(
            *mut TRITONSERVER_Server,
            *const std::ffi::c_char,
        ) -> *mut TRITONSERVER_Error,
    ) -> Result<()> {
        let name: CString = c_string(name)?;
        // SAFETY: the server lives, and the name ends with a zero.
        unsafe { check(call(self.handle, name.as_ptr())) }
    }
}

/// A version in C's form: -1 leaves the choice to the server.
pub(crate) fn number(version: Option<u32>) -> i64 {
    version.map_or(-1, i64::from)
}

/// A document that the server creates for us.
fn answer(get: impl FnOnce(*mut *mut TRITONSERVER_Message) -> *mut TRITONSERVER_Error) -> Result<Value> {
    let mut message = ptr::null_mut();
    // SAFETY: the error is ours; without an error, the message is ours.
    unsafe {
        check(get(&mut message))?;
        Message::own(message).json()
    }
}
