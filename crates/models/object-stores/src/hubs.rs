//! Stores that are not buckets but list files with sizes and digests: Hugging Face's hub, registries of OCI artifacts,
//! and single files of the web. They implement the interface of a bucket, so that they share ranges, retries, checks
//! and the cache.

pub(crate) mod docker;
pub(crate) mod hugging_face;
pub(crate) mod registry;
pub(crate) mod web;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, LOCATION, RANGE,
};
use hyper::{Method, Uri};
use object_store::client::{HttpRequest, HttpRequestBody, HttpResponse, HttpService};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::http::Connector;

/// The most redirects that are followed.
const REDIRECTS: usize = 5;

/// The longest document that is read.
const DOCUMENT: usize = 64 << 20;

/// Characters that are not escaped in the path of a URL.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A source of files.
#[async_trait]
pub(crate) trait Hub: fmt::Debug + Send + Sync + 'static {
    /// Lists the current files.
    async fn objects(&self) -> Result<Vec<ObjectMeta>>;

    /// Locates a file in the version that was listed.
    async fn place(&self, object: &Path, version: Option<&str>) -> Result<Place>;
}

/// The location of a file.
pub(crate) struct Place {
    pub url: String,
    pub headers: HeaderMap,
    /// Whether the store never has more than one file.
    pub is_pinned: bool,
}

/// Sends requests to hubs.
#[derive(Clone, Debug)]
pub(crate) struct Client(pub Connector);

impl Client {
    /// Sends a request to a URL and follows redirects. The secret is not sent to other hosts.
    pub(crate) async fn send(&self, method: Method, url: &str, headers: &HeaderMap) -> Result<HttpResponse> {
        let mut uri: Uri = url.parse().map_err(|_| problem(format!("'{url}' is not a URL")))?;
        let mut headers = headers.clone();
        for _ in 0..REDIRECTS {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method.clone();
            *request.uri_mut() = uri.clone();
            *request.headers_mut() = headers.clone();
            if let Some(authority) = uri.authority() {
                let host = HeaderValue::from_str(authority.as_str()).map_err(problem)?;
                request.headers_mut().insert("host", host);
            }
            let answer = self.0.call(request).await.map_err(problem)?;
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let Some(to) = to.filter(|_| answer.status().is_redirection()) else { return Ok(answer) };
            let to = resolve(&uri, to).ok_or_else(|| problem(format!("'{to}' is not a URL")))?;
            if (to.authority(), to.scheme()) != (uri.authority(), uri.scheme()) {
                headers.remove(AUTHORIZATION);
            }
            uri = to;
        }
        Err(problem(format!("'{url}' leads to more than {REDIRECTS} others")))
    }

    /// Reads a document, with its headers.
    pub(crate) async fn document(&self, url: &str, headers: &HeaderMap) -> Result<(HeaderMap, Vec<u8>)> {
        let answer = self.send(Method::GET, url, headers).await?;
        read(answer, url).await
    }

    /// Posts a form and reads the document in the answer. The form may contain a secret, so redirects are not followed.
    pub(crate) async fn post_form(&self, url: &str, form: String) -> Result<Vec<u8>> {
        let mut request = HttpRequest::new(HttpRequestBody::from(Bytes::from(form)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.parse().map_err(|_| problem(format!("'{url}' is not a URL")))?;
        let content_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, content_type);
        let answer = self.0.call(request).await.map_err(problem)?;
        Ok(read(answer, url).await?.1)
    }
}

/// The headers and the body of a successful answer.
async fn read(answer: HttpResponse, url: &str) -> Result<(HeaderMap, Vec<u8>)> {
    let (head, body) = successful(answer, url).await?.into_parts();
    let mut stream = body.bytes_stream();
    let mut document = Vec::new();
    while let Some(bytes) = stream.next().await {
        document.extend_from_slice(&bytes.map_err(problem)?);
        if document.len() > DOCUMENT {
            return Err(problem(format!("'{url}' is longer than {DOCUMENT} bytes")));
        }
    }
    Ok((head.headers, document))
}

/// A hub as a read-only bucket.
#[derive(Debug)]
pub(crate) struct HubStore<H> {
    pub hub: Arc<H>,
    pub client: Client,
}

impl<H: fmt::Debug> fmt::Display for HubStore<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.hub)
    }
}

