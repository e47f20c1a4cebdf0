//! Headers forwarded to models as parameters.

use std::time::Duration;

use nereid_core::RequestHead;
use nereid_core::backend_api::{Parameters, Result};
use nereid_protocol::request_head;
use tonic::metadata::MetadataMap;

use crate::proto::ModelInferRequest;
use crate::proto::infer_parameter::ParameterChoice;
use crate::stream::END_AT_ERROR;
use crate::{GrpcOptions, deadline};

/// Headers of gRPC and of this protocol that are never forwarded, in addition to those with the prefix `grpc-`.
const OWN: [&str; 3] = ["content-type", "te", END_AT_ERROR];

/// The head of a call, for models that choose their version by it or have to be loaded before its deadline.
pub(crate) fn head(options: &GrpcOptions, metadata: &MetadataMap) -> RequestHead {
    let headers = metadata.as_ref().iter().filter(|(name, _)| !is_secret(options, name.as_str()));
    let head = request_head(headers.map(|(name, value)| (name.as_str(), value.as_bytes())));
    head.with_time_limit(deadline::of(metadata.as_ref()))
}

/// The [`head`] of an inference request, whose parameter `timeout` may be shorter than the deadline.
pub(crate) fn head_of(
    options: &GrpcOptions,
    metadata: &MetadataMap,
    message: &ModelInferRequest,
) -> RequestHead {
    let timeout = message.parameters.get("timeout").and_then(|it| it.parameter_choice.as_ref());
    let micros = match timeout {
        Some(ParameterChoice::Int64Param(micros)) => u64::try_from(*micros).ok().filter(|micros| *micros > 0),
        _ => None,
    };
    let limits = [micros.map(Duration::from_micros), deadline::of(metadata.as_ref())];
    head(options, metadata).with_time_limit(limits.into_iter().flatten().min())
}

/// Whether a header holds credentials, which models must not receive.
fn is_secret(options: &GrpcOptions, name: &str) -> bool {
    options.access.is_secret(name)
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
