//! Output allocators of inner requests: callbacks of the backend.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nereid_backend_api::{
    Buffer, DeviceBuffer, DeviceOutput, Error, IpcHandle, Memory, MemoryKind, OutputAllocator, OutputSpec,
    PlacedMemory, Result,
};
use nereid_cuda::{Cuda, ForeignMemory};
use triton_sys::*;

use crate::attributes::BufferAttributes;
use crate::boundary::exports;
use crate::error;
use crate::handle::{Handle, LentHandle};
use crate::names::{memory_from_c, memory_to_c};
use crate::release::Release;
use crate::text::c_string;

/// An allocator behind a C handle.
pub(crate) struct Allocator {
    allocate: TRITONSERVER_ResponseAllocatorAllocFn_t,
    release: TRITONSERVER_ResponseAllocatorReleaseFn_t,
    start: TRITONSERVER_ResponseAllocatorStartFn_t,
    optional: Mutex<OptionalCallbacks>,
}

/// Optional callbacks, set after creation.
#[derive(Clone, Copy, Default)]
struct OptionalCallbacks {
    attributes: TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
    query: TRITONSERVER_ResponseAllocatorQueryFn_t,
}

impl Allocator {
    fn optional_callbacks(&self) -> OptionalCallbacks {
        *lock(&self.optional)
    }
}

/// An allocator as used by one request.
pub(crate) struct Placement {
    handle: Handle<Allocator>,
    allocator: Arc<Allocator>,
    /// The caller's user pointer, passed to the allocator's functions.
    userp: AtomicPtr<c_void>,
    /// User data of each buffer that is not in a response yet.
    user_data: Arc<Mutex<BufferUserData>>,
    /// Holds off the request's release until its last output is placed.
    _release: Arc<Release>,
    /// Copies to and from GPU memory.
    cuda: Option<Arc<Cuda>>,
}

