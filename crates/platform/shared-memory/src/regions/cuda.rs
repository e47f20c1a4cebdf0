//! CUDA regions, which clients allocate and share by driver handles.

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend_api::{Error, IpcHandle, Result};
use nereid_cuda::ImportedMemory;

use super::{Region, Regions, taken, unknown};
use crate::faults;

/// A registered region of CUDA shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaRegionStatus {
    /// The region's name.
    pub name: String,
    /// The GPU's number.
    pub device_id: i64,
    /// Length in bytes.
    pub byte_size: u64,
}

impl Regions {
    /// Registers the first `byte_size` bytes of an allocation on a GPU as region `name`. `handle` is its CUDA IPC handle.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken; `InvalidArg` without a GPU, or if the allocation is missing or shorter;
    /// `Unsupported` if shared memory is disabled.
    pub fn register_cuda(&self, name: &str, handle: &[u8], device_id: i64, byte_size: u64) -> Result<()> {
        let refuse = |reason: String| {
            Error::invalid_arg(format!("cannot register CUDA shared memory region '{name}': {reason}"))
        };
        self.check_open()?;
        let gpus = self.cuda.as_ref().filter(|cuda| cuda.devices().len() > 0);
        let cuda = gpus.ok_or_else(|| refuse("this server has no GPU".into()))?;
        let handle = IpcHandle::try_from(handle).map_err(|_| {
            refuse(format!(
                "raw_handle has {} bytes, but a cudaIpcMemHandle_t has {}",
                handle.len(),
                size_of::<IpcHandle>()
            ))
        })?;
        if byte_size == 0 {
            return Err(refuse("byte_size is 0".into()));
        }
        let length =
            usize::try_from(byte_size).map_err(|_| refuse("it does not fit the address space".into()))?;
        let check = |regions: &BTreeMap<String, Region>| {
            if regions.contains_key(name) {
                return Err(taken(name));
            }
            // The same limit as for system regions.
            match regions.values().filter_map(Region::cuda).count() < faults::MAX_MAPPINGS {
                true => Ok(()),
                false => Err(refuse(format!(
                    "{} regions are registered already, the maximum",
                    faults::MAX_MAPPINGS
                ))),
            }
        };
        check(&self.read())?;
        // Slow, so the lock is not held.
        let memory = ImportedMemory::open(cuda, device_id, handle, length);
        let memory = Arc::new(memory.map_err(|error| refuse(error.to_string()))?);
        let mut regions = self.write();
        let still = check(&regions);
        if still.is_ok() {
            let status = CudaRegionStatus { name: name.to_owned(), device_id, byte_size };
            regions.insert(name.to_owned(), Region::Cuda { status, memory });
        }
        still
    }

    /// Unregisters a CUDA region. Requests that use it keep it. An unknown name is not an error.
    ///
    /// # Errors
    /// `Unsupported` if shared memory is disabled.
    pub fn unregister_cuda(&self, name: &str) -> Result<()> {
        self.check_open()?;
        self.forget(|named, region| named == name && region.cuda().is_some());
        Ok(())
    }

    /// Unregisters all CUDA regions, in the same way.
    ///
    /// # Errors
    /// `Unsupported` if shared memory is disabled.
    pub fn unregister_all_cuda(&self) -> Result<()> {
        self.check_open()?;
        self.forget(|_, region| region.cuda().is_some());
        Ok(())
    }

    /// All CUDA regions, ordered by name.
    pub fn all_cuda(&self) -> Vec<CudaRegionStatus> {
        self.read().values().filter_map(Region::cuda).cloned().collect()
    }

    /// A CUDA region.
    ///
    /// # Errors
    /// `NotFound` if no region has that name.
    pub fn cuda_status(&self, name: &str) -> Result<CudaRegionStatus> {
        match self.read().get(name) {
            None => Err(unknown(name)),
            Some(region) => region.cuda().cloned().ok_or_else(|| {
                Error::not_found(format!("region '{name}' is one of system shared memory, not of CUDA's"))
            }),
        }
    }
}
