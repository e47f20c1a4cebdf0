//! Buffer attributes: the memory and size of a buffer.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Buffer, Error, IpcHandle, Memory, MemoryUsage, Result};
use triton_sys::*;

use crate::boundary::{Out, exports};
use crate::handle::Handle;
use crate::names::{memory_from_c, memory_to_c};

/// Attributes of a buffer.
pub(crate) struct BufferAttributes {
    place: Mutex<(Memory, usize)>,
    /// CUDA IPC handle. Owned by the caller, who keeps it as long as this, or by the buffer.
    cuda_ipc_handle: AtomicPtr<c_void>,
    /// Keeps the buffer's IPC handle alive.
    _of: Option<Buffer>,
}

impl BufferAttributes {
    pub(crate) fn new(memory: Memory, byte_size: usize) -> Arc<Self> {
        let place = Mutex::new((memory, byte_size));
        Arc::new(Self { place, cuda_ipc_handle: AtomicPtr::default(), _of: None })
    }

    pub(crate) fn of(buffer: &Buffer) -> Arc<Self> {
        let handle = buffer.as_device().and_then(|device| device.owner.ipc_handle());
        let handle = handle.map_or(ptr::null_mut(), |handle| ptr::from_ref(handle).cast_mut().cast());
        let place = Mutex::new((buffer.memory(), buffer.len()));
        Arc::new(Self { place, cuda_ipc_handle: AtomicPtr::new(handle), _of: Some(buffer.clone()) })
    }

    /// CUDA IPC handle, if set and the memory is a GPU's.
    pub(crate) fn ipc_handle(&self) -> Option<IpcHandle> {
        let handle = self.cuda_ipc_handle.load(Relaxed).cast::<IpcHandle>();
        let is_given = !handle.is_null() && !self.place().0.is_host();
        // SAFETY: callers set null or a handle, which they keep as long as the attributes; handles need no alignment.
        is_given.then(|| unsafe { handle.read_unaligned() })
    }

    /// Sets the memory and size of the buffer.
    pub(crate) fn describe(&self, memory: Memory, byte_size: usize) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = (memory, byte_size);
    }

    pub(crate) fn place(&self) -> (Memory, usize) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Memory, &mut usize) -> Result<()>) -> Result<()> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let (memory, byte_size) = &mut *place;
        change(memory, byte_size)
    }
}

/// The address of a buffer.
pub(crate) fn address(buffer: &Buffer) -> Result<*const c_void> {
    match (buffer.as_host(), buffer.as_device()) {
        (Some(bytes), _) => Ok(bytes.as_ptr().cast()),
        (None, Some(device)) => {
            let address = usize::try_from(device.address);
            let address =
                address.map_err(|_| Error::internal("a device's address does not fit a pointer"))?;
            Ok(ptr::without_provenance(address))
        }
        (None, None) => Err(Error::internal("a buffer has no address")),
    }
}

/// Reported memory usage. The attributes stay the caller's.
pub(crate) fn usage(usage: &Out<*mut TRITONSERVER_BufferAttributes>, count: u32) -> Result<Vec<MemoryUsage>> {
    let place = |attributes| {
        let (memory, byte_size) = Handle::<BufferAttributes>::of(attributes).get()?.place();
        Ok(MemoryUsage { memory, byte_size: byte_size as u64 })
    };
    usage.elements(count.into())?.into_iter().map(place).collect()
}

exports! {
    fn TRITONSERVER_BufferAttributesNew(buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes) {
        buffer_attributes.give(BufferAttributes::new(Memory::HOST, 0))?;
    }

    fn TRITONSERVER_BufferAttributesDelete(buffer_attributes: *mut TRITONSERVER_BufferAttributes) {
        buffer_attributes.delete()?;
    }

    fn TRITONSERVER_BufferAttributesSetMemoryTypeId(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type_id: i64,
    ) {
        buffer_attributes.get()?.change(|memory, _| {
            memory.device = memory_type_id;
            Ok(())
        })?;
    }

    fn TRITONSERVER_BufferAttributesSetMemoryType(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type: TRITONSERVER_MemoryType,
    ) {
        buffer_attributes.get()?.change(|memory, _| {
            *memory = memory_from_c(memory_type, memory.device)?;
            Ok(())
        })?;
    }

    fn TRITONSERVER_BufferAttributesSetCudaIpcHandle(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        cuda_ipc_handle: *mut c_void,
    ) {
        buffer_attributes.get()?.cuda_ipc_handle.store(cuda_ipc_handle, Relaxed);
    }

    fn TRITONSERVER_BufferAttributesSetByteSize(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        byte_size: usize,
    ) {
        buffer_attributes.get()?.change(|_, size| {
            *size = byte_size;
            Ok(())
        })?;
    }

    fn TRITONSERVER_BufferAttributesMemoryTypeId(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type_id: *mut i64,
    ) {
        memory_type_id.set(buffer_attributes.get()?.place().0.device)?;
    }

    fn TRITONSERVER_BufferAttributesMemoryType(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type: *mut TRITONSERVER_MemoryType,
    ) {
        memory_type.set(memory_to_c(buffer_attributes.get()?.place().0))?;
    }

    fn TRITONSERVER_BufferAttributesCudaIpcHandle(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        cuda_ipc_handle: *mut *mut c_void,
    ) {
        cuda_ipc_handle.set(buffer_attributes.get()?.cuda_ipc_handle.load(Relaxed))?;
    }

    fn TRITONSERVER_BufferAttributesByteSize(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        byte_size: *mut usize,
    ) {
        byte_size.set(buffer_attributes.get()?.place().1)?;
    }
}
