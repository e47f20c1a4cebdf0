//! Requests and trailers, made of the fields of a header block (RFC 9113, section 8).

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};

use crate::hpack::{Field, Name, Pseudo};

/// The fields of one header block.
#[derive(Debug)]
pub(crate) struct Fields {
    method: Option<Method>,
    scheme: bool,
    authority: bool,
    path: Option<Uri>,
    headers: HeaderMap,
    /// The size of the fields, as limits count it.
    size: usize,
    limit: usize,
    /// Whether regular fields have begun.
    has_regular: bool,
    is_malformed: bool,
}

/// Why a block is not the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Malformed,
    /// The fields are larger than the limit.
    TooLarge,
}

/// The head of a request, and the length of its body if it is announced.
#[derive(Clone, Debug)]
pub(crate) struct RequestHead {
    pub parts: Parts,
    pub content_length: Option<u64>,
}

impl Fields {
    /// No fields yet; they may take `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            method: None,
            scheme: false,
            authority: false,
            path: None,
            headers: HeaderMap::new(),
            size: 0,
            limit,
            has_regular: false,
            is_malformed: false,
        }
    }

    /// Adds a field.
    pub(crate) fn add(&mut self, field: &Field) {
        self.size += field.size;
        if self.size > self.limit {
            // The rest is only decoded.
            self.headers.clear();
            return;
        }
        let is_sound = match &field.name {
            Name::Pseudo(pseudo) => !self.has_regular && self.add_pseudo(*pseudo, &field.value),
            Name::Regular(name) => {
                self.has_regular = true;
                self.add_regular(name, &field.value)
            }
            Name::Malformed => false,
        };
        self.is_malformed |= !is_sound;
    }

    /// Whether the field is permitted.
    fn add_pseudo(&mut self, pseudo: Pseudo, value: &HeaderValue) -> bool {
        match pseudo {
            Pseudo::Method => {
                let method = Method::from_bytes(value.as_bytes()).ok();
                method.is_some_and(|method| self.method.replace(method).is_none())
            }
            Pseudo::Scheme => !std::mem::replace(&mut self.scheme, true),
            Pseudo::Authority => !std::mem::replace(&mut self.authority, true),
            Pseudo::Path => {
                let path = match value.as_bytes() {
                    [b'/' | b'*', ..] => Uri::from_maybe_shared(value.clone()).ok(),
                    _ => None,
                };
                path.is_some_and(|path| self.path.replace(path).is_none())
            }
        }
    }

    /// Whether the field is permitted.
    fn add_regular(&mut self, name: &HeaderName, value: &HeaderValue) -> bool {
        let is_of_connection = *name == CONNECTION
            || *name == TRANSFER_ENCODING
            || *name == UPGRADE
            || (*name == TE && value != "trailers")
            || matches!(name.as_str(), "keep-alive" | "proxy-connection");
        // Fails for more fields than a map can hold, which the limit excludes.
        !is_of_connection && self.headers.try_append(name, value.clone()).is_ok()
    }

    /// The head of a request that has these fields.
    pub(crate) fn into_head(self) -> Result<RequestHead, Unusable> {
        if self.size > self.limit {
            return Err(Unusable::TooLarge);
        }
        let (Some(method), Some(path), true, false) =
            (self.method, self.path, self.scheme, self.is_malformed)
        else {
            return Err(Unusable::Malformed);
        };
        let content_length = match self.headers.get(CONTENT_LENGTH) {
            None => None,
            Some(value) => Some(length(value).ok_or(Unusable::Malformed)?),
        };
        if self.headers.get_all(HOST).iter().nth(1).is_some() {
            return Err(Unusable::Malformed);
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = method;
        parts.uri = path;
        parts.version = Version::HTTP_2;
        parts.headers = self.headers;
        Ok(RequestHead { parts, content_length })
    }

    /// The trailers that have these fields; `None` if they are malformed or too large.
    pub(crate) fn into_trailers(self) -> Option<HeaderMap> {
        let has_pseudo = self.method.is_some() || self.path.is_some() || self.scheme || self.authority;
        (self.size <= self.limit && !self.is_malformed && !has_pseudo).then_some(self.headers)
    }
}

fn length(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
