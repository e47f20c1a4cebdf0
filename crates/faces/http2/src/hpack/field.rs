//! Header fields, and the static table.

use std::sync::LazyLock;

use http::{HeaderName, HeaderValue};

use super::OVERHEAD;

/// A decoded header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub name: Name,
    pub value: HeaderValue,
    /// Size of the field in a table.
    pub size: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Pseudo(Pseudo),
    Regular(HeaderName),
    /// HTTP does not permit the name, or the value.
    Malformed,
}

/// The pseudo-header fields of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pseudo {
    Method,
    Scheme,
    Authority,
    Path,
}

impl Field {
    pub(super) fn new(name: &[u8], value: &[u8]) -> Self {
        Self::with_name(Name::new(name), name.len(), value)
    }

    /// A field whose name is known, and its length.
    pub(super) fn with_name(name: Name, name_length: usize, value: &[u8]) -> Self {
        let size = name_length + value.len() + OVERHEAD;
        match HeaderValue::from_bytes(value) {
            Ok(value) => Self { name, value, size },
            Err(_) => Self { name: Name::Malformed, value: HeaderValue::from_static(""), size },
        }
    }

    /// The length of the name as it was sent.
    pub(super) fn name_length(&self) -> usize {
        self.size.saturating_sub(OVERHEAD + self.value.len())
    }
}

impl Name {
    fn new(name: &[u8]) -> Self {
        match name {
            b":method" => Self::Pseudo(Pseudo::Method),
            b":scheme" => Self::Pseudo(Pseudo::Scheme),
            b":authority" => Self::Pseudo(Pseudo::Authority),
            b":path" => Self::Pseudo(Pseudo::Path),
            // Refuses capital letters, unlike the constructor for HTTP/1.1.
            _ => HeaderName::from_lowercase(name).map_or(Self::Malformed, Self::Regular),
        }
    }
}

/// The field of the static table with this index, which begins at 1.
pub(super) fn static_field(index: usize) -> Option<&'static Field> {
    static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
        STATIC.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())).collect()
    });
    FIELDS.get(index.checked_sub(1)?)
}

/// The number of fields in the static table.
pub(super) const STATIC_COUNT: usize = STATIC.len();

/// RFC 7541, appendix A.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
