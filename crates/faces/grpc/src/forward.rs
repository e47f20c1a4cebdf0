//! Headers forwarded to models as parameters.

use nereid_core::RequestHead;
use nereid_core::backend_api::{Parameters, Result};
use nereid_protocol::request_head;
use tonic::metadata::MetadataMap;

use crate::GrpcOptions;
use crate::stream::END_AT_ERROR;

/// Headers of gRPC and of this protocol that are never forwarded, in addition to those with the prefix `grpc-`.
const OWN: [&str; 3] = ["content-type", "te", END_AT_ERROR];

/// The head of a call, for models that choose their version by it.
pub(crate) fn head(options: &GrpcOptions, metadata: &MetadataMap) -> RequestHead {
    let headers = metadata.as_ref().iter().filter(|(name, _)| !is_secret(options, name.as_str()));
    request_head(headers.map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// Whether a header holds credentials, which models must not receive.
fn is_secret(options: &GrpcOptions, name: &str) -> bool {
    !options.access.is_open() && options.access.is_secret(name)
}

/// Adds the headers to forward to the model's parameters.
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
    pattern.forward(client.filter(|(name, _)| !is_secret(options, name)), parameters)
}
