//! Registration of shared memory regions. CUDA regions are refused: nothing here reads a GPU's memory.

use nereid_core::backend_api::{Error, Result};
use nereid_shared_memory::{RegionStatus as Status, Regions};

use crate::proto::system_shared_memory_status_response::RegionStatus;
use crate::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusResponse, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryStatusResponse,
};

/// One region, or all.
///
/// # Errors
/// `NotFound` if there is no such region.
pub(crate) fn status(regions: &Regions, name: &str) -> Result<SystemSharedMemoryStatusResponse> {
    let found = if name.is_empty() { regions.all() } else { vec![regions.status(name)?] };
    let wire = |Status { name, key, offset, byte_size }| {
        (name.clone(), RegionStatus { name, key, offset, byte_size })
    };
    Ok(SystemSharedMemoryStatusResponse { regions: found.into_iter().map(wire).collect() })
}

/// Registers a region.
///
/// # Errors
/// As [`Regions::register`]; a region needs a name.
pub(crate) fn register(regions: &Regions, request: &SystemSharedMemoryRegisterRequest) -> Result<()> {
    named(&request.name)?;
    regions.register(&request.name, &request.key, request.offset, request.byte_size)
}

/// Forgets one region, or all.
///
/// # Errors
/// `Unsupported` if clients may not use shared memory.
pub(crate) fn unregister(regions: &Regions, name: &str) -> Result<()> {
    if name.is_empty() { regions.unregister_all() } else { regions.unregister(name) }
}

/// One CUDA region, of which there are none, or all.
///
/// # Errors
/// `NotFound` if one is named.
pub(crate) fn cuda_status(name: &str) -> Result<CudaSharedMemoryStatusResponse> {
    if name.is_empty() {
        return Ok(CudaSharedMemoryStatusResponse::default());
    }
    Err(Error::not_found(format!("there is no CUDA shared memory region '{name}'")))
}

/// Refuses to register a CUDA region.
///
/// # Errors
/// Always: what is wrong with the request, or that there is no GPU.
pub(crate) fn cuda_register(request: &CudaSharedMemoryRegisterRequest) -> Result<()> {
    named(&request.name)?;
    Err(Error::invalid_arg(format!(
        "CUDA shared memory region '{}' cannot be registered: this server uses no GPU memory",
        request.name
    )))
}

fn named(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid_arg("the request to register a region lacks its name"));
    }
    Ok(())
}
