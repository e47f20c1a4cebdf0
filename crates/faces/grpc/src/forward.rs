//! Headers forwarded to models as parameters.

use nereid_core::backend_api::{Parameters, Result};
use tonic::metadata::MetadataMap;

use crate::GrpcOptions;
use crate::stream::END_AT_ERROR;

/// Headers that belong to gRPC or this protocol themselves, beside those that begin with `grpc-`.
const OWN: [&str; 3] = ["content-type", "te", END_AT_ERROR];

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
