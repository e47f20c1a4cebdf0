//! The registered regions by name. System and CUDA regions share one namespace.

mod cuda;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nereid_backend_api::{Error, ErrorCode, Result};
use nereid_cuda::{Cuda, ImportedMemory};
use rustix::fs::{FileType, Mode, fstat};
use rustix::param::page_size;
use rustix::shm::{self, OFlags};

use crate::faults::FaultHandler;
use crate::mapping::{HostSlice, Mapping};
use crate::slice::{DeviceSlice, Place, Slice};

/// Default prefix of the Python backend's own shared memory objects, which clients may not register.
const RESERVED: &str = "triton_python_backend_shm_region_";

/// The reason for which a set that stays empty has no regions.
const DISABLED: &str = "client shared memory is disabled: --allow-client-shm is false";

/// A registered region of system shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionStatus {
    /// The region's name.
    pub name: String,
    /// The name of the shared memory object.
    pub key: String,
    /// Offset of the region in the object, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub byte_size: u64,
}

pub use cuda::CudaRegionStatus;

enum Region {
    System { status: RegionStatus, mapping: Arc<Mapping> },
    Cuda { status: CudaRegionStatus, memory: Arc<ImportedMemory> },
}

impl Region {
    fn system(&self) -> Option<&RegionStatus> {
        match self {
            Self::System { status, .. } => Some(status),
            Self::Cuda { .. } => None,
        }
    }

    fn cuda(&self) -> Option<&CudaRegionStatus> {
        match self {
            Self::System { .. } => None,
            Self::Cuda { status, .. } => Some(status),
        }
    }

    fn byte_size(&self) -> u64 {
        match self {
            Self::System { status, .. } => status.byte_size,
            Self::Cuda { status, .. } => status.byte_size,
        }
    }

    fn slice(&self, start: usize, length: usize) -> Option<Slice> {
        let place = match self {
            Self::System { mapping, .. } => Place::Host(HostSlice::of(mapping, start, length)?),
            Self::Cuda { memory, .. } => Place::Device(DeviceSlice::of(memory, start, length)?),
        };
        Some(Slice(place))
    }
}

/// All registered regions.
#[derive(Default)]
pub struct Regions {
    by_name: RwLock<BTreeMap<String, Region>>,
    /// Handles faults when a region's file is truncated.
    faults: Option<FaultHandler>,
    cuda: Option<Arc<Cuda>>,
    closed: bool,
    /// Another prefix of objects that clients may not register.
    reserved: Option<String>,
}

impl Regions {
    /// An empty set. System regions need the fault handler, and CUDA regions a driver.
    pub fn new(faults: Option<FaultHandler>, cuda: Option<Arc<Cuda>>) -> Self {
        Self { faults, cuda, ..Self::default() }
    }

    /// A set that stays empty: clients may not use shared memory.
    pub fn closed() -> Self {
        Self { closed: true, ..Self::default() }
    }

    /// Also refuses objects whose names start with `prefix`, which belong to a backend. An empty prefix has no effect.
    #[must_use]
    pub fn with_reserved(mut self, prefix: &str) -> Self {
        let prefix = prefix.trim_start_matches('/');
        self.reserved = (!prefix.is_empty()).then(|| prefix.to_owned());
        self
    }

    /// Whether a request failed because it needs a region of a set that stays empty.
    pub fn is_disabled(error: &Error) -> bool {
        error.code() == ErrorCode::Unsupported && error.message().ends_with(DISABLED)
    }

