//! CUDA regions, which clients allocate and share by driver handles.

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend_api::{Error, IpcHandle, Result};
use nereid_cuda::ImportedMemory;

use super::{Region, Regions, taken, unknown};
use crate::faults;

/// What a client registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaRegionStatus {
    /// The region's name.
    pub name: String,
    /// Its GPU.
    pub device_id: i64,
    /// Its length in bytes.
    pub byte_size: u64,
}

impl Regions {
    /// Registers the first `byte_size` bytes of memory of a GPU as region `name`. `handle` is what CUDA gave its owner for
    /// other processes.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a region of that name; `InvalidArg` where there is no GPU, if there is no such memory, or
    /// if it is shorter; `Unsupported` if clients may register none.
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
            // As many as of the system's.
            match regions.values().filter_map(Region::cuda).count() < faults::MOST {
                true => Ok(()),
                false => Err(refuse(format!("there are {} already", faults::MOST))),
            }
        };
        check(&self.read())?;
        // It takes its time, so the lock is not held meanwhile.
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

    /// Unregisters a GPU region. Requests that use it keep it. An unknown name is not an error.
    ///
    /// # Errors
    /// `Unsupported` if clients may register none.
    pub fn unregister_cuda(&self, name: &str) -> Result<()> {
        self.check_open()?;
        self.forget(|named, region| named == name && region.cuda().is_some());
        Ok(())
    }

    /// Forgets all regions of GPUs, likewise.
    ///
    /// # Errors
    /// `Unsupported` if clients may register none.
    pub fn unregister_all_cuda(&self) -> Result<()> {
        self.check_open()?;
        self.forget(|_, region| region.cuda().is_some());
        Ok(())
    }

    /// All regions of GPUs, by name.
    pub fn all_cuda(&self) -> Vec<CudaRegionStatus> {
        self.read().values().filter_map(Region::cuda).cloned().collect()
    }

    /// One region of a GPU.
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
