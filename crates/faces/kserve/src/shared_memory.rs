//! Registration of shared memory regions: system memory and GPU memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use nereid_core::backend_api::{Error, Result};
use nereid_http::RequestBody;
use nereid_http::{Reply, reply};
use nereid_shared_memory::{CudaRegionStatus, RegionStatus};
use serde::Serialize;
use serde_json::Value;

use crate::call::Call;
use crate::control::Members;

#[derive(Serialize)]
struct Region {
    name: String,
    key: String,
    offset: u64,
    byte_size: u64,
}

impl From<RegionStatus> for Region {
    fn from(RegionStatus { name, key, offset, byte_size }: RegionStatus) -> Self {
        Self { name, key, offset, byte_size }
    }
}

#[derive(Serialize)]
struct CudaRegion {
    name: String,
    device_id: i64,
    byte_size: u64,
}

impl From<CudaRegionStatus> for CudaRegion {
    fn from(CudaRegionStatus { name, device_id, byte_size }: CudaRegionStatus) -> Self {
        Self { name, device_id, byte_size }
    }
}

/// The system region that the path names, or all.
///
/// # Errors
/// `NotFound` if the region is unknown.
pub(crate) fn status(call: &Call<'_>) -> Result<Reply> {
    let regions = &call.face.options.regions;
    let regions = match &*call.target.region {
        "" => regions.all(),
        name => vec![regions.status(name)?],
    };
    let regions: Vec<Region> = regions.into_iter().map(Region::from).collect();
    Ok(reply::json(StatusCode::OK, &regions))
}

/// Registers a system region.
///
/// # Errors
/// Which member is wrong, or why the memory cannot be registered.
pub(crate) fn register(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let name = named(call)?;
    let members = Members::read(call.face, body)?;
    let Some(key) = members.value("key") else { return Err(missing("key")) };
    let key = key.as_str().ok_or_else(|| Error::internal("'key' is not a string"))?;
    let offset = members.value("offset").map_or(Ok(0), |offset| bytes("offset", offset))?;
    let Some(byte_size) = members.value("byte_size") else { return Err(missing("byte_size")) };
    let byte_size = bytes("byte_size", byte_size)?;
    call.face.options.regions.register(name, key, offset, byte_size)?;
    Ok(reply::empty(StatusCode::OK))
}

/// Unregisters the system region that the path names, or all.
///
/// # Errors
/// `Unsupported` if clients may not use shared memory.
pub(crate) fn unregister(call: &Call<'_>) -> Result<Reply> {
    match &*call.target.region {
        "" => call.face.options.regions.unregister_all()?,
        name => call.face.options.regions.unregister(name)?,
    }
    Ok(reply::empty(StatusCode::OK))
}

/// The CUDA region that the path names, or all.
///
/// # Errors
/// `NotFound` if the region is unknown.
pub(crate) fn cuda_status(call: &Call<'_>) -> Result<Reply> {
    let regions = &call.face.options.regions;
    let regions = match &*call.target.region {
        "" => regions.all_cuda(),
        name => vec![regions.cuda_status(name)?],
    };
    let regions: Vec<CudaRegion> = regions.into_iter().map(CudaRegion::from).collect();
    Ok(reply::json(StatusCode::OK, &regions))
}

/// Registers a CUDA region.
///
/// # Errors
/// Which member is wrong, or why the memory cannot be registered.
pub(crate) fn cuda_register(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let name = named(call)?;
    let members = Members::read(call.face, body)?;
    let Some(handle) = members.value("raw_handle") else { return Err(missing("raw_handle")) };
    let handle = handle.get("b64").and_then(Value::as_str);
    let handle =
        handle.ok_or_else(|| Error::internal("'raw_handle' is not an object with a string 'b64'"))?;
    let count = |name: &str| {
        let value = members.value(name).ok_or_else(|| Error::internal(missing(name).message().to_owned()))?;
        bytes(name, value)
    };
    let (byte_size, device) = (count("byte_size")?, count("device_id")?);
    let handle = STANDARD
        .decode(handle)
        .map_err(|error| Error::invalid_arg(format!("'raw_handle' is not valid base64: {error}")))?;
    // No GPU has a number that high.
    let device = i64::try_from(device).unwrap_or(i64::MAX);
    call.face.options.regions.register_cuda(name, &handle, device, byte_size)?;
    Ok(reply::empty(StatusCode::OK))
}

/// Unregisters the CUDA region that the path names, or all.
///
/// # Errors
/// `Unsupported` if clients may not use shared memory.
pub(crate) fn cuda_unregister(call: &Call<'_>) -> Result<Reply> {
    match &*call.target.region {
        "" => call.face.options.regions.unregister_all_cuda()?,
        name => call.face.options.regions.unregister_cuda(name)?,
    }
    Ok(reply::empty(StatusCode::OK))
}

fn named<'c>(call: &'c Call<'_>) -> Result<&'c str> {
    match &*call.target.region {
        "" => Err(Error::invalid_arg("the path lacks a region; expected /v2/.../region/<name>/register")),
        name => Ok(name),
    }
}

fn missing(name: &str) -> Error {
    Error::invalid_arg(format!("the registration request lacks '{name}'"))
}

fn bytes(name: &str, value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| Error::internal(format!("'{name}' is not a non-negative integer")))
}
