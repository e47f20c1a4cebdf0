//! Decoding requests and encoding tensors without a connection: only for fuzz targets and the test that replays their
//! corpus.

use bytes::Bytes;
use nereid_core::Signature;
use nereid_core::backend_api::{InferRequest, Result, Tensor};
use nereid_http::{Limit, RequestBody};
use nereid_shared_memory::Regions;

use super::{decoded, encode, generate};
use crate::dialect::json_length;

/// Decodes an `infer` body that arrives in these pieces, with this `Inference-Header-Content-Length`.
///
/// # Errors
/// The body is not a valid request.
pub fn infer(
    pieces: &[&[u8]],
    header_length: Option<&[u8]>,
    signature: &Signature,
    max_input: usize,
) -> Result<InferRequest> {
    let limit = limit(max_input);
    let mut body: RequestBody = pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
    let length = header_length.map(|announced| json_length(announced, body.len())).transpose()?;
    decoded(&mut body, length, "m", signature, (limit, &Regions::default())).map(|decoded| decoded.request)
}

/// Decodes a `generate` body.
///
/// # Errors
/// The body is not a valid request.
pub fn generated(json: &[u8], signature: &Signature, max_input: usize) -> Result<InferRequest> {
    generate::decode(json, signature, limit(max_input))
}

/// The elements of a tensor as in a reply: JSON values separated by commas.
///
/// # Errors
/// JSON cannot represent them.
pub fn elements(tensor: &Tensor) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    encode::elements(&mut json, tensor)?;
    Ok(json)
}

fn limit(bytes: usize) -> Limit {
    Limit { bytes, option: "" }
}
