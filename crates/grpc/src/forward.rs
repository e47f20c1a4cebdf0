//! Headers that models get as parameters.

use nereid_core::backend_api::{Parameters, Result};
use tonic::metadata::MetadataMap;

use crate::GrpcOptions;

/// Headers that belong to gRPC itself, beside those that begin with `grpc-`.
const OWN: [&str; 2] = ["content-type", "te"];

/// Sets the headers of a call that models are to get.
///
/// # Errors
/// `InvalidArg` for a header that cannot be forwarded.
pub(crate) fn headers(
    options: &GrpcOptions,
    metadata: &MetadataMap,
    parameters: &mut Parameters,
) -> Result<()> {
    let Some(pattern) = &options.forwarded_headers else { return Ok(()) };
    let headers = metadata.as_ref().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let client = headers.filter(|(name, _)| !OWN.contains(name) && !name.starts_with("grpc-"));
    pattern.forward(client, parameters)
}
