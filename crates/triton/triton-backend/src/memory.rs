//! The server's memory: buffers that it lends, and reports of memory that the backend allocates itself.

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use triton_sys::*;

use crate::error::{Error, Result, check};

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Ordinary host memory.
    Cpu,
    /// Pinned host memory, which devices access directly.
    CpuPinned,
    /// Memory of a GPU.
    Gpu,
}

impl MemoryKind {
    pub(crate) fn into_c(self) -> TRITONSERVER_MemoryType {
        match self {
            Self::Cpu => TRITONSERVER_MEMORY_CPU,
            Self::CpuPinned => TRITONSERVER_MEMORY_CPU_PINNED,
            Self::Gpu => TRITONSERVER_MEMORY_GPU,
        }
    }
}

/// Memory used by a model or an instance, for the server's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The device's number; 0 for the host.
    pub device: i64,
    /// The size in bytes.
    pub byte_size: usize,
}

/// The server's memory, which lends buffers to the backend for the backend's life.
#[derive(Debug, Clone, Copy)]
pub struct MemoryManager(NonNull<TRITONBACKEND_MemoryManager>);

// SAFETY: buffers may be allocated and freed on any thread.
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

    /// A zeroed buffer in ordinary memory. It must be dropped before the backend.
    ///
    /// # Errors
    /// The server cannot allocate that much memory.
    pub fn allocate(&self, byte_size: usize) -> Result<ServerMemory> {
        self.allocate_in(MemoryKind::Cpu, byte_size)
    }

    /// A zeroed buffer in pinned memory. It must be dropped before the backend.
    ///
    /// # Errors
    /// The server cannot allocate that much pinned memory.
    pub fn allocate_pinned(&self, byte_size: usize) -> Result<ServerMemory> {
        self.allocate_in(MemoryKind::CpuPinned, byte_size)
    }

    /// A buffer in a GPU's memory, not initialized. It must be dropped before the backend.
    ///
    /// # Errors
    /// The server has no such GPU, or its pool of that memory is used up.
    pub fn allocate_on_device(&self, device_id: i64, byte_size: usize) -> Result<DeviceMemory> {
        let place = Place { kind: MemoryKind::Gpu, device_id };
        Ok(DeviceMemory(Lent::allocate(*self, place, byte_size)?))
    }

    fn allocate_in(&self, kind: MemoryKind, byte_size: usize) -> Result<ServerMemory> {
        let lent = Lent::allocate(*self, Place { kind, device_id: 0 }, byte_size)?;
        if let Some(start) = lent.start {
            // SAFETY: the server returned host memory of this size, which nothing else uses.
            unsafe { start.write_bytes(0, byte_size) };
        }
        Ok(ServerMemory(lent))
    }
}

#[derive(Debug, Clone, Copy)]
struct Place {
    kind: MemoryKind,
    device_id: i64,
}

/// A block of the server's memory, returned to the server when dropped.
struct Lent {
    manager: MemoryManager,
    place: Place,
    /// `None` if the block is empty and the server returned no address.
    start: Option<NonNull<u8>>,
    byte_size: usize,
}

// SAFETY: only this block refers to the bytes, and the server accepts them back on any thread.
unsafe impl Send for Lent {}
// SAFETY: as above; shared, they are only read.
unsafe impl Sync for Lent {}

impl Lent {
    fn allocate(manager: MemoryManager, place: Place, byte_size: usize) -> Result<Self> {
        let mut buffer = ptr::null_mut();
        let kind = place.kind.into_c();
        // SAFETY: the manager lives, and the address may be written.
        unsafe {
            check(TRITONBACKEND_MemoryManagerAllocate(
                manager.0.as_ptr(),
                &mut buffer,
                kind,
                place.device_id,
                byte_size as u64,
            ))?;
        }
        let start = NonNull::new(buffer.cast::<u8>());
        if start.is_none() && byte_size > 0 {
            return Err(Error::internal(format!("the server returned no memory for {byte_size} bytes")));
        }
        Ok(Self { manager, place, start, byte_size })
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {:?}", self.byte_size, self.place.kind)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(start) = self.start else { return };
        // SAFETY: the manager lives, the address came from it, and is not used after this.
        let freed = unsafe {
            let (manager, start) = (self.manager.0.as_ptr(), start.as_ptr().cast::<c_void>());
            let Place { kind, device_id } = self.place;
            check(TRITONBACKEND_MemoryManagerFree(manager, start, kind.into_c(), device_id))
        };
        if let Err(error) = freed {
            crate::warning!("{self:?} could not be given back: {error}");
        }
    }
}

/// A buffer in the server's memory, returned to the server when dropped.
#[derive(Debug)]
pub struct ServerMemory(Lent);

impl Deref for ServerMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this many bytes exist, are initialized, and are changed through this buffer only.
        self.0.start.map_or(&[], |start| unsafe { slice::from_raw_parts(start.as_ptr(), self.0.byte_size) })
    }
}

impl DerefMut for ServerMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed exclusively.
        self.0
            .start
            .map_or(&mut [], |start| unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.0.byte_size) })
    }
}

/// A buffer in a GPU's memory, returned to the server when dropped.
#[derive(Debug)]
pub struct DeviceMemory(Lent);

impl DeviceMemory {
    /// The device address; 0 if the buffer is empty.
    pub fn address(&self) -> usize {
        self.0.start.map_or(0, |start| start.addr().get())
    }

    /// The number of bytes.
    pub fn byte_size(&self) -> usize {
        self.0.byte_size
    }

    /// The device's number.
    pub fn device_id(&self) -> i64 {
        self.0.place.device_id
    }
}

/// Reports memory to the server through a function that takes a list.
pub(crate) fn report(
    usage: &[MemoryUsage],
    call: impl FnOnce(*mut *mut TRITONSERVER_BufferAttributes, u32) -> *mut TRITONSERVER_Error,
) -> Result<()> {
    let parts = usage.iter().map(Attributes::new).collect::<Result<Vec<_>>>()?;
    let mut handles: Vec<_> = parts.iter().map(|part| part.0).collect();
    let count =
        u32::try_from(handles.len()).map_err(|_| Error::invalid_argument("too many kinds of memory"))?;
    // SAFETY: the error is ours.
    unsafe { check(call(handles.as_mut_ptr(), count)) }
}

/// One entry of the list.
struct Attributes(*mut TRITONSERVER_BufferAttributes);

impl Attributes {
    fn new(usage: &MemoryUsage) -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: the address may be written; the new attributes are ours.
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
        // SAFETY: the attributes are ours and not used after this. A failed deletion has no remedy.
        drop(unsafe { check(TRITONSERVER_BufferAttributesDelete(self.0)) });
    }
}
