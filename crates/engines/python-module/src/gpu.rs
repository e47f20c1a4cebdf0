//! GPU memory: of other libraries, shared by clients, and allocated here for outputs of other models.
//!
//! The driver's library is loaded when the first tensor needs it. Its calls wait for work on the GPU, which may wait
//! for the interpreter's lock, so all of them are made without that lock.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};

use nereid_cuda_driver::{Cuda, CudaError, Driver, LAZY_PEER_ACCESS, RawIpcHandle, log_failure};
use nereid_worker_protocol::tensor::DeviceContents;
use pyo3::prelude::*;

use crate::constants::exception;

/// The name of the driver's library; empty if the server uses no GPUs.
static LIBRARY: OnceLock<String> = OnceLock::new();

static CUDA: OnceLock<Result<Arc<Cuda>, String>> = OnceLock::new();

/// Sets the name of the driver's library.
pub fn set_library(name: String) {
    LIBRARY.get_or_init(|| name);
}

/// Called without the interpreter's lock, because loading takes time.
fn cuda() -> Result<&'static Arc<Cuda>, String> {
    let open = || {
        let library = LIBRARY.get().ok_or("the server uses no GPU memory")?;
        Cuda::open(library).map_err(|error| error.to_string())
    };
    CUDA.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// Calls the driver in the context of a GPU.
fn within<T: Send>(
    python: Python<'_>,
    device: i32,
    act: impl FnOnce(&Driver) -> Result<T, CudaError> + Send,
) -> Result<T, String> {
    python.detach(|| cuda()?.with_context(device.into(), act).map_err(|error| error.to_string()))
}

/// Checks that memory of a GPU can be used.
///
/// # Errors
/// The reason why it cannot.
pub fn check(python: Python<'_>, device: i32) -> Result<(), String> {
    within(python, device, |_| Ok(()))
}

/// Copies from memory of a GPU, after the work in CUDA's default stream.
pub fn read(python: Python<'_>, device: i32, address: u64, target: &mut [u8]) -> Result<(), String> {
    if target.is_empty() {
        return Ok(());
    }
    within(python, device, |driver| {
        // SAFETY: `target` has this length, and the tensor's producer guarantees its memory on the device. The call
        // returns after the copy.
        unsafe { driver.copy_to_host(target.as_mut_ptr().cast::<c_void>(), address, target.len()) }
    })
}

/// Waits for CUDA's default stream.
pub fn synchronize(python: Python<'_>, device: i32) -> PyResult<()> {
    let waited = within(python, device, |driver| {
        // SAFETY: null is the default stream.
        unsafe { driver.stream_synchronize(ptr::null_mut()) }
    });
    waited.map_err(exception)
}

/// GPU memory that this process allocated or opened. Dropping it releases it.
pub struct GpuMemory {
    device: i32,
    base: u64,
    /// The address of the contents.
    address: u64,
    release: Release,
}

#[derive(Clone, Copy)]
enum Release {
    Free,
    Close,
}

impl GpuMemory {
    /// Memory with these contents, of at least one byte.
    ///
    /// # Errors
    /// The GPU does not exist or has too little free memory, or the driver failed.
    pub fn holding(python: Python<'_>, device: i32, contents: &[u8]) -> Result<Self, String> {
        let length = contents.len();
        let mut base = 0;
        // SAFETY: the function writes only to the passed place.
        within(python, device, |driver| unsafe { driver.mem_alloc(&raw mut base, length) })?;
        // Freed from here on, on every path.
        let memory = Self { device, base, address: base, release: Release::Free };
        within(python, device, |driver| {
            // SAFETY: `contents` has this length, and so has the memory just allocated.
            unsafe { driver.copy_to_device(base, contents.as_ptr().cast::<c_void>(), length)? };
            // The call returns when the bytes have left the host, and other streams may read them at once.
            // SAFETY: null is the stream used for the copy.
            unsafe { driver.stream_synchronize(ptr::null_mut()) }
        })?;
        Ok(memory)
    }

    /// Memory shared by a client.
    ///
    /// # Errors
    /// The driver cannot open it.
    pub fn open(python: Python<'_>, contents: &DeviceContents) -> Result<Self, String> {
        let device = i32::try_from(contents.device).map_err(|_| "impossible device".to_owned())?;
        let (mut base, handle) = (0, RawIpcHandle(contents.handle));
        within(python, device, |driver| {
            // SAFETY: the function writes only to the passed place. The driver refuses bytes that are not a handle.
            unsafe { driver.ipc_open(&raw mut base, handle, LAZY_PEER_ACCESS) }
        })?;
        let address = base.wrapping_add(contents.offset);
        Ok(Self { device, base, address, release: Release::Close })
    }

    /// The address of the contents, in the GPU's address space.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        let Self { device, base, release, .. } = *self;
        Python::attach(|python| {
            let released = within(python, device, |driver| {
                // A library may still be using the memory, on any stream.
                // SAFETY: the function takes no pointers.
                log_failure(unsafe { driver.context_synchronize() });
                // SAFETY: the memory was allocated or opened by this object, is released once, and has no other
                // users.
                log_failure(unsafe {
                    match release {
                        Release::Free => driver.mem_free(base),
                        Release::Close => driver.ipc_close(base),
                    }
                });
                Ok(())
            });
            // Without the driver's context, the memory is already freed.
            drop(released);
        });
    }
}
