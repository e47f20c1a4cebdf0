//! Memory that backends borrow from the server: from the heap, and from the pools.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Error, MemoryKind, Result};
use nereid_cuda::Pools;
use triton_sys::*;

use crate::boundary::exports;
use crate::names::memory_from_c;

/// The alignment of `malloc`.
type Unit = u128;

/// Allocates memory and tracks it: freeing it twice, or freeing other memory, is an error.
pub(crate) struct MemoryManager {
    ordinary: Mutex<HashMap<usize, Vec<Unit>>>,
    pools: Arc<Pools>,
}

impl MemoryManager {
    pub(crate) fn new(pools: Arc<Pools>) -> Self {
        Self { ordinary: Mutex::default(), pools }
    }

    fn lent(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Vec<Unit>>> {
        // Each change is one insertion or removal.
        self.ordinary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allocate(&self, byte_size: u64) -> Result<*mut c_void> {
        let too_large = || Error::unavailable(format!("cannot allocate {byte_size} bytes"));
        // Empty allocations have distinct addresses, too.
        let units =
            usize::try_from(byte_size.div_ceil(size_of::<Unit>() as u64).max(1)).map_err(|_| too_large())?;
        let mut memory = Vec::new();
        memory.try_reserve_exact(units).map_err(|_| too_large())?;
        memory.resize(units, 0);
        let address: *mut Unit = memory.as_mut_ptr();
        self.lent().insert(address.addr(), memory);
        Ok(address.cast())
    }

    fn free(&self, address: usize) -> Result<()> {
        let unknown = || Error::invalid_arg("unknown memory: was it freed before?");
        self.lent().remove(&address).map(drop).ok_or_else(unknown)
    }
}

exports! {
    fn TRITONBACKEND_MemoryManagerAllocate(
        manager: *mut TRITONBACKEND_MemoryManager,
        buffer: *mut *mut c_void,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
        byte_size: u64,
    ) {
        let manager = manager.get()?;
        let memory = memory_from_c(memory_type, memory_type_id)?;
        buffer.get()?;
        buffer.set(match memory.kind {
            MemoryKind::Cpu => manager.allocate(byte_size)?,
            MemoryKind::CpuPinned | MemoryKind::Gpu => manager.pools.allocate(memory, byte_size)?,
        })?;
    }

    fn TRITONBACKEND_MemoryManagerFree(
        manager: *mut TRITONBACKEND_MemoryManager,
        buffer: *mut c_void,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) {
        let memory = memory_from_c(memory_type, memory_type_id)?;
        let manager = manager.get()?;
        match memory.kind {
            MemoryKind::Cpu => manager.free(buffer.addr())?,
            MemoryKind::CpuPinned | MemoryKind::Gpu => manager.pools.free(memory, buffer.addr())?,
        }
    }
}
