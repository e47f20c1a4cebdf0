//! Registration of shared memory regions. CUDA regions are refused: nothing here reads a GPU's memory.

use hyper::StatusCode;
use nereid_core::backend_api::{Error, ErrorCode, Result};
use nereid_shared_memory::RegionStatus;
use serde::Serialize;
use serde_json::Value;

use crate::body::Pieces;
use crate::control::Members;
use crate::reply::{self, Reply};
use crate::routes::Call;

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

/// The region that the path names, or all.
///
/// # Errors
/// `NotFound` if there is no such region.
pub(crate) fn status(call: &Call<'_>) -> Result<Reply> {
    let regions = &call.face.options.regions;
    let regions = match &*call.target.region {
        "" => regions.all(),
        name => vec![regions.status(name)?],
    };
    let regions: Vec<Region> = regions.into_iter().map(Region::from).collect();
    Ok(reply::json(StatusCode::OK, &regions))
}

/// Registers a region.
///
/// # Errors
/// Which member is wrong, or why the memory cannot be had.
pub(crate) fn register(call: &Call<'_>, body: Pieces) -> Result<Reply> {
    let name = named(call)?;
    let members = Members::read(call.face, body)?;
    let Some(key) = members.value("key") else { return Err(missing("key")) };
    let key = key.as_str().ok_or_else(|| Error::internal("'key' is not a string"))?;
    let offset = members.value("offset").map_or(Ok(0), |offset| bytes("offset", offset))?;
    let Some(byte_size) = members.value("byte_size") else { return Err(missing("byte_size")) };
    let byte_size = bytes("byte_size", byte_size)?;
    call.face.options.regions.register(name, key, offset, byte_size).map_err(|error| match error.code() {
        // The reference answers 400.
        ErrorCode::AlreadyExists => Error::invalid_arg(error.message().to_owned()),
        _ => error,
    })?;
    Ok(reply::empty(StatusCode::OK))
}

/// Forgets the region that the path names, or all.
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

/// The CUDA region that the path names, of which there are none, or all.
///
/// # Errors
/// `NotFound` if the path names one.
pub(crate) fn cuda_status(call: &Call<'_>) -> Result<Reply> {
    match &*call.target.region {
        "" => Ok(reply::json_bytes(StatusCode::OK, "[]")),
        name => Err(Error::not_found(format!("there is no CUDA shared memory region '{name}'"))),
    }
}

/// Refuses to register a CUDA region.
///
/// # Errors
/// Always: what is wrong with the request, or that there is no GPU.
pub(crate) fn cuda_register(call: &Call<'_>, body: Pieces) -> Result<Reply> {
    let name = named(call)?;
    let members = Members::read(call.face, body)?;
    if members.value("raw_handle").is_none() {
        return Err(missing("raw_handle"));
    }
    Err(Error::invalid_arg(format!(
        "CUDA shared memory region '{name}' cannot be registered: this server uses no GPU memory"
    )))
}

fn named<'c>(call: &'c Call<'_>) -> Result<&'c str> {
    match &*call.target.region {
        "" => Err(Error::invalid_arg("the path names no region: /v2/.../region/<name>/register")),
        name => Ok(name),
    }
}

fn missing(name: &str) -> Error {
    Error::invalid_arg(format!("the request to register a region lacks '{name}'"))
}

fn bytes(name: &str, value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| Error::internal(format!("'{name}' is not a whole number from 0 on")))
}
