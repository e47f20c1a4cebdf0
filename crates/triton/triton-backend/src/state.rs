//! Implicit states, which the server keeps between the requests of a sequence.

use std::marker::PhantomData;
use std::ptr;

use triton_sys::*;

use crate::error::{Error, Result, check};
use crate::request::Borrowed;

/// A state of the sequence that a request belongs to.
pub struct State<'r> {
    handle: *mut TRITONBACKEND_State,
    _lives: Borrowed<'r>,
}

impl State<'_> {
    /// # Safety
    /// `handle` lives as long as the value.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_State) -> Self {
        Self { handle, _lives: PhantomData }
    }

    /// Sets the state's bytes and makes them the input of the sequence's next request.
    ///
    /// # Errors
    /// `Unsupported` if the server keeps the state on a device; otherwise the server's error.
    pub fn update(self, bytes: &[u8]) -> Result<()> {
        let (mut buffer, mut kind, mut id) = (ptr::null_mut(), TRITONSERVER_MEMORY_CPU, 0);
        let length = bytes.len() as u64;
        // SAFETY: the state lives, and the addresses may be written.
        unsafe { check(TRITONBACKEND_StateBuffer(self.handle, &mut buffer, length, &mut kind, &mut id))? };
        if kind == TRITONSERVER_MEMORY_GPU {
            return Err(Error::unsupported("the server keeps this state in device memory"));
        }
        if !bytes.is_empty() {
            // SAFETY: the server returned host memory of this length, which has no other users.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
        }
        // SAFETY: the state lives.
        unsafe { check(TRITONBACKEND_StateUpdate(self.handle)) }
    }
}