/// User data that an allocator attached to its buffers.
#[derive(Default)]
struct BufferUserData {
    /// The number of the next buffer.
    next: u64,
    /// Number, address and user data of each buffer.
    entries: Vec<(u64, usize, AtomicPtr<c_void>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one insertion or removal.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Placement {
    pub(crate) fn new(
        handle: Handle<Allocator>,
        userp: *mut c_void,
        release: Arc<Release>,
        cuda: Option<Arc<Cuda>>,
    ) -> Result<Self> {
        let allocator = handle.get()?;
        let (userp, user_data) = (AtomicPtr::new(userp), Arc::default());
        Ok(Self { handle, allocator, userp, user_data, _release: release, cuda })
    }

    /// Removes and returns the user data of the buffer at this address.
    pub(crate) fn take_user_data(&self, address: *const c_void) -> *mut c_void {
        let entries = &mut lock(&self.user_data).entries;
        let found = entries.iter().position(|(_, known, _)| *known == address.addr());
        // Empty buffers may share an address: take the first output's first.
        found.map_or(ptr::null_mut(), |place| entries.remove(place).2.into_inner())
    }

    /// Calls the allocator's attributes callback, which may set a buffer's CUDA IPC handle.
    fn query_attributes(
        &self,
        name: &CStr,
        memory: Memory,
        byte_size: usize,
        user_data: *mut c_void,
    ) -> Result<Option<IpcHandle>> {
        let Some(callback) = self.allocator.optional_callbacks().attributes else { return Ok(None) };
        let said = BufferAttributes::new(memory, byte_size);
        let attributes = LentHandle::new(Arc::clone(&said))?;
        // SAFETY: the function was registered for this call, with these arguments; all of them live until it returns.
        let outcome = unsafe {
            callback(
                self.handle.as_c(),
                name.as_ptr(),
                attributes.handle().as_c(),
                self.userp.load(Relaxed),
                user_data,
            )
        };
        error::from_c(Handle::of(outcome))?;
        Ok(said.ipc_handle())
    }
}

impl OutputAllocator for Placement {
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Box<dyn PlacedMemory>>> {
        let allocate =
            self.allocator.allocate.ok_or_else(|| Error::internal("the allocator cannot allocate"))?;
        let name = c_string(output.name);
        let (mut address, mut user_data) = (ptr::null_mut(), ptr::null_mut());
        let mut kind = memory_to_c(output.preferred);
        let mut device = output.preferred.device;
        // SAFETY: the function was registered for this call, with these arguments; all of them live until it returns.
        let outcome = unsafe {
            allocate(
                self.handle.as_c(),
                name.as_ptr(),
                output.byte_size,
                kind,
                device,
                self.userp.load(Relaxed),
                &raw mut address,
                &raw mut user_data,
                &raw mut kind,
                &raw mut device,
            )
        };
        error::from_c(Handle::of(outcome))?;
        let memory = memory_from_c(kind, device)?;
        let mut placed = AllocatedMemory {
            address: AtomicPtr::new(address),
            byte_size: output.byte_size,
            memory,
            user_data: AtomicPtr::new(user_data),
            handle: self.handle,
            allocator: Arc::clone(&self.allocator),
            registered: None,
        };
        if address.is_null() && output.byte_size > 0 {
            return Err(Error::internal(format!("output '{}' was placed at a null pointer", output.name)));
        }
        let ipc_handle = self.query_attributes(&name, memory, output.byte_size, user_data)?;
        let begins = if memory.is_host() { placed.address_for_response().addr() } else { address.addr() };
        let number = {
            let mut all = lock(&self.user_data);
            let number = all.next;
            all.next += 1;
            all.entries.push((number, begins, AtomicPtr::new(user_data)));
            number
        };
        placed.registered = Some((Arc::clone(&self.user_data), number));
        if memory.is_host() {
            return Ok(Some(Box::new(placed)));
        }
        let (address, len) = (address.addr() as u64, output.byte_size);
        // SAFETY: the allocator returned this many writable bytes, valid until they are released, which `placed`
        // prevents.
        let owner = unsafe { ForeignMemory::new(self.cuda.as_ref(), memory.device, address, len, placed) };
        let owner = Arc::new(owner.with_ipc_handle(ipc_handle));
        let target = DeviceBuffer { address, len, owner };
        Ok(Some(Box::new(DeviceOutput::new(target, memory.device, output.preferred))))
    }

    fn begin_response(&self) -> Result<()> {
        let Some(start) = self.allocator.start else { return Ok(()) };
        // SAFETY: the function was registered for this call, with these arguments.
        let outcome = unsafe { start(self.handle.as_c(), self.userp.load(Relaxed)) };
        error::from_c(Handle::of(outcome))
    }

    fn preferred_memory(&self, name: &str, byte_size: Option<usize>) -> Memory {
        let Some(query) = self.allocator.optional_callbacks().query else { return Memory::HOST };
        let name = c_string(name);
        let (mut kind, mut device) = (TRITONSERVER_MEMORY_CPU, 0);
        let mut size = byte_size.unwrap_or_default();
        let size = if byte_size.is_some() { &raw mut size } else { ptr::null_mut() };
        // SAFETY: the function was registered for this call, with these arguments; all of them live until it returns.
        let outcome = unsafe {
            query(
                self.handle.as_c(),
                self.userp.load(Relaxed),
                name.as_ptr(),
                size,
                &raw mut kind,
                &raw mut device,
            )
        };
        let answered = error::from_c(Handle::of(outcome)).and_then(|()| memory_from_c(kind, device));
        answered.unwrap_or(Memory::HOST)
    }
}

/// Memory from an allocator, released when dropped. As [`PlacedMemory`] it is host memory.
struct AllocatedMemory {
    address: AtomicPtr<c_void>,
    byte_size: usize,
    memory: Memory,
    user_data: AtomicPtr<c_void>,
    handle: Handle<Allocator>,
    allocator: Arc<Allocator>,
    /// Where the user data is kept for the response, and its number.
    registered: Option<(Arc<Mutex<BufferUserData>>, u64)>,
}

impl AllocatedMemory {
    /// The address of the contents. Slices must not start at null, not even empty ones.
    fn address_for_response(&self) -> *mut u8 {
        let address = self.address.load(Relaxed).cast::<u8>();
        if address.is_null() { ptr::NonNull::dangling().as_ptr() } else { address }
    }
}

impl PlacedMemory for AllocatedMemory {
    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let address = self.address_for_response();
        // SAFETY: the allocator returned this many writable bytes, valid until they are released, and this owns them;
        // null was refused. The processor can write them unless they are a device's.
        self.memory.is_host().then(|| unsafe { std::slice::from_raw_parts_mut(address, self.byte_size) })
    }

    fn freeze(self: Box<Self>) -> Result<Buffer> {
        let memory = self.memory;
        let written = Bytes::from_owner(FrozenMemory(*self));
        Ok(match memory.kind {
            MemoryKind::CpuPinned => Buffer::pinned(written, memory.device),
            // GPU memory is placed as such.
            MemoryKind::Cpu | MemoryKind::Gpu => Buffer::host(written),
        })
    }
}

impl Drop for AllocatedMemory {
    fn drop(&mut self) {
        // If the buffer was never sent, no response took its user data, and other memory may get the same address
        // now.
        if let Some((user_data, number)) = &self.registered {
            lock(user_data).entries.retain(|(known, ..)| known != number);
        }
        let Some(release) = self.allocator.release else { return };
        // SAFETY: the function was registered for this call; this memory came from the same allocator and goes back once.
        let outcome = unsafe {
            release(
                self.handle.as_c(),
                self.address.load(Relaxed),
                self.user_data.load(Relaxed),
                self.byte_size,
                memory_to_c(self.memory),
                self.memory.device,
            )
        };
        if let Err(error) = error::from_c(Handle::of(outcome)) {
            tracing::warn!("a backend's allocator failed to release memory: {error}");
        }
    }
}

/// Host memory after it was written.
struct FrozenMemory(AllocatedMemory);

impl AsRef<[u8]> for FrozenMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: see `AllocatedMemory::as_mut_slice`; from here on it is only read.
        unsafe { std::slice::from_raw_parts(self.0.address_for_response(), self.0.byte_size) }
    }
}

exports! {
    fn TRITONSERVER_ResponseAllocatorNew(
        allocator: *mut *mut TRITONSERVER_ResponseAllocator,
        alloc_fn: TRITONSERVER_ResponseAllocatorAllocFn_t,
        release_fn: TRITONSERVER_ResponseAllocatorReleaseFn_t,
        start_fn: TRITONSERVER_ResponseAllocatorStartFn_t,
    ) {
        let (allocate, release, start) = (alloc_fn, release_fn, start_fn);
        if allocate.is_none() || release.is_none() {
            return Err(Error::invalid_arg("an allocator needs both an allocation and a release callback"));
        }
        let object = Allocator { allocate, release, start, optional: Mutex::default() };
        allocator.give(Arc::new(object))?;
    }

    fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        buffer_attributes_fn: TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
    ) {
        let allocator = allocator.get()?;
        lock(&allocator.optional).attributes = buffer_attributes_fn;
    }

    fn TRITONSERVER_ResponseAllocatorSetQueryFunction(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        query_fn: TRITONSERVER_ResponseAllocatorQueryFn_t,
    ) {
        let allocator = allocator.get()?;
        lock(&allocator.optional).query = query_fn;
    }

    fn TRITONSERVER_ResponseAllocatorDelete(allocator: *mut TRITONSERVER_ResponseAllocator) {
        allocator.delete()?;
    }
}
