//! The pools that backends borrow memory from: one of pinned host memory, and one per GPU.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use nereid_backend_api::{Error, Memory, MemoryKind, Result};

use crate::memory::{DeviceAllocation, PinnedAllocation};
use crate::pool::{Pool, PoolUsage};
use nereid_cuda_driver::Cuda;

/// The sizes of the pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Bytes of pinned host memory; 0 for none.
    pub pinned: u64,
    /// Bytes of memory per GPU; 0 for none.
    pub devices: BTreeMap<i32, u64>,
}

impl PoolSizes {
    /// The reference's default for pinned memory, in bytes.
    pub const PINNED: u64 = 256 << 20;
    /// The reference's default for each GPU, in bytes.
    pub const DEVICE: u64 = 64 << 20;
}

impl Default for PoolSizes {
    fn default() -> Self {
        Self { pinned: Self::PINNED, devices: BTreeMap::new() }
    }
}

/// The pools. Their memory is allocated once, and lent in parts.
#[derive(Default)]
pub struct Pools {
    /// Whether the machine has a GPU.
    has_gpu: bool,
    pinned: Option<Pool<PinnedAllocation>>,
    devices: BTreeMap<i64, Pool<DeviceAllocation>>,
}

impl Pools {
    /// Creates the pools of these GPUs. A pool that cannot be allocated is omitted and logged: the server works
    /// without it.
    pub fn new(cuda: &Arc<Cuda>, gpus: &[i32], sizes: &PoolSizes) -> Self {
        let pinned = gpus.first().and_then(|gpu| pinned(cuda, *gpu, sizes.pinned));
        let device = |gpu: &i32| {
            let size = sizes.devices.get(gpu).copied().unwrap_or(PoolSizes::DEVICE);
            Some((i64::from(*gpu), of_device(cuda, *gpu, size)?))
        };
        Self { has_gpu: !gpus.is_empty(), pinned, devices: gpus.iter().filter_map(device).collect() }
    }

    /// Lends memory and returns its address, which for a GPU is in the device's address space. `memory` must not be
    /// ordinary memory.
    ///
    /// # Errors
    /// `Unsupported` without a GPU, `Unavailable` without such a pool, `Internal` if the pool is exhausted.
    pub fn allocate(&self, memory: Memory, byte_size: u64) -> Result<*mut c_void> {
        if memory.kind == MemoryKind::Gpu {
            let pool = self.device(memory.device)?;
            let offset =
                pool.lend(byte_size).ok_or_else(|| full(byte_size, "memory of the GPU", pool.usage()))?;
            let address = pool.memory().address() + offset;
            // C pointers are as wide as device addresses.
            return Ok(ptr::without_provenance_mut(usize::try_from(address).unwrap_or(usize::MAX)));
        }
        let pool = self.pinned()?;
        let offset = pool.lend(byte_size).ok_or_else(|| full(byte_size, "pinned memory", pool.usage()))?;
        // The offset is within the allocation, so it fits.
        Ok(pool.memory().address().wrapping_byte_add(usize::try_from(offset).unwrap_or_default()))
    }

    /// Takes back the memory at this address.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and `InvalidArg` unless lent memory starts there.
    pub fn free(&self, memory: Memory, address: usize) -> Result<()> {
        let taken = if memory.kind == MemoryKind::Gpu {
            let pool = self.device(memory.device)?;
            (address as u64).checked_sub(pool.memory().address()).is_some_and(|start| pool.take_back(start))
        } else {
            let pool = self.pinned()?;
            let start = address.checked_sub(pool.memory().address().addr());
            start.is_some_and(|start| pool.take_back(start as u64))
        };
        match taken {
            true => Ok(()),
            false => Err(Error::invalid_arg("unknown memory: was it freed before?")),
        }
    }

    /// The usage of the pinned memory pool, if it exists.
    pub fn pinned_usage(&self) -> Option<PoolUsage> {
        self.pinned.as_ref().map(Pool::usage)
    }

    /// The usage of each GPU's pool, by the GPU's number.
    pub fn device_usage(&self) -> impl Iterator<Item = (i64, PoolUsage)> {
        self.devices.iter().map(|(device, pool)| (*device, pool.usage()))
    }

    fn pinned(&self) -> Result<&Pool<PinnedAllocation>> {
        self.check_gpu("pinned memory")?;
        self.pinned.as_ref().ok_or_else(|| Error::unavailable("this server has no pinned memory pool"))
    }

    fn device(&self, device: i64) -> Result<&Pool<DeviceAllocation>> {
        self.check_gpu("memory of a GPU")?;
        let none = || Error::unavailable(format!("this server has no memory pool for GPU {device}"));
        self.devices.get(&device).ok_or_else(none)
    }

    fn check_gpu(&self, what: &str) -> Result<()> {
        if self.has_gpu {
            return Ok(());
        }
        Err(Error::unsupported(format!("this server has no {what}: it has no GPU")))
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools")
            .field("pinned", &self.pinned_usage())
            .field("devices", &self.device_usage().collect::<Vec<_>>())
            .finish()
    }
}

fn full(byte_size: u64, what: &str, usage: PoolUsage) -> Error {
    Error::internal(format!(
        "cannot allocate {byte_size} bytes from the pool of {what}: {} of {} are in use",
        usage.used, usage.total
    ))
}

fn pinned(cuda: &Arc<Cuda>, gpu: i32, size: u64) -> Option<Pool<PinnedAllocation>> {
    if size == 0 {
        tracing::info!("Pinned memory pool disabled");
        return None;
    }
    // A size that exceeds the address space cannot be allocated anyway.
    match PinnedAllocation::new(cuda, gpu.into(), usize::try_from(size).unwrap_or(usize::MAX)) {
        Ok(memory) => {
            tracing::info!("backends may borrow {size} bytes of pinned memory");
            Some(Pool::new(memory, size))
        }
        Err(error) => {
            tracing::warn!(
                "Pinned memory pool is not created: {error}; --pinned-memory-pool-byte-size sets its size"
            );
            None
        }
    }
}

fn of_device(cuda: &Arc<Cuda>, gpu: i32, size: u64) -> Option<Pool<DeviceAllocation>> {
    if size == 0 {
        tracing::info!("backends may borrow no memory of GPU {gpu}");
        return None;
    }
    match DeviceAllocation::new(cuda, gpu.into(), usize::try_from(size).unwrap_or(usize::MAX)) {
        Ok(memory) => {
            tracing::info!("backends may borrow {size} bytes of the memory of GPU {gpu}");
            Some(Pool::new(memory, size))
        }
        Err(error) => {
            tracing::error!(
                "CUDA memory pool is not created on device {gpu}: {error}; --cuda-memory-pool-byte-size sets its size"
            );
            None
        }
    }
}