    fn check_open(&self) -> Result<()> {
        if self.closed {
            return Err(Error::unsupported(DISABLED));
        }
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Region>> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Region>> {
        self.by_name.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `byte_size` bytes of the object `key` from `offset` on as region `name`.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken; `Internal` if the object cannot be opened; `InvalidArg` for an invalid range of
    /// it; `Unsupported` if shared memory is disabled or the process has no fault handler.
    pub fn register(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<()> {
        let refuse = |reason: String| {
            Error::invalid_arg(format!("cannot register shared memory region '{name}': {reason}"))
        };
        self.check_open()?;
        let faults = self.faults.ok_or_else(|| {
            Error::unsupported(
                "system shared memory is not available: this process installed no handler of memory faults",
            )
        })?;
        let object = key.trim_start_matches('/');
        let mut reserved = self.reserved.as_deref().into_iter().chain([RESERVED]);
        if let Some(prefix) = reserved.find(|prefix| object.starts_with(prefix)) {
            return Err(refuse(format!("keys that begin with '{prefix}' are the Python backend's own")));
        }
        // Held until the end, so that only one of two registrations of a name succeeds.
        let mut regions = self.write();
        if regions.contains_key(name) {
            return Err(taken(name));
        }
        let cannot_open = |error: io::Error| {
            Error::internal(format!("cannot open shared memory object '{key}' for region '{name}': {error}"))
        };
        let file = shm::open(key, OFlags::RDWR, Mode::empty()).map_err(|error| cannot_open(error.into()))?;
        let stat = fstat(&file).map_err(|error| cannot_open(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(cannot_open(io::Error::other("it is not a shared memory object")));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if byte_size == 0 {
            return Err(refuse("byte_size is 0".into()));
        }
        if offset.checked_add(byte_size).is_none_or(|end| end > size) {
            return Err(refuse(format!(
                "object '{key}' has {size} bytes; {byte_size} bytes at offset {offset} exceed it"
            )));
        }
        if !offset.is_multiple_of(page_size() as u64) {
            return Err(refuse(format!(
                "offset {offset} is not a multiple of the page size, {}",
                page_size()
            )));
        }
        let length =
            usize::try_from(byte_size).map_err(|_| refuse("it does not fit the address space".into()))?;
        let mapping =
            Mapping::new(faults, name, &file, offset, length).map_err(|error| refuse(error.to_string()))?;
        let status = RegionStatus { name: name.into(), key: key.into(), offset, byte_size };
        regions.insert(name.to_owned(), Region::System { status, mapping: Arc::new(mapping) });
        Ok(())
    }

    /// Unregisters a system region. Requests that use it keep it. An unknown name is not an error.
    ///
    /// # Errors
    /// `Unsupported` if shared memory is disabled.
    pub fn unregister(&self, name: &str) -> Result<()> {
        self.check_open()?;
        self.forget(|named, region| named == name && region.system().is_some());
        Ok(())
    }

    /// Unregisters all system regions, in the same way.
    ///
    /// # Errors
    /// `Unsupported` if shared memory is disabled.
    pub fn unregister_all(&self) -> Result<()> {
        self.check_open()?;
        self.forget(|_, region| region.system().is_some());
        Ok(())
    }

    fn forget(&self, which: impl Fn(&str, &Region) -> bool) {
        let removed: Vec<_> = self.write().extract_if(.., |name, region| which(name, region)).collect();
        // Unmap without the lock.
        drop(removed);
    }

    /// All system regions, ordered by name.
    pub fn all(&self) -> Vec<RegionStatus> {
        self.read().values().filter_map(Region::system).cloned().collect()
    }

    /// A system region.
    ///
    /// # Errors
    /// `NotFound` if no region has that name.
    pub fn status(&self, name: &str) -> Result<RegionStatus> {
        match self.read().get(name) {
            None => Err(unknown(name)),
            Some(region) => region.system().cloned().ok_or_else(|| {
                Error::not_found(format!("region '{name}' is one of CUDA shared memory, not of the system's"))
            }),
        }
    }

    /// A range of a region.
    ///
    /// # Errors
    /// `NotFound` if no region has that name; `InvalidArg` if the range is empty or exceeds the region; `Unavailable` if the
    /// region is broken; `Unsupported` if shared memory is disabled.
    pub fn slice(&self, name: &str, offset: u64, length: u64) -> Result<Slice> {
        self.check_open()?;
        let regions = self.read();
        let region = regions.get(name).ok_or_else(|| unknown(name))?;
        let slice = match (usize::try_from(offset), usize::try_from(length)) {
            // Empty ranges are invalid, as in the reference.
            (Ok(start), Ok(length)) if length > 0 => region.slice(start, length),
            _ => None,
        };
        let slice = slice.ok_or_else(|| {
            let size = region.byte_size();
            let wrong = if offset < size { "offset + byte size" } else { "offset" };
            Error::invalid_arg(format!(
                "Invalid {wrong} for shared memory region: '{name}' has {size} bytes, {length} bytes at offset {offset} \
                 exceed it or are empty"
            ))
        })?;
        slice.check()?;
        Ok(slice)
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.read().keys()).finish()
    }
}

fn taken(name: &str) -> Error {
    let message = format!("shared memory region '{name}' already in manager; unregister it first");
    Error::new(ErrorCode::AlreadyExists, message)
}

fn unknown(name: &str) -> Error {
    Error::not_found(format!("Unable to find shared memory region: '{name}' is not registered"))
}

#[cfg(test)]
mod tests;
