//! Reads answers: their status, headers and documents.

use futures_util::StreamExt;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use object_store::client::HttpResponse;
use object_store::{Error, Result};

use crate::url::SafeUrl;

/// The longest document that is read, in bytes.
pub const DOCUMENT_LIMIT: u64 = 64 << 20;

/// The most characters of a server's message that are shown.
const SHOWN: usize = 300;

/// An error without an HTTP status.
pub fn problem(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "web", source: source.into() }
}

/// Checks the status of an answer. Errors have the format of the library of object stores.
///
/// # Errors
/// The status is not one of success.
pub async fn successful(answer: HttpResponse, url: &SafeUrl) -> Result<HttpResponse> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    // Only the beginning of a long answer is read.
    let beginning = answer.into_body().bytes_stream().next().await.and_then(std::result::Result::ok);
    let body =
        String::from_utf8_lossy(&beginning.unwrap_or_default()).chars().take(SHOWN).collect::<String>();
    let path = url.to_string();
    let source = format!("Server returned non-2xx status code: {status}: {body}").into();
    Err(match status.as_u16() {
        401 => Error::Unauthenticated { path, source },
        403 => Error::PermissionDenied { path, source },
        404 => Error::NotFound { path, source },
        412 => Error::Precondition { path, source },
        _ => Error::Generic { store: "web", source },
    })
}

/// The headers and the body of a successful answer.
pub(crate) async fn document(answer: HttpResponse, url: &SafeUrl) -> Result<(HeaderMap, Vec<u8>)> {
    let (head, body) = successful(answer, url).await?.into_parts();
    let mut stream = body.bytes_stream();
    let mut document = Vec::new();
    while let Some(bytes) = stream.next().await {
        document.extend_from_slice(&bytes.map_err(problem)?);
        if document.len() as u64 > DOCUMENT_LIMIT {
            return Err(problem(format!("'{url}' is longer than {DOCUMENT_LIMIT} bytes")));
        }
    }
    Ok((head.headers, document))
}

/// A header's value as a number.
pub fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

/// A header's value as a text.
pub fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}

/// A header with a token.
pub fn bearer(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers
}
