//! Memory that backends borrow from the server. Only ordinary memory is lent; there are no pools of devices.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use nereid_backend_api::{Error, Result};
use triton_sys::*;

use crate::boundary::exports;

/// As aligned as what `malloc` gives.
type Unit = u128;

/// Lends memory, and knows what it has lent: what is given back twice, or was never lent, is refused.
#[derive(Default)]
pub(crate) struct MemoryManager(Mutex<HashMap<usize, Vec<Unit>>>);

impl MemoryManager {
    fn lent(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Vec<Unit>>> {
        // Each change is one insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allocate(&self, byte_size: u64) -> Result<*mut c_void> {
        let too_large = || Error::unavailable(format!("there is no room for {byte_size} bytes"));
        // Of no bytes, too, each has an address of its own.
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
        let unknown = || Error::invalid_arg("the memory given back is not lent: was it given back before?");
        self.lent().remove(&address).map(drop).ok_or_else(unknown)
    }
}

fn check(kind: TRITONSERVER_MemoryType) -> Result<()> {
    match kind {
        TRITONSERVER_MEMORY_CPU => Ok(()),
        TRITONSERVER_MEMORY_CPU_PINNED | TRITONSERVER_MEMORY_GPU => {
            Err(Error::unsupported("this server lends neither pinned memory nor memory of a GPU"))
        }
        other => Err(Error::invalid_arg(format!("{} is not the number of a kind of memory", other.0))),
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
        check(memory_type).map_err(|error| error.context(format_args!("device {memory_type_id}")))?;
        buffer.get()?;
        buffer.set(manager.allocate(byte_size)?)?;
    }

    fn TRITONBACKEND_MemoryManagerFree(
        manager: *mut TRITONBACKEND_MemoryManager,
        buffer: *mut c_void,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) {
        check(memory_type).map_err(|error| error.context(format_args!("device {memory_type_id}")))?;
        manager.get()?.free(buffer.addr())?;
    }
}
