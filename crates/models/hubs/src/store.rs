//! Stores that are not buckets but list files with sizes and digests: Hugging Face's hub, registries of OCI artifacts,
//! and single files of the web. They implement the interface of a bucket, so that they share ranges, retries, checks
//! and the cache.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use hyper::Method;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, IF_MATCH, RANGE};
use nereid_http_client::{Client, SafeUrl, number, problem, successful, text};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters that are not escaped in the path of a URL.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A source of files.
#[async_trait]
pub trait Hub: fmt::Debug + Send + Sync + 'static {
    /// Lists the current files.
    async fn objects(&self) -> Result<Vec<ObjectMeta>>;

    /// Locates a file in the version that was listed.
    async fn place(&self, object: &Path, version: Option<&str>) -> Result<Place>;
}

/// The location of a file.
pub struct Place {
    /// The file's URL.
    pub url: SafeUrl,
    /// The headers of requests for it.
    pub headers: HeaderMap,
    /// Whether the store never has more than one file.
    pub is_pinned: bool,
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

/// The first byte of an answer, and the length of the whole file.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let value = text(headers, &CONTENT_RANGE)?;
    let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

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
