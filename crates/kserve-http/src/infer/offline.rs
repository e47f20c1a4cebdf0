//! Requests decoded and tensors encoded without a connection, for those who try to break it: the fuzz targets and the test
//! that replays their corpus. Not meant for anything else.

use bytes::Bytes;
use nereid_core::Signature;
use nereid_core::backend_api::{InferRequest, Result, Tensor};
use nereid_http_transport::{Limit, RequestBody};
use nereid_shared_memory::Regions;

use super::{decoded, encode, generate};

/// The request in the body of `infer` that arrived in these pieces, with this `Inference-Header-Content-Length`.
///
/// # Errors
/// What is wrong with it.
pub fn infer(
    pieces: &[&[u8]],
    header_length: Option<&[u8]>,
    signature: &Signature,
    max_input: usize,
) -> Result<InferRequest> {
    let limit = limit(max_input);
    let mut body: RequestBody = pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
    decoded(&mut body, header_length, "m", signature, (limit, &Regions::default()))
        .map(|decoded| decoded.request)
}

/// The request in the body of `generate`.
///
/// # Errors
/// What is wrong with it.
pub fn generated(json: &[u8], signature: &Signature, max_input: usize) -> Result<InferRequest> {
    generate::decode(json, signature, limit(max_input))
}

/// The elements of a tensor as an answer has them: JSON values with commas between them.
///
/// # Errors
/// Why they have no form in JSON.
pub fn elements(tensor: &Tensor) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    encode::elements(&mut json, tensor)?;
    Ok(json)
}

fn limit(bytes: usize) -> Limit {
    Limit { bytes, option: "" }
}
