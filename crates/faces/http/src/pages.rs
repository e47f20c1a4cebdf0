//! Static pages: files that are part of the program, compressed when it was built and known by their content.
//!
//! A page has a path of its own, and browsers revalidate it. The files that it needs are in a folder whose name is a hash of
//! all their contents, so browsers may keep them for ever, and files of two releases never mix.

use std::collections::BTreeMap;
use std::io::Read as _;

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use hyper::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, ETAG, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
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

/// Only what the server itself serves, and no forms that leave the page.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
);

const HTML: &str = "text/html; charset=utf-8";

/// Text in a page in place of the folder of its files.
const FOLDER: &str = "{folder}";

/// A file of the program.
#[derive(Clone, Copy, Debug)]
pub struct PackedFile {
    /// The path below the folder of the files.
    pub name: &'static str,
    /// The contents, compressed with gzip.
    pub gzip: &'static [u8],
}

impl PackedFile {
    /// The contents; empty if they are not gzip.
    fn unpacked(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        match GzDecoder::new(self.gzip).read_to_end(&mut plain) {
            Ok(_) => plain,
            Err(_) => Vec::new(),
        }
    }
}

/// A page and its files, as a face.
pub struct Pages {
    properties: Properties,
    files: BTreeMap<String, File>,
}

struct File {
    media_type: &'static str,
    /// Hex digest of the content.
    hash: String,
    content: Content,
}

enum Content {
    /// The page itself, whose content never changes though its path is not a hash.
    Page(Bytes),
    Packed(PackedFile),
}

impl Pages {
    /// The page `page` of `files` at `path`, and the other files in a folder below the properties' prefix. `{folder}` in the
    /// page is the path of that folder.
    pub fn new(properties: Properties, path: &str, page: &str, files: &[PackedFile]) -> Self {
        let mut hasher = blake3::Hasher::new();
        files.iter().for_each(|file| {
            hasher.update(file.gzip);
        });
        let folder = format!("{}{}", properties.prefix, &hasher.finalize().to_hex()[..16]);
        let entries = files.iter().map(|file| match file.name == page {
            true => {
                let text = String::from_utf8_lossy(&file.unpacked()).replace(FOLDER, &folder);
                (path.to_owned(), File::new(HTML, Content::Page(text.into())))
            }
            false => {
                let known = MEDIA_TYPES.iter().find(|(ending, _)| file.name.ends_with(ending));
                let media_type = known.map_or(OTHER, |(_, media_type)| media_type);
                (format!("{folder}/{}", file.name), File::new(media_type, Content::Packed(*file)))
            }
        });
        let files = entries.collect();
        Self { properties, files }
    }

    /// The paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

impl File {
    fn new(media_type: &'static str, content: Content) -> Self {
        let bytes = match &content {
            Content::Page(plain) => plain,
            Content::Packed(file) => file.gzip,
        };
        let hash = blake3::hash(bytes).to_hex()[..16].to_owned();
        Self { media_type, hash, content }
    }

    fn reply(&self, headers: &HeaderMap) -> Reply {
        let is_compressed = match self.content {
            Content::Page(_) => false,
            Content::Packed(_) => Encoding::of_reply(headers) == Encoding::Gzip,
        };
        let tag = match is_compressed {
            true => format!("\"{}-gzip\"", self.hash),
            false => format!("\"{}\"", self.hash),
        };
        let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|value| {
            let tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
            tags.map(|known| known.trim_start_matches("W/")).any(|known| known == tag || known == "*")
        });
        let body = match &self.content {
            _ if is_known => Bytes::new(),
            Content::Page(plain) => plain.clone(),
            Content::Packed(file) if is_compressed => Bytes::from_static(file.gzip),
            Content::Packed(file) => file.unpacked().into(),
        };
        let status = if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let mut reply = reply::bytes(status, self.media_type, body);
        let headers = reply.headers_mut();
        if is_compressed && !is_known {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(ETAG, tag);
        }
        headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
        let caching = match self.content {
            Content::Page(_) => "no-cache",
            Content::Packed(_) => "public, max-age=31536000, immutable",
        };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
        headers.insert(CONTENT_SECURITY_POLICY, POLICY);
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        reply
    }
}

impl Face for Pages {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        match self.files.keys().position(|path| path == head.uri.path()) {
            None => RouteMatch::none(),
            Some(index) if matches!(head.method, Method::GET | Method::HEAD) => {
                RouteMatch::Route(RouteId(index), Params::default(), Action::Page)
            }
            Some(_) => RouteMatch::Methods(vec![&Method::GET, &Method::HEAD], Some(Action::Page)),
        }
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, _: RequestBody) -> PendingReply<'a> {
        let file = self.files.values().nth(route.0);
        let reply = file.map_or_else(self.properties.fallback, |file| file.reply(call.headers));
        Box::pin(std::future::ready(reply))
    }
}

#[cfg(test)]
mod tests;
