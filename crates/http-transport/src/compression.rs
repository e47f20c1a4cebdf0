//! Compressed bodies: gzip and deflate (which in HTTP is the zlib format).
//!
//! Short bodies are compressed and decompressed in place, longer ones on a blocking thread. Decompression stops at a
//! limit, so a small body cannot become a huge one.

use std::io::{self, BufRead, Read, Write};

use bytes::{Buf, Bytes};
use flate2::Compression;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use hyper::{HeaderMap, Response};
use nereid_backend_api::{Error, Result};
use smallvec::SmallVec;
use tokio::task::spawn_blocking;

use crate::body::{Limit, RequestBody};
use crate::reply::{self, Contents, Pieces, Reply};

/// Compressed bodies up to this size are decompressed in place. They grow a thousandfold at most, which takes a few
/// milliseconds.
const SHORT_COMPRESSED: usize = 4 << 10;

/// Replies up to this size are compressed in place.
const SHORT_PLAIN: usize = 64 << 10;

/// The first byte of a gzip stream, which no zlib stream begins with.
const GZIP_MAGIC: u8 = 0x1f;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Not compressed.
    Identity,
    /// With gzip.
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

    /// The encoding that the client prefers for the reply: the first of those with the highest weight; `Identity` if it
    /// names none that is known.
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
/// `InvalidArg` if it is not compressed, is truncated, has trailing bytes, or exceeds the limit when decompressed.
pub async fn decompress(body: RequestBody, limit: Limit) -> Result<RequestBody> {
    let plain = if body.len() <= SHORT_COMPRESSED {
        decompressed(body, limit)
    } else {
        let task = spawn_blocking(move || decompressed(body, limit));
        task.await.map_err(|error| Error::internal(format!("decompressing failed: {error}")))?
    };
    Ok(RequestBody::from(plain?))
}

fn decompressed(body: RequestBody, limit: Limit) -> Result<Bytes> {
    let guess = body.len().saturating_mul(4).min(limit.bytes);
    let mut plain = Vec::with_capacity(guess);
    let mut compressed = body.reader();
    // One byte past the limit shows that it is exceeded.
    let most = (limit.bytes as u64).saturating_add(1);
    let read = match compressed.fill_buf() {
        Ok([GZIP_MAGIC, ..]) => MultiGzDecoder::new(compressed).take(most).read_to_end(&mut plain),
        Ok([_, ..]) => {
            let mut decoder = ZlibDecoder::new(compressed).take(most);
            decoder.read_to_end(&mut plain).and_then(|length| {
                let over = decoder.limit() == 0;
                let rest = decoder.into_inner().into_inner();
                match rest.get_ref().remaining() {
                    rest if rest > 0 && !over => Err(io::Error::other(format!("{rest} bytes after its end"))),
                    _ => Ok(length),
                }
            })
        }
        _ => Err(io::Error::other("it is empty")),
    };
    match read {
        Ok(length) if length > limit.bytes => {
            Err(Error::invalid_arg(limit.exceeded("the decompressed request body")))
        }
        Ok(_) => Ok(Bytes::from(plain)),
        Err(error) => {
            Err(Error::invalid_arg(format!("the request body is not valid gzip or deflate data: {error}")))
        }
    }
}

/// The reply with its body compressed. A streamed body is left unchanged.
pub async fn compress(reply: Reply, encoding: Encoding) -> Reply {
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
        compressed(&body, encoding)
    } else {
        spawn_blocking(move || compressed(&body, encoding))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    };
    match compressed {
        Ok(bytes) => {
            head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
            Response::from_parts(head, Contents::Whole(Pieces::new(SmallVec::from_iter([bytes]))))
        }
        Err(error) => reply::error(&Error::internal(format!("cannot compress the reply: {error}"))),
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
