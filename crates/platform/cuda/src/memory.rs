//! GPU memory, or memory pinned for GPUs: allocated by this process, by another, or by a library. Dropping it
//! releases it.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use nereid_backend_api::{DeviceMemory, Error, IpcHandle, Result};
use nereid_cuda_driver::{Cuda, CudaError, LAZY_PEER_ACCESS, PORTABLE, RawIpcHandle, log_failure};

/// A range of a GPU's memory. The owner keeps it allocated.
struct Extent {
    cuda: Arc<Cuda>,
    device: i64,
    address: u64,
    len: usize,
}

impl Extent {
    fn check(&self, address: u64, length: usize) -> Result<(), CudaError> {
        let offset = address.checked_sub(self.address);
        let end = offset.and_then(|offset| offset.checked_add(length as u64));
        match end {
            Some(end) if end <= self.len as u64 => Ok(()),
            _ => Err(CudaError::Outside { address, length, device: self.device }),
        }
    }

    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), CudaError> {
        self.check(address, target.len())?;
        if target.is_empty() {
            return Ok(());
        }
        self.cuda.with_context(self.device, |driver| {
            // SAFETY: the target has this length, and the owner keeps this many bytes allocated on the device. The
            // call returns after the copy.
            unsafe { driver.copy_to_host(target.as_mut_ptr().cast::<c_void>(), address, target.len()) }
        })
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<(), CudaError> {
        self.check(address, source.len())?;
        if source.is_empty() {
            return Ok(());
        }
        self.cuda.with_context(self.device, |driver| {
            // SAFETY: the source has this length, and the owner keeps this many bytes allocated on the device.
            // Concurrent users of the memory see old or new bytes and must synchronize themselves.
            unsafe { driver.copy_to_device(address, source.as_ptr().cast::<c_void>(), source.len())? };
            // The call returns when the bytes have left `source`. Another process may read them once it is notified,
            // so they must have arrived.
            // SAFETY: null is the stream used for the copy.
            unsafe { driver.stream_synchronize(ptr::null_mut()) }
        })
    }
}

fn internal(error: CudaError) -> Error {
    Error::internal(error.to_string())
}

/// Implements reading and writing of memory with an extent.
macro_rules! device_memory {
    ($type:ty $(, $handle:item)*) => {
        impl DeviceMemory for $type {
            fn read(&self, address: u64, target: &mut [u8]) -> Result<()> {
                self.extent.read(address, target).map_err(internal)
            }

            fn write(&self, address: u64, source: &[u8]) -> Result<()> {
                self.extent.write(address, source).map_err(internal)
            }

            $($handle)*
        }
    };
}

/// Memory allocated by this process.
pub struct DeviceAllocation {
    extent: Extent,
}

device_memory!(DeviceAllocation);

impl DeviceAllocation {
    /// Allocates `byte_size` bytes, at least one.
    ///
    /// # Errors
    /// The device does not exist, or has too little free memory.
    pub fn new(cuda: &Arc<Cuda>, device: i64, byte_size: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        // SAFETY: the function writes only to the passed places.
        cuda.with_context(device, |driver| unsafe { driver.mem_alloc(&raw mut address, byte_size) })?;
        Ok(Self { extent: Extent { cuda: Arc::clone(cuda), device, address, len: byte_size } })
    }

    /// The start address, in the device's address space.
    pub fn address(&self) -> u64 {
        self.extent.address
    }

    /// A handle with which another process opens the memory.
    ///
    /// # Errors
    /// The driver's error.
    pub fn export(&self) -> Result<IpcHandle, CudaError> {
        let mut handle = RawIpcHandle([0; 64]);
        self.extent.cuda.with_context(self.extent.device, |driver| {
            // SAFETY: the function writes only to the passed place; this object owns the memory.
            unsafe { driver.ipc_get_handle(&raw mut handle, self.extent.address) }
        })?;
        Ok(handle.0)
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        let Extent { cuda, device, address, .. } = &self.extent;
        // SAFETY: the memory was allocated by this object, is freed once, and has no other users.
        log_failure(cuda.with_context(*device, |driver| unsafe { driver.mem_free(*address) }));
    }
}

/// Memory allocated and shared by another process.
pub struct ImportedMemory {
    extent: Extent,
    handle: IpcHandle,
}

device_memory!(
    ImportedMemory,
    fn ipc_handle(&self) -> Option<&IpcHandle> {
        Some(&self.handle)
    },
    fn ipc_base(&self) -> Option<u64> {
        Some(self.extent.address)
    }
);

