//! Static pages: files that are part of the program, with their media types, compressed once and known by their content.
//!
//! Browsers revalidate a file by its content hash. A link that ends in `?v=` and that hash never changes its content, so it
//! may be cached for ever.

use std::collections::BTreeMap;
use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, ETAG, HeaderValue, IF_NONE_MATCH, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};
use nereid_protocol::Action;

use crate::body::RequestBody;
use crate::compression::Encoding;
use crate::face::{Call, Face, PendingReply, Properties};
use crate::reply::{self, Reply};
use crate::routes::{Params, RouteId, RouteMatch};

/// Media types by the endings of names.
const MEDIA_TYPES: &[(&str, &str)] = &[
    (".css", "text/css; charset=utf-8"),
    (".html", "text/html; charset=utf-8"),
    (".ico", "image/x-icon"),
    (".js", "text/javascript; charset=utf-8"),
    (".json", "application/json"),
    (".png", "image/png"),
    (".svg", "image/svg+xml"),
    (".txt", "text/plain; charset=utf-8"),
    (".webmanifest", "application/manifest+json"),
    (".woff2", "font/woff2"),
];

const OTHER: &str = "application/octet-stream";

/// Only what the server itself serves.
const POLICY: HeaderValue = HeaderValue::from_static("default-src 'self'; frame-ancestors 'none'");

/// Files below a prefix, as a face.
pub struct Pages {
    properties: Properties,
    files: BTreeMap<&'static str, File>,
    /// The paths by the numbers of their routes.
    paths: Vec<&'static str>,
}

struct File {
    media_type: &'static str,
    /// Hex digest of the content.
    hash: String,
    plain: Bytes,
    /// Smaller by a tenth at least.
    gzip: Option<Bytes>,
}

impl Pages {
    /// Files by path, with the properties' prefix. A path with a trailing slash is an HTML page.
    pub fn new(properties: Properties, files: &[(&'static str, &'static [u8])]) -> Self {
        let files: BTreeMap<_, _> =
            files.iter().map(|(path, plain)| (*path, File::new(path, plain))).collect();
        Self { properties, paths: files.keys().copied().collect(), files }
    }

    /// The link to a file, with the hash that makes it permanently cacheable. `None` for an unknown path.
    pub fn link(&self, path: &str) -> Option<String> {
        self.files.get(path).map(|file| format!("{path}?v={}", file.hash))
    }

    fn reply(&self, route: RouteId, headers: &HeaderMap, query: Option<&str>) -> Reply {
        let file = self.paths.get(route.0).and_then(|path| self.files.get(path));
        file.map_or_else(self.properties.fallback, |file| file.reply(headers, query))
    }
}

impl File {
    fn new(path: &str, plain: &'static [u8]) -> Self {
        let known = MEDIA_TYPES.iter().find(|(ending, _)| path.ends_with(ending));
        let media_type = known.map_or(OTHER, |(_, media_type)| media_type);
        let media_type = if path.ends_with('/') { "text/html; charset=utf-8" } else { media_type };
        let hash = blake3::hash(plain).to_hex()[..16].to_owned();
        Self { media_type, hash, gzip: gzip(plain), plain: Bytes::from_static(plain) }
    }

    fn reply(&self, headers: &HeaderMap, query: Option<&str>) -> Reply {
        let compressed = self.gzip.as_ref().filter(|_| Encoding::of_reply(headers) == Encoding::Gzip);
        let tag = match compressed {
            Some(_) => format!("\"{}-gzip\"", self.hash),
            None => format!("\"{}\"", self.hash),
        };
        let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|value| {
            let tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
            tags.map(|known| known.trim_start_matches("W/")).any(|known| known == tag || known == "*")
        });
        let mut reply = match is_known {
            true => reply::bytes(StatusCode::NOT_MODIFIED, self.media_type, Bytes::new()),
            false => reply::bytes(StatusCode::OK, self.media_type, compressed.unwrap_or(&self.plain).clone()),
        };
        let is_pinned = query.and_then(|query| query.strip_prefix("v=")) == Some(self.hash.as_str());
        let headers = reply.headers_mut();
        if compressed.is_some() && !is_known {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(ETAG, tag);
        }
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        let caching = if is_pinned { "public, max-age=31536000, immutable" } else { "no-cache" };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
        headers.insert(CONTENT_SECURITY_POLICY, POLICY);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        reply
    }
}

/// The compressed form, if it is worth having.
fn gzip(plain: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).ok()?;
    let compressed = encoder.finish().ok()?;
    (compressed.len() < plain.len() / 10 * 9).then(|| compressed.into())
}

impl Face for Pages {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        match self.paths.binary_search(&head.uri.path()) {
            Err(_) => RouteMatch::none(),
            Ok(index) if matches!(head.method, Method::GET | Method::HEAD) => {
                RouteMatch::Route(RouteId(index), Params::default(), Action::Page)
            }
            Ok(_) => RouteMatch::Methods(vec![&Method::GET, &Method::HEAD], Some(Action::Page)),
        }
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, _: RequestBody) -> PendingReply<'a> {
        let reply = self.reply(route, call.headers, call.query);
        Box::pin(std::future::ready(reply))
    }
}

#[cfg(test)]
mod tests;
