//! Compressed bodies of inference requests and of their answers: gzip and deflate (the zlib format, as HTTP means it).
//!
//! What is small is compressed and decompressed where it is needed; what takes longer goes to a thread that may block.
//! Decompressing stops at a limit, so that no small body becomes a large one.

use std::io::{self, BufRead, Read, Write};

use bytes::{Buf, Bytes};
use flate2::Compression;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use hyper::{HeaderMap, Response};
use nereid_core::backend_api::{Error, Result};
use smallvec::SmallVec;
use tokio::task::spawn_blocking;

use crate::body::Pieces;
use crate::reply::{self, Contents, Reply};

/// Compressed bodies up to this size are decompressed at once. They become a thousand times as large at most, which
/// takes a few milliseconds.
const SHORT_COMPRESSED: usize = 4 << 10;

/// Answers up to this size are compressed at once.
const SHORT_PLAIN: usize = 64 << 10;

/// The first byte of a gzip stream. No zlib stream begins so.
const GZIP_MAGIC: u8 = 0x1f;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    /// What the request says of its body; what it says if that is not known here.
    pub(crate) fn of_request(headers: &HeaderMap) -> Result<Self, String> {
        match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"") => Ok(Self::Identity),
            Some(name) => Self::named(name).ok_or_else(|| String::from_utf8_lossy(name).into_owned()),
        }
    }

    /// The encoding that the client likes best for the answer: of those with the highest weight the first. A client that
    /// does not name one we know gets the answer as it is.
    pub(crate) fn of_answer(headers: &HeaderMap) -> Self {
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

/// The answer to a body that is encoded in a way not known here.
pub(crate) fn unknown(encoding: &str) -> Reply {
    let message = format!("Content-Encoding '{encoding}' is not taken; gzip, deflate and identity are");
    let mut reply = reply::error(&Error::unsupported(message));
    reply.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
    reply
}

/// A body as it was before it was compressed. Its own first byte tells whether that is gzip or deflate, as with the
/// reference.
///
/// # Errors
/// `InvalidArg` if it is not compressed, is cut off, is followed by something else, or becomes longer than `limit` bytes.
pub(crate) async fn decompress(body: Pieces, limit: usize) -> Result<Pieces> {
    let plain = if body.len() <= SHORT_COMPRESSED {
        decompressed(body, limit)
    } else {
        let task = spawn_blocking(move || decompressed(body, limit));
        task.await.map_err(|error| Error::internal(format!("decompressing failed: {error}")))?
    };
    Ok(Pieces::from(plain?))
}

fn decompressed(body: Pieces, limit: usize) -> Result<Bytes> {
    let guess = body.len().saturating_mul(4).min(limit);
    let mut plain = Vec::with_capacity(guess);
    let mut compressed = body.reader();
    // One byte more tells that there is more.
    let most = (limit as u64).saturating_add(1);
    let read = match compressed.fill_buf() {
        Ok([GZIP_MAGIC, ..]) => MultiGzDecoder::new(compressed).take(most).read_to_end(&mut plain),
        Ok([_, ..]) => {
            let mut decoder = ZlibDecoder::new(compressed).take(most);
            decoder.read_to_end(&mut plain).and_then(|length| {
                let over = decoder.limit() == 0;
                let rest = decoder.into_inner().into_inner();
                match rest.get_ref().remaining() {
                    rest if rest > 0 && !over => {
                        Err(io::Error::other(format!("{rest} bytes follow its end")))
                    }
                    _ => Ok(length),
                }
            })
        }
        _ => Err(io::Error::other("it is empty")),
    };
    match read {
        Ok(length) if length > limit => Err(Error::invalid_arg(format!(
            "the decompressed request body is over the limit of {limit} bytes; --http-max-input-size raises the limit"
        ))),
        Ok(_) => Ok(Bytes::from(plain)),
        Err(error) => Err(Error::invalid_arg(format!(
            "the request body is neither gzip nor deflate as it should be: {error}"
        ))),
    }
}

/// The answer with its body compressed. A body that comes bit by bit is left as it is.
pub(crate) async fn compress(reply: Reply, encoding: Encoding) -> Reply {
    let name = match encoding {
        Encoding::Identity => return reply,
        Encoding::Gzip => "gzip",
        Encoding::Deflate => "deflate",
    };
    let (mut head, body) = match reply.into_parts() {
        (head, Contents::Whole(body)) => (head, body),
        (head, other @ (Contents::Stream(_) | Contents::Traced(_))) => {
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
            Response::from_parts(head, Contents::Whole(reply::Pieces::new(SmallVec::from_iter([bytes]))))
        }
        Err(error) => reply::error(&Error::internal(format!("compressing the answer failed: {error}"))),
    }
}

fn compressed(body: &reply::Pieces, encoding: Encoding) -> io::Result<Bytes> {
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
