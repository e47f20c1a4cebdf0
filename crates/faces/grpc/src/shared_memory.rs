//! Registration of system and CUDA shared memory regions.

use nereid_core::backend_api::{Error, Result};
use nereid_shared_memory::{CudaRegionStatus as CudaStatus, RegionStatus as Status, Regions};

use crate::proto::cuda_shared_memory_status_response::RegionStatus as CudaRegionStatus;
use crate::proto::system_shared_memory_status_response::RegionStatus;
use crate::proto::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusResponse, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryStatusResponse,
};

/// Status of one system region, or of all if `name` is empty.
///
/// # Errors
/// `NotFound` for an unknown region.
pub(crate) fn status(regions: &Regions, name: &str) -> Result<SystemSharedMemoryStatusResponse> {
    let found = if name.is_empty() { regions.all() } else { vec![regions.status(name)?] };
    let wire = |Status { name, key, offset, byte_size }| {
        (name.clone(), RegionStatus { name, key, offset, byte_size })
    };
    Ok(SystemSharedMemoryStatusResponse { regions: found.into_iter().map(wire).collect() })
}

/// Registers a region of the system.
///
/// # Errors
/// As [`Regions::register`]; a region needs a name.
pub(crate) fn register(regions: &Regions, request: &SystemSharedMemoryRegisterRequest) -> Result<()> {
    named(&request.name)?;
    regions.register(&request.name, &request.key, request.offset, request.byte_size)
}

/// Forgets one region of the system, or all.
///
/// # Errors
/// `Unsupported` if client shared memory is disabled.
pub(crate) fn unregister(regions: &Regions, name: &str) -> Result<()> {
    if name.is_empty() { regions.unregister_all() } else { regions.unregister(name) }
}

/// Status of one CUDA region, or of all if `name` is empty.
///
/// # Errors
/// `NotFound` for an unknown region.
pub(crate) fn cuda_status(regions: &Regions, name: &str) -> Result<CudaSharedMemoryStatusResponse> {
    let found = if name.is_empty() { regions.all_cuda() } else { vec![regions.cuda_status(name)?] };
    let wire = |CudaStatus { name, device_id, byte_size }| {
        // The id of an existing GPU, so never negative.
        let device_id = device_id.unsigned_abs();
        (name.clone(), CudaRegionStatus { name, device_id, byte_size })
    };
    Ok(CudaSharedMemoryStatusResponse { regions: found.into_iter().map(wire).collect() })
}

/// Registers a CUDA region.
///
/// # Errors
/// As [`Regions::register_cuda`]; a region needs a name.
pub(crate) fn cuda_register(regions: &Regions, request: &CudaSharedMemoryRegisterRequest) -> Result<()> {
    named(&request.name)?;
    regions.register_cuda(&request.name, &request.raw_handle, request.device_id, request.byte_size)
}

/// Forgets one CUDA region, or all.
///
/// # Errors
/// `Unsupported` if client shared memory is disabled.
pub(crate) fn cuda_unregister(regions: &Regions, name: &str) -> Result<()> {
    if name.is_empty() { regions.unregister_all_cuda() } else { regions.unregister_cuda(name) }
}

fn named(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid_arg("the request to register a region lacks its name"));
    }
    Ok(())
}
