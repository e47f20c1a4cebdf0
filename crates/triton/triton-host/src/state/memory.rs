//! Memory of a state that C may write, and that the server reads as a tensor.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use nereid_backend_api::{Buffer, Error, Result};

/// Memory that C writes while it executes a request. Its address never changes.
pub(crate) struct WritableMemory(Box<[UnsafeCell<u8>]>);

// SAFETY: this process reads and writes the bytes only through `View` and C's pointer. C writes them only while it has a
// request of the sequence, and the next request of the sequence starts after that.
unsafe impl Sync for WritableMemory {}

impl WritableMemory {
    /// New memory of `byte_size` bytes that begins with `contents`, as far as they fit. The rest is zero.
    ///
    /// # Errors
    /// `Unavailable` if the memory cannot be allocated.
    pub(crate) fn copy_of(contents: &[u8], byte_size: usize) -> Result<Arc<Self>> {
        let no_room = |_| Error::unavailable(format!("cannot allocate {byte_size} bytes"));
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(byte_size).map_err(no_room)?;
        let zeros = std::iter::repeat(&0);
        bytes.extend(contents.iter().chain(zeros).take(byte_size).map(|byte| UnsafeCell::new(*byte)));
        Ok(Arc::new(Self(bytes.into_boxed_slice())))
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The address for C.
    pub(crate) fn address(&self) -> *mut c_void {
        UnsafeCell::raw_get(self.0.as_ptr()).cast()
    }

    /// The contents as a tensor's buffer, which follows later writes.
    pub(crate) fn buffer(self: &Arc<Self>) -> Buffer {
        Buffer::host(Bytes::from_owner(View(Arc::clone(self))))
    }
}

/// Keeps the memory for readers.
struct View(Arc<WritableMemory>);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the memory lives as long as `self`. C writes it only while no other code reads it, as for a tensor in a
        // client's shared memory that a backend gets in place.
        unsafe { slice::from_raw_parts(self.0.address().cast(), self.0.len()) }
    }
}
