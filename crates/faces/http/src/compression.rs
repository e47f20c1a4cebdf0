//! Compressed bodies: gzip and deflate (in HTTP the zlib format; raw deflate, which some clients send, is accepted,
//! too).
//!
//! Short bodies are compressed and decompressed inline, longer ones as [long work](long_work). Decompression stops at a
//! limit, so a small body cannot become a huge one.

use std::fmt::Display;
use std::io::{self, BufRead, Read, Write};

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use flate2::Compression;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use hyper::{HeaderMap, Response};
use nereid_backend_api::{Error, Result};
use nereid_budgets::{BodyBudget, DecompressionError};
use nereid_tasks::long_work;
use smallvec::SmallVec;

use crate::body::{Limit, RequestBody};
use crate::reply::{self, Contents, Pieces, Reply};

/// Compressed bodies up to this size are decompressed inline. They expand a thousandfold at most, which takes a few
/// milliseconds.
const SHORT_COMPRESSED: usize = 4 << 10;

/// Replies up to this size are compressed inline.
const SHORT_PLAIN: usize = 64 << 10;

/// First byte of a gzip stream; neither a zlib stream nor a plausible deflate stream begins with it.
const GZIP_MAGIC: u8 = 0x1f;

/// Whether a stream with this first byte has a zlib header: the method deflate, and a window of 32 KiB at most. Other
/// streams are raw deflate, which some clients send under this name.
fn is_zlib(first: u8) -> bool {
    first & 0x0f == 8 && first >> 4 <= 7
}

/// Content encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Not compressed.
    Identity,
    /// Gzip.
    Gzip,
    /// In the zlib format.
    Deflate,
}

impl Encoding {
    /// The encoding of a request's body.
    ///
    /// # Errors
    /// The name of an unknown encoding.
    pub fn of_request(headers: &HeaderMap) -> Result<Self, String> {
        match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"") => Ok(Self::Identity),
            Some(name) => Self::named(name).ok_or_else(|| String::from_utf8_lossy(name).into_owned()),
        }
    }

    /// The client's preferred encoding of the reply: the first of those with the highest weight; `Identity` if it
    /// accepts no supported one.
    pub fn of_reply(headers: &HeaderMap) -> Self {
        let Some(accepted) = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()) else {
            return Self::Identity;
        };
        let (mut best, mut highest) = (Self::Identity, 0.0);
        for offer in accepted.split(',') {
            let mut parts = offer.split(';').map(str::trim);
            let Some(encoding) = parts.next().and_then(|name| Self::named(name.as_bytes())) else { continue };
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            let weight = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
            if weight > highest {
                (best, highest) = (encoding, weight);
            }
        }
        best
    }

    fn named(name: &[u8]) -> Option<Self> {
        [(Self::Identity, "identity"), (Self::Gzip, "gzip"), (Self::Deflate, "deflate")]
            .into_iter()
            .find(|(_, known)| name.eq_ignore_ascii_case(known.as_bytes()))
            .map(|(encoding, _)| encoding)
    }
}

/// The reply to a body in an unknown encoding.
pub fn unknown_encoding(encoding: &str) -> Reply {
    let message = format!("unsupported Content-Encoding '{encoding}' (supported: gzip, deflate, identity)");
    let mut reply = reply::error(&Error::unsupported(message));
    reply.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
    reply
}

/// Decompresses a body. Its first byte distinguishes gzip from deflate, as in Triton.
///
/// # Errors
/// `InvalidArg` if the body is not compressed, is truncated, has trailing bytes, or exceeds the limit when
/// decompressed. `Unavailable` if the budget cannot hold it.
pub async fn decompress(body: RequestBody, limit: Limit, budget: &BodyBudget) -> Result<RequestBody> {
    if body.len() <= SHORT_COMPRESSED {
        return decompressed(body, limit, budget);
    }
    let budget = budget.clone();
    long_work::run(move || decompressed(body, limit, &budget)).await?
}

fn decompressed(mut body: RequestBody, limit: Limit, budget: &BodyBudget) -> Result<RequestBody> {
    let (length, mut share) = (body.len(), body.take_share());
    let mut read = |decoder: &mut dyn Read| {
        share.decompress(budget, length, limit.bytes, decoder).map_err(|error| match error {
            DecompressionError::Invalid(error) => invalid(error),
            DecompressionError::TooLong => {
                Error::invalid_arg(limit.exceeded("the decompressed request body"))
            }
            DecompressionError::NoRoom(error) => error,
        })
    };
    let mut compressed = body.reader();
    let plain = match compressed.fill_buf() {
        Ok([GZIP_MAGIC, ..]) => read(&mut MultiGzDecoder::new(compressed))?,
        Ok([first, ..]) if is_zlib(*first) => {
            let mut decoder = ZlibDecoder::new(compressed);
            let plain = read(&mut decoder)?;
            at_end(&decoder.into_inner())?;
            plain
        }
        Ok([_, ..]) => {
            let mut decoder = DeflateDecoder::new(compressed);
            let plain = read(&mut decoder)?;
            at_end(&decoder.into_inner())?;
            plain
        }
        _ => return Err(invalid("the body is empty")),
    };
    Ok(RequestBody::from(share.attached_to(plain)))
}

fn at_end(rest: &Reader<RequestBody>) -> Result<()> {
    match rest.get_ref().remaining() {
        0 => Ok(()),
        rest => Err(invalid(format_args!("{rest} bytes after its end"))),
    }
}

fn invalid(reason: impl Display) -> Error {
    Error::invalid_arg(format!("the request body is not valid gzip or deflate data: {reason}"))
}

/// The reply with its body compressed. A streamed body is left unchanged.
pub async fn compress(reply: Reply, encoding: Encoding, budget: &BodyBudget) -> Reply {
    let name = match encoding {
        Encoding::Identity => return reply,
        Encoding::Gzip => "gzip",
        Encoding::Deflate => "deflate",
    };
    let (mut head, body) = match reply.into_parts() {
        (head, Contents::Whole(body)) => (head, body),
        (head, other @ (Contents::Stream(_) | Contents::Guarded(_))) => {
            return Response::from_parts(head, other);
        }
    };
    let compressed = if body.len() <= SHORT_PLAIN {
        Ok(compressed(&body, encoding))
    } else {
        long_work::run(move || compressed(&body, encoding)).await
    };
    let compressed = compressed.and_then(|outcome| {
        let bytes =
            outcome.map_err(|error| Error::internal(format!("cannot compress the reply: {error}")))?;
        budget.hold(bytes)
    });
    match compressed {
        Ok(bytes) => {
            head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
            Response::from_parts(head, Contents::Whole(Pieces::new(SmallVec::from_iter([bytes]))))
        }
        Err(error) => reply::error(&error),
    }
}

fn compressed(body: &Pieces, encoding: Encoding) -> io::Result<Bytes> {
    let target = Vec::with_capacity(body.len() / 2 + 64);
    let compressed = if encoding == Encoding::Gzip {
        let mut encoder = GzEncoder::new(target, Compression::default());
        body.iter().try_for_each(|piece| encoder.write_all(piece))?;
        encoder.finish()?
    } else {
        let mut encoder = ZlibEncoder::new(target, Compression::default());
        body.iter().try_for_each(|piece| encoder.write_all(piece))?;
        encoder.finish()?
    };
    Ok(Bytes::from(compressed))
}

#[cfg(test)]
mod tests;
