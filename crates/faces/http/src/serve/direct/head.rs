//! The heads of requests that need nothing of hyper.

use std::mem::MaybeUninit;

use bytes::Bytes;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Uri};

/// The most headers, as in hyper.
const MAX_HEADERS: usize = 100;

/// A request's head.
pub(super) struct Head {
    /// As received, with the empty line.
    pub bytes: Bytes,
    pub parts: Parts,
    /// The length of the body.
    pub body: usize,
    /// Whether the client announces that this is its last request.
    pub is_last: bool,
}

/// The outcome of reading a head.
pub(super) enum Parsed {
    Head(Box<Head>),
    /// The empty line has not arrived.
    Partial,
    /// Invalid, or in need of more than a plain request.
    Unusual,
}

impl Head {
    /// Whether `bytes` begin with the same head.
    pub(super) fn starts(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(&self.bytes)
    }

    /// Reads the head that `received` begins with. Whatever hyper would refuse or treat in a special way is `Unusual`.
    pub(super) fn parse(received: &[u8]) -> Parsed {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(received, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Parsed::Partial,
            Err(_) => return Parsed::Unusual,
        };
        // A copy, so that a head that is kept for later requests does not hold more than itself.
        let bytes = Bytes::copy_from_slice(received.get(..length).unwrap_or(received));
        Self::of(&request, received, bytes).map_or(Parsed::Unusual, |head| Parsed::Head(Box::new(head)))
    }

    /// `bytes`: a copy of the head in `received`, which `request` was read from.
    fn of(request: &httparse::Request<'_, '_>, received: &[u8], bytes: Bytes) -> Option<Self> {
        let method = match request.method? {
            "POST" => Method::POST,
            "GET" => Method::GET,
            _ => return None,
        };
        if request.version != Some(1) {
            return None;
        }
        let shared = |part: &[u8]| {
            let start = part.as_ptr() as usize - received.as_ptr() as usize;
            bytes.get(start..start + part.len()).map(|part| bytes.slice_ref(part))
        };
        let path = request.path.filter(|path| path.starts_with('/'))?;
        let uri = Uri::from_maybe_shared(shared(path.as_bytes())?).ok()?;
        let (mut body, mut is_last) = (None, false);
        let mut headers = HeaderMap::with_capacity(request.headers.len());
        for header in request.headers.iter() {
            let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
            match name {
                CONTENT_LENGTH if body.is_some() => return None,
                CONTENT_LENGTH => body = Some(length(header.value)?),
                CONNECTION if header.value.eq_ignore_ascii_case(b"close") => is_last = true,
                CONNECTION if header.value.eq_ignore_ascii_case(b"keep-alive") => {}
                CONNECTION | EXPECT | TRAILER | TRANSFER_ENCODING | UPGRADE => return None,
                _ => {}
            }
            let value = HeaderValue::from_maybe_shared(shared(header.value)?).ok()?;
            headers.append(name, value);
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.method, parts.uri, parts.headers) = (method, uri, headers);
        Some(Self { bytes, parts, body: body.unwrap_or(0), is_last })
    }
}

/// A length of digits alone.
fn length(text: &[u8]) -> Option<usize> {
    let is_plain = (1..10).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()
}
