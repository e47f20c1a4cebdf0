//! Memory of the server: buffers that it lends, and reports of memory that the backend allocates itself.

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use triton_sys::*;

use crate::error::{Error, Result, check};

/// A place of memory: its kind and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Ordinary memory.
    Cpu,
    /// Memory of the host that devices can read directly.
    CpuPinned,
    /// Memory of a GPU.
    Gpu,
}

impl MemoryKind {
    fn into_c(self) -> TRITONSERVER_MemoryType {
        match self {
            Self::Cpu => TRITONSERVER_MEMORY_CPU,
            Self::CpuPinned => TRITONSERVER_MEMORY_CPU_PINNED,
            Self::Gpu => TRITONSERVER_MEMORY_GPU,
        }
    }
}

/// Memory that a model or an instance takes, for the server's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Its place.
    pub kind: MemoryKind,
    /// On which device; 0 for the host.
    pub device: i64,
    /// How much it is.
    pub byte_size: usize,
}

/// The server's memory, from which a backend may take buffers as long as it lives.
#[derive(Debug, Clone, Copy)]
pub struct MemoryManager(NonNull<TRITONBACKEND_MemoryManager>);

// SAFETY: the server's memory may be taken and given back on any thread.
unsafe impl Send for MemoryManager {}
// SAFETY: as above.
unsafe impl Sync for MemoryManager {}

impl MemoryManager {
    /// # Safety
    /// `handle` is null or lives as long as the backend.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_MemoryManager) -> Result<Self> {
        let handle = NonNull::new(handle);
        handle.map(Self).ok_or_else(|| Error::internal("the server has no memory manager"))
    }

    /// A buffer of zeroes in ordinary memory. It must be dropped before the backend is.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn allocate(&self, byte_size: usize) -> Result<ServerMemory> {
        self.allocate_in(MemoryKind::Cpu, byte_size)
    }

    /// A buffer of zeroes that devices can read directly. It must be dropped before the backend is.
    ///
    /// # Errors
    /// There is not so much of such memory, or none at all.
    pub fn allocate_pinned(&self, byte_size: usize) -> Result<ServerMemory> {
        self.allocate_in(MemoryKind::CpuPinned, byte_size)
    }

    fn allocate_in(&self, kind: MemoryKind, byte_size: usize) -> Result<ServerMemory> {
        let mut buffer = ptr::null_mut();
        // SAFETY: the manager lives, and the address may be written. What the server gives is host memory of that size
        // and ours alone, which is set before anybody reads it.
        unsafe {
            check(TRITONBACKEND_MemoryManagerAllocate(
                self.0.as_ptr(),
                &mut buffer,
                kind.into_c(),
                0,
                byte_size as u64,
            ))?;
            let start = NonNull::new(buffer.cast::<u8>());
            if let Some(start) = start {
                start.write_bytes(0, byte_size);
            } else if byte_size > 0 {
                return Err(Error::internal(format!("the server returned no memory for {byte_size} bytes")));
            }
            Ok(ServerMemory { manager: *self, kind, start, byte_size })
        }
    }
}

/// A buffer of the server's memory, which goes back when it is dropped.
pub struct ServerMemory {
    manager: MemoryManager,
    kind: MemoryKind,
    /// Nothing where there are no bytes and the server gave no address.
    start: Option<NonNull<u8>>,
    byte_size: usize,
}

// SAFETY: the bytes are the buffer's alone, and the server takes them back on any thread.
unsafe impl Send for ServerMemory {}
// SAFETY: as above; shared, they are only read.
unsafe impl Sync for ServerMemory {}

impl fmt::Debug for ServerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {:?}", self.byte_size, self.kind)
    }
}

impl Deref for ServerMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this many bytes exist, are initialized, and are changed through this buffer only.
        self.start.map_or(&[], |start| unsafe { slice::from_raw_parts(start.as_ptr(), self.byte_size) })
    }
}

impl DerefMut for ServerMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed alone.
        self.start
            .map_or(&mut [], |start| unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.byte_size) })
    }
}

impl Drop for ServerMemory {
    fn drop(&mut self) {
        let Some(start) = self.start else { return };
        // SAFETY: the manager lives, the address came from it, and nobody uses it any more.
        let freed = unsafe {
            let (manager, start) = (self.manager.0.as_ptr(), start.as_ptr().cast::<c_void>());
            check(TRITONBACKEND_MemoryManagerFree(manager, start, self.kind.into_c(), 0))
        };
        if let Err(error) = freed {
            crate::warning!("{self:?} could not be given back: {error}");
        }
    }
}

/// Tells the server of memory, by a function that takes a list.
pub(crate) fn report(
    usage: &[MemoryUsage],
    tell: impl FnOnce(*mut *mut TRITONSERVER_BufferAttributes, u32) -> *mut TRITONSERVER_Error,
) -> Result<()> {
    let parts = usage.iter().map(Attributes::new).collect::<Result<Vec<_>>>()?;
    let mut handles: Vec<_> = parts.iter().map(|part| part.0).collect();
    let count =
        u32::try_from(handles.len()).map_err(|_| Error::invalid_argument("too many kinds of memory"))?;
    // SAFETY: the error is ours.
    unsafe { check(tell(handles.as_mut_ptr(), count)) }
}

/// One entry of such a list.
struct Attributes(*mut TRITONSERVER_BufferAttributes);

impl Attributes {
    fn new(usage: &MemoryUsage) -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: the address may be written; what the server makes is ours.
        unsafe {
            check(TRITONSERVER_BufferAttributesNew(&mut handle))?;
            let made = Self(handle);
            check(TRITONSERVER_BufferAttributesSetMemoryType(handle, usage.kind.into_c()))?;
            check(TRITONSERVER_BufferAttributesSetMemoryTypeId(handle, usage.device))?;
            check(TRITONSERVER_BufferAttributesSetByteSize(handle, usage.byte_size))?;
            Ok(made)
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: they are ours and used no more. There is nothing to be done where they stay.
        drop(unsafe { check(TRITONSERVER_BufferAttributesDelete(self.0)) });
    }
}
