//! GPU memory, or memory pinned for GPUs: allocated here, by another process, or by a library. Dropping it releases it.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use nereid_backend_api::{DeviceMemory, Error, IpcHandle, Result};
use nereid_cuda_driver::{Cuda, CudaError, LAZY_PEER_ACCESS, PORTABLE, RawIpcHandle, log_failure};

/// A run of a GPU's memory, which its owner keeps.
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
        self.cuda.within(self.device, |driver| {
            // SAFETY: so many bytes are there to be written, and there on the device to be read, since its owner keeps
            // them. The call returns when they are copied.
            unsafe { driver.copy_to_host(target.as_mut_ptr().cast::<c_void>(), address, target.len()) }
        })
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<(), CudaError> {
        self.check(address, source.len())?;
        if source.is_empty() {
            return Ok(());
        }
        self.cuda.within(self.device, |driver| {
            // SAFETY: so many bytes are there to be read, and there on the device to be written. Others that use that
            // memory at the same time see old or new bytes, which is theirs to arrange.
            unsafe { driver.copy_to_device(address, source.as_ptr().cast::<c_void>(), source.len())? };
            // The call returns when the bytes have left `source`. Another process may read them as soon as it is
            // answered, so they must have arrived.
            // SAFETY: null is the stream that the copy went through.
            unsafe { driver.stream_synchronize(ptr::null_mut()) }
        })
    }
}

fn internal(error: CudaError) -> Error {
    Error::internal(error.to_string())
}

/// Implements the reading and writing of memory that has an extent.
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

/// Memory that this process allocated.
pub struct DeviceAllocation {
    extent: Extent,
}

device_memory!(DeviceAllocation);

impl DeviceAllocation {
    /// Allocates `byte_size` bytes, at least one.
    ///
    /// # Errors
    /// There is no such device, or it has no room.
    pub fn new(cuda: &Arc<Cuda>, device: i64, byte_size: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        // SAFETY: it writes to the given places only.
        cuda.within(device, |driver| unsafe { driver.mem_alloc(&raw mut address, byte_size) })?;
        Ok(Self { extent: Extent { cuda: Arc::clone(cuda), device, address, len: byte_size } })
    }

    /// Where it begins, in the device's address space.
    pub fn address(&self) -> u64 {
        self.extent.address
    }

    /// What another process opens it with.
    ///
    /// # Errors
    /// What the driver says.
    pub fn export(&self) -> Result<IpcHandle, CudaError> {
        let mut handle = RawIpcHandle([0; 64]);
        self.extent.cuda.within(self.extent.device, |driver| {
            // SAFETY: it writes to the given places only; the memory is this object's.
            unsafe { driver.ipc_get_handle(&raw mut handle, self.extent.address) }
        })?;
        Ok(handle.0)
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        let Extent { cuda, device, address, .. } = &self.extent;
        // SAFETY: it was allocated by this, is freed once, and nobody holds it any more.
        log_failure(cuda.within(*device, |driver| unsafe { driver.mem_free(*address) }));
    }
}

/// Memory that another process allocated and shares.
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
    /// There is no such device, the handle opens nothing, or the memory is shorter.
    pub fn open(
        cuda: &Arc<Cuda>,
        device: i64,
        handle: IpcHandle,
        byte_size: usize,
    ) -> Result<Self, CudaError> {
        let mut address = 0;
        cuda.within(device, |driver| {
            // SAFETY: it writes to the given place only. The driver refuses bytes that are not a handle.
            unsafe { driver.ipc_open(&raw mut address, RawIpcHandle(handle), LAZY_PEER_ACCESS) }
        })?;
        // From here on it is closed, whatever happens.
        let opened =
            Self { extent: Extent { cuda: Arc::clone(cuda), device, address, len: byte_size }, handle };
        let (mut base, mut whole) = (0, 0);
        cuda.within(device, |driver| {
            // SAFETY: it writes to the given places only.
            unsafe { driver.mem_get_address_range(&raw mut base, &raw mut whole, address) }
        })?;
        let available = base.saturating_add(whole as u64).saturating_sub(address);
        if byte_size as u64 > available {
            return Err(CudaError::TooLong { asked: byte_size as u64, available });
        }
        Ok(opened)
    }

    /// Where it begins, in the device's address space of this process.
    pub fn address(&self) -> u64 {
        self.extent.address
    }

    /// In bytes.
    pub fn byte_size(&self) -> usize {
        self.extent.len
    }

    /// Its GPU.
    pub fn device(&self) -> i64 {
        self.extent.device
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        let Extent { cuda, device, address, .. } = &self.extent;
        // SAFETY: it was opened by this, is closed once, and nobody holds it any more.
        log_failure(cuda.within(*device, |driver| unsafe { driver.ipc_close(*address) }));
    }
}

/// GPU memory that a library allocated, which stays valid as long as `K` lives.
pub struct ForeignMemory<K> {
    /// None where this server has no driver.
    extent: Option<Extent>,
    device: i64,
    handle: Option<IpcHandle>,
    _keep: K,
}

impl<K> ForeignMemory<K> {
    /// Takes `len` bytes from `address` on to be memory of `device`.
    ///
    /// # Safety
    /// They are, until `keep` is dropped, and may be read and written as the buffers are that are made of this.
    pub unsafe fn new(cuda: Option<&Arc<Cuda>>, device: i64, address: u64, len: usize, keep: K) -> Self {
        let extent = cuda.map(|cuda| Extent { cuda: Arc::clone(cuda), device, address, len });
        Self { extent, device, handle: None, _keep: keep }
    }

    /// The same memory, with what other processes open it with, as its owner says.
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

/// Host memory that all GPUs copy from and to without the processor's help.
pub struct PinnedAllocation {
    cuda: Arc<Cuda>,
    device: i64,
    address: *mut c_void,
}

// SAFETY: it is an address range that stays allocated as long as this lives; nothing here reads or writes it.
unsafe impl Send for PinnedAllocation {}
// SAFETY: as above.
unsafe impl Sync for PinnedAllocation {}

impl PinnedAllocation {
    /// Allocates `byte_size` bytes, at least one, by the driver of `device`.
    ///
    /// # Errors
    /// There is no such device, or no room.
    pub fn new(cuda: &Arc<Cuda>, device: i64, byte_size: usize) -> Result<Self, CudaError> {
        let mut address = ptr::null_mut();
        cuda.within(device, |driver| {
            // SAFETY: it writes to the given places only.
            unsafe { driver.mem_host_alloc(&raw mut address, byte_size, PORTABLE) }
        })?;
        Ok(Self { cuda: Arc::clone(cuda), device, address })
    }

    /// Where it begins.
    pub fn address(&self) -> *mut c_void {
        self.address
    }
}

impl Drop for PinnedAllocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this, is freed once, and nobody holds it any more.
        log_failure(self.cuda.within(self.device, |driver| unsafe { driver.mem_free_host(self.address) }));
    }
}
