//! C objects of cache entries and allocators.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Memory, Result};
use triton_sys::*;

use crate::attributes::BufferAttributes;
use crate::boundary::exports;
use crate::handle::Handle;

/// The version of `tritoncache.h`.
const VERSION: (u32, u32) = (0, 1);

/// The buffers of an entry. They belong to the cache, or to the server while an entry is stored; each is valid until
/// the cache's function returns.
#[derive(Default)]
pub(crate) struct CacheEntryObject(Mutex<Vec<EntryBuffer>>);

#[derive(Clone, Copy)]
struct EntryBuffer {
    address: usize,
    byte_size: usize,
}

impl CacheEntryObject {
    /// An entry to store.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Mutex::new(vec![EntryBuffer {
            address: bytes.as_ptr().expose_provenance(),
            byte_size: bytes.len(),
        }]))
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<EntryBuffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies between the cache's buffers and the server's.
pub(crate) struct CacheAllocator(Copies);

enum Copies {
    /// From the cache: the bytes copied.
    Reading(Mutex<Option<Vec<u8>>>),
    /// To the cache.
    Writing(Arc<Vec<u8>>),
}

impl CacheAllocator {
    pub(crate) fn reading() -> Self {
        Self(Copies::Reading(Mutex::default()))
    }

    pub(crate) fn writing(bytes: Arc<Vec<u8>>) -> Self {
        Self(Copies::Writing(bytes))
    }

    /// The bytes that the cache copied, if it copied any.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        match &self.0 {
            Copies::Reading(copied) => copied.lock().unwrap_or_else(PoisonError::into_inner).take(),
            Copies::Writing(_) => None,
        }
    }

    fn copy(&self, entry: &CacheEntryObject) -> Result<()> {
        let buffers = entry.buffers().clone();
        match &self.0 {
            Copies::Reading(copied) => {
                let mut bytes = Vec::new();
                for EntryBuffer { address, byte_size } in buffers {
                    let base = ptr::with_exposed_provenance::<u8>(address);
                    // SAFETY: the cache passed this length with the pointer, and keeps them until its function
                    // returns, which called this one.
                    bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(base, byte_size) });
                }
                *copied.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
                Ok(())
            }
            Copies::Writing(bytes) => match buffers.as_slice() {
                [target] if target.byte_size == bytes.len() => {
                    let base = ptr::with_exposed_provenance_mut::<u8>(target.address);
                    // SAFETY: as above; the cache put its own memory there. If it did not, both are the same bytes,
                    // which `copy` allows and leaves unchanged.
                    unsafe { ptr::copy(bytes.as_ptr(), base, bytes.len()) };
                    Ok(())
                }
                [target] => Err(Error::invalid_arg(format!(
                    "the entry has {} bytes, but the cache has room for {}",
                    bytes.len(),
                    target.byte_size
                ))),
                _ => Err(Error::invalid_arg("the cache changed the number of the entry's buffers")),
            },
        }
    }
}

/// The size in bytes of a buffer that a cache describes.
fn host_size(attributes: Handle<BufferAttributes>) -> Result<usize> {
    let (memory, byte_size) = attributes.get()?.place();
    if memory.is_host() && isize::try_from(byte_size).is_ok() {
        Ok(byte_size)
    } else {
        Err(Error::unsupported("a buffer of an entry must be in host memory, and no larger than that"))
    }
}

fn out_of_range(index: usize) -> Error {
    Error::invalid_arg(format!("the entry has no buffer {index}"))
}

exports! {
    fn TRITONCACHE_ApiVersion(major: *mut u32, minor: *mut u32) {
        major.set(VERSION.0)?;
        minor.set(VERSION.1)?;
    }

    fn TRITONCACHE_CacheEntryBufferCount(entry: *mut TRITONCACHE_CacheEntry, count: *mut usize) {
        count.set(entry.get()?.buffers().len())?;
    }

    fn TRITONCACHE_CacheEntryAddBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        base: *mut c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let byte_size = host_size(buffer_attributes)?;
        if base.is_null() {
            return Err(Error::invalid_arg("the address of the buffer is null"));
        }
        entry.get()?.buffers().push(EntryBuffer { address: base.expose_provenance(), byte_size });
    }

    fn TRITONCACHE_CacheEntryGetBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        index: usize,
        base: *mut *mut c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let found = entry.get()?.buffers().get(index).copied().ok_or_else(|| out_of_range(index))?;
        if !buffer_attributes.is_null() {
            buffer_attributes.get()?.describe(Memory::HOST, found.byte_size);
        }
        base.set(ptr::with_exposed_provenance_mut(found.address))?;
    }

    fn TRITONCACHE_CacheEntrySetBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        index: usize,
        new_base: *mut c_void,
        new_buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let entry = entry.get()?;
        let byte_size = match new_buffer_attributes.is_null() {
            true => None,
            false => Some(host_size(new_buffer_attributes)?),
        };
        if new_base.is_null() {
            return Err(Error::invalid_arg("the address of the buffer is null"));
        }
        let mut buffers = entry.buffers();
        let buffer = buffers.get_mut(index).ok_or_else(|| out_of_range(index))?;
        buffer.address = new_base.expose_provenance();
        buffer.byte_size = byte_size.unwrap_or(buffer.byte_size);
    }

    fn TRITONCACHE_Copy(allocator: *mut TRITONCACHE_Allocator, entry: *mut TRITONCACHE_CacheEntry) {
        allocator.get()?.copy(&*entry.get()?)?;
    }
}