impl ImportedMemory {
    /// Opens the first `byte_size` bytes of memory of `device`.
    ///
    /// # Errors
    /// The device does not exist, the handle is invalid, or the memory is shorter.
    pub fn open(
        cuda: &Arc<Cuda>,
        device: i64,
        handle: IpcHandle,
        byte_size: usize,
    ) -> Result<Self, CudaError> {
        let mut address = 0;
        cuda.with_context(device, |driver| {
            // SAFETY: the function writes only to the passed place. The driver refuses bytes that are not a handle.
            unsafe { driver.ipc_open(&raw mut address, RawIpcHandle(handle), LAZY_PEER_ACCESS) }
        })?;
        // Closed from here on, on every path.
        let opened =
            Self { extent: Extent { cuda: Arc::clone(cuda), device, address, len: byte_size }, handle };
        let (mut base, mut whole) = (0, 0);
        cuda.with_context(device, |driver| {
            // SAFETY: the function writes only to the passed places.
            unsafe { driver.mem_get_address_range(&raw mut base, &raw mut whole, address) }
        })?;
        let available = base.saturating_add(whole as u64).saturating_sub(address);
        if byte_size as u64 > available {
            return Err(CudaError::TooLong { requested: byte_size as u64, available });
        }
        Ok(opened)
    }

    /// The start address, in the device's address space of this process.
    pub fn address(&self) -> u64 {
        self.extent.address
    }

    /// Length in bytes.
    pub fn byte_size(&self) -> usize {
        self.extent.len
    }

    /// The number of the GPU.
    pub fn device(&self) -> i64 {
        self.extent.device
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        let Extent { cuda, device, address, .. } = &self.extent;
        // SAFETY: the memory was opened by this object, is closed once, and has no other users.
        log_failure(cuda.with_context(*device, |driver| unsafe { driver.ipc_close(*address) }));
    }
}

/// GPU memory allocated by a library, which stays valid as long as `K` lives.
pub struct ForeignMemory<K> {
    /// `None` if this server has no driver.
    extent: Option<Extent>,
    device: i64,
    handle: Option<IpcHandle>,
    _keep: K,
}

impl<K> ForeignMemory<K> {
    /// Treats the `len` bytes starting at `address` as memory of `device`.
    ///
    /// # Safety
    /// They are memory of `device` until `keep` is dropped, and may be read and written like the buffers made from
    /// this.
    pub unsafe fn new(cuda: Option<&Arc<Cuda>>, device: i64, address: u64, len: usize, keep: K) -> Self {
        let extent = cuda.map(|cuda| Extent { cuda: Arc::clone(cuda), device, address, len });
        Self { extent, device, handle: None, _keep: keep }
    }

    /// Attaches the IPC handle provided by the memory's owner.
    pub fn with_ipc_handle(self, handle: Option<IpcHandle>) -> Self {
        Self { handle, ..self }
    }

    fn extent(&self) -> Result<&Extent, CudaError> {
        self.extent.as_ref().ok_or(CudaError::NoDriver { device: self.device })
    }
}

impl<K: Send + Sync> DeviceMemory for ForeignMemory<K> {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<()> {
        self.extent().and_then(|extent| extent.read(address, target)).map_err(internal)
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<()> {
        self.extent().and_then(|extent| extent.write(address, source)).map_err(internal)
    }

    fn ipc_handle(&self) -> Option<&IpcHandle> {
        self.handle.as_ref()
    }
}

/// Host memory that all GPUs access directly.
pub struct PinnedAllocation {
    cuda: Arc<Cuda>,
    device: i64,
    address: *mut c_void,
}

// SAFETY: this is an address range that stays allocated as long as this object; nothing here reads or writes it.
unsafe impl Send for PinnedAllocation {}
// SAFETY: as above.
unsafe impl Sync for PinnedAllocation {}

impl PinnedAllocation {
    /// Allocates `byte_size` bytes, at least one, with the driver of `device`.
    ///
    /// # Errors
    /// The device does not exist, or memory is exhausted.
    pub fn new(cuda: &Arc<Cuda>, device: i64, byte_size: usize) -> Result<Self, CudaError> {
        let mut address = ptr::null_mut();
        cuda.with_context(device, |driver| {
            // SAFETY: the function writes only to the passed places.
            unsafe { driver.mem_host_alloc(&raw mut address, byte_size, PORTABLE) }
        })?;
        Ok(Self { cuda: Arc::clone(cuda), device, address })
    }

    /// The start address.
    pub fn address(&self) -> *mut c_void {
        self.address
    }
}

impl Drop for PinnedAllocation {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by this object, is freed once, and has no other users.
        log_failure(
            self.cuda.with_context(self.device, |driver| unsafe { driver.mem_free_host(self.address) }),
        );
    }
}