#[async_trait]
impl<H: Hub> ObjectStore for HubStore<H> {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let place = self.hub.place(location, options.version.as_deref()).await?;
        let mut headers = place.headers;
        if let Some(GetRange::Bounded(range)) = &options.range {
            let range = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            headers.insert(RANGE, HeaderValue::from_str(&range).map_err(problem)?);
        }
        if let Some(etag) = options.if_match.as_deref().filter(|_| !place.is_pinned) {
            headers.insert(IF_MATCH, HeaderValue::from_str(etag).map_err(problem)?);
        }
        let answer = self.client.send(Method::GET, &place.url, &headers).await?;
        let answer = successful(answer, &place.url).await?;
        let (head, body) = answer.into_parts();
        let length = number(&head.headers, &CONTENT_LENGTH);
        let (start, size) = match content_range(&head.headers) {
            Some(range) => range,
            // Servers without support for ranges send the whole file.
            None if options.range.is_some() => {
                let source = "it does not send parts of files".into();
                return Err(Error::Generic { store: "web", source });
            }
            None => (0, length.ok_or_else(|| problem("it does not say how long a file is"))?),
        };
        let e_tag = if place.is_pinned { options.if_match } else { text(&head.headers, &ETAG) };
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: Default::default(),
            size,
            e_tag,
            version: options.version,
        };
        let stream = body.bytes_stream().map_err(problem).boxed();
        let range = start..start + length.unwrap_or(size - start);
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream),
            meta,
            range,
            attributes: Attributes::default(),
            extensions: head.extensions,
        })
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let hub = Arc::clone(&self.hub);
        stream::once(async move { hub.objects().await.map(|objects| stream::iter(objects).map(Ok)) })
            .try_flatten()
            .boxed()
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only())
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only())
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        stream::once(async { Err(read_only()) }).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(read_only())
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only())
    }
}

fn read_only() -> Error {
    problem("it can only be read")
}

/// An error without an HTTP status.
pub(crate) fn problem(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "web", source: source.into() }
}

/// Checks the status of an answer; errors have the same text as those of other stores.
pub(crate) async fn successful(answer: HttpResponse, url: &str) -> Result<HttpResponse> {
    const SHOWN: usize = 300;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    // Only the beginning of a long answer is read.
    let beginning = answer.into_body().bytes_stream().next().await.and_then(std::result::Result::ok);
    let body =
        String::from_utf8_lossy(&beginning.unwrap_or_default()).chars().take(SHOWN).collect::<String>();
    let path = url.split('?').next().unwrap_or_default().to_owned();
    let source = format!("Server returned non-2xx status code: {status}: {body}").into();
    Err(match status.as_u16() {
        401 => Error::Unauthenticated { path, source },
        403 => Error::PermissionDenied { path, source },
        404 => Error::NotFound { path, source },
        412 => Error::Precondition { path, source },
        _ => Error::Generic { store: "web", source },
    })
}

/// The first byte of an answer, and the length of the whole file.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let value = text(headers, &CONTENT_RANGE)?;
    let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
}

pub(crate) fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

pub(crate) fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}

/// Resolves a reference relative to a URL.
pub(crate) fn resolve(from: &Uri, to: &str) -> Option<Uri> {
    if to.contains("://") {
        return to
            .parse()
            .ok()
            .filter(|uri: &Uri| ["http", "https"].contains(&uri.scheme_str().unwrap_or("")));
    }
    let origin = format!("{}://{}", from.scheme_str()?, from.authority()?);
    if to.starts_with('/') {
        return format!("{origin}{to}").parse().ok();
    }
    let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{origin}{folder}/{to}").parse().ok()
}

/// A path in a URL.
pub(crate) fn encoded(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// The last part of a URL's path, decoded.
pub(crate) fn file_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let (_, path) = path.split_once("://").unwrap_or(("", path));
    let name = path.rsplit_once('/').map_or("", |(_, name)| name);
    percent_decode_str(name).decode_utf8_lossy().into_owned()
}

/// A header with a token.
pub(crate) fn bearer(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_lead_where_browsers_go() {
        let from: Uri = "https://host:1/a/b?c=d".parse().unwrap();
        for (to, expected) in [
            ("https://other/x", Some("https://other/x")),
            ("/x?y=z", Some("https://host:1/x?y=z")),
            ("x", Some("https://host:1/a/x")),
            ("ftp://other/x", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(resolve(&from, to).map(|uri| uri.to_string()).as_deref(), expected, "{to}");
        }
    }

    #[test]
    fn names_of_files_are_those_before_a_question_mark() {
        for (url, expected) in [
            ("https://h/a/b.tar.gz?token=x/y", "b.tar.gz"),
            ("https://h/a%20b.zip#x", "a b.zip"),
            ("https://h/a/", ""),
            ("https://h", ""),
        ] {
            assert_eq!(file_name(url), expected, "{url}");
        }
        assert_eq!(encoded("a b/ä#?.onnx"), "a%20b/%C3%A4%23%3F.onnx");
    }
}
