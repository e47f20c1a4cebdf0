//! Differences of requests from another face, such as a cloud's, to KServe's own.

use std::borrow::Cow;

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use nereid_core::backend_api::{Error, Result};
use nereid_http::{self as http, Encoding, Reply, RequestBody, RouteMatch, reply};
use nereid_protocol::Action;

use crate::KserveHttp;
use crate::call::{Call, Target};
use crate::infer::{self, generate};
use crate::routes::{Operation, ROUTES};

/// Header with the length of a body's JSON part, which the binary tensors follow.
pub(crate) const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Differences from KServe's own requests. The default is KServe.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// The beginning of the content type that ends with the length of a request's JSON, where clients cannot send KServe's
    /// header. Bodies are not compressed then, in either direction.
    pub request_type: Option<&'static str>,
    /// The content type of replies with a binary part.
    pub reply_type: Option<&'static str>,
    /// The reply to a request that failed.
    pub error: fn(&Error) -> Reply,
}

impl Default for Dialect {
    fn default() -> Self {
        Self { request_type: None, reply_type: None, error: reply::error }
    }
}

/// The kind of inference requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inference {
    /// One response, with tensors in KServe's form.
    #[default]
    Infer,
    /// One response, as a flat object.
    Generate,
    /// Any number of responses, as events.
    GenerateStream,
}

impl KserveHttp {
    /// Answers a request for inference that came by a route of another face.
    pub async fn infer(
        &self,
        model: &str,
        inference: Inference,
        call: &http::Call<'_>,
        body: RequestBody,
    ) -> Reply {
        if let Err(refused) = call.permit(Action::Infer, model) {
            return *refused;
        }
        let target = Target { model: Cow::Borrowed(model), ..Target::default() };
        let call = Call { face: self, target, headers: call.headers, http: call };
        let outcome = match inference {
            Inference::Infer => infer::answer(&call, body).await,
            Inference::Generate => generate::one(&call, body).await,
            Inference::GenerateStream => generate::stream(&call, body).await,
        };
        let mut reply = outcome.unwrap_or_else(|error| (self.dialect.error)(&error));
        self.report_load(&mut reply, call.headers);
        reply
    }

    /// Adds a report of the server's load to an inference reply, if the request asks for one or the server is
    /// configured to always report.
    pub(crate) fn report_load(&self, reply: &mut Reply, request: &HeaderMap) {
        let reports = self.options.load_reports.as_ref();
        if let Some((name, value)) = reports.and_then(|reports| reports.header(request)) {
            reply.headers_mut().insert(name, value);
        }
    }
}

impl KserveHttp {
    /// Finds the route for a path (without its first slash) named by clients of another face. Only inference and
    /// read-only actions are permitted.
    pub fn redirected<'a>(&self, path: &'a str) -> RouteMatch<'a> {
        for method in [Method::GET, Method::POST] {
            let RouteMatch::Route(id, params, action) = ROUTES.find_at(&method, path) else { continue };
            return match ROUTES.handler(id).map_or(Redirection::Unknown, Operation::redirection) {
                Redirection::Open => RouteMatch::Route(id, params, action),
                Redirection::Forbidden => RouteMatch::Refused(Box::new(reply::error_text(
                    StatusCode::FORBIDDEN,
                    &format!("'{path}' changes the server, which needs KServe's own port"),
                ))),
                Redirection::Unknown => RouteMatch::none(),
            };
        }
        RouteMatch::none()
    }
}

/// The path and action of each route that clients of another face may name.
pub fn redirections() -> impl Iterator<Item = (&'static str, Action)> {
    let open = ROUTES.all().iter().filter(|route| matches!(route.handler.redirection(), Redirection::Open));
    open.map(|route| (route.path, route.action))
}

/// Whether clients of another face may use a route.
enum Redirection {
    Open,
    Forbidden,
    /// Treated like an unknown route.
    Unknown,
}

impl Operation {
    /// As in the reference.
    fn redirection(self) -> Redirection {
        match self {
            Self::Live
            | Self::Ready
            | Self::ServerMetadata
            | Self::OpenApi
            | Self::ModelMetadata
            | Self::ModelConfig
            | Self::ModelReady
            | Self::ModelStatistics
            | Self::AllStatistics
            | Self::RepositoryIndex
            | Self::Infer
            | Self::RegionStatus
            | Self::CudaStatus => Redirection::Open,
            Self::LoadModel
            | Self::UnloadModel
            | Self::RegisterRegion
            | Self::UnregisterRegion
            | Self::CudaRegister
            | Self::CudaUnregister => Redirection::Forbidden,
            Self::Generate
            | Self::GenerateStream
            | Self::ModelRelease
            | Self::DecideRelease
            | Self::Logging
            | Self::SetLogging
            | Self::Trace
            | Self::SetTrace => Redirection::Unknown,
        }
    }
}

impl Dialect {
    /// The length of the JSON part in a body of `length` bytes, if the request announces one.
    ///
    /// # Errors
    /// The announced value is not a length, or exceeds the body.
    pub(crate) fn json_length(&self, headers: &HeaderMap, length: usize) -> Result<Option<usize>> {
        let Some(prefix) = self.request_type else {
            let announced = headers.get(HEADER_LENGTH).map(HeaderValue::as_bytes);
            return announced.map(|announced| json_length(announced, length)).transpose();
        };
        let Some(given) = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes) else { return Ok(None) };
        match given.strip_prefix(prefix.as_bytes()) {
            Some(announced) => parsed("json-header-size of Content-Type", announced, length).map(Some),
            None if String::from_utf8_lossy(given).contains(prefix) => {
                let given = String::from_utf8_lossy(given);
                Err(Error::invalid_arg(format!("Content-Type is '{given}'; expected '{prefix}<size>'")))
            }
            None => Ok(None),
        }
    }

    /// Marks a reply whose first `length` bytes are JSON, with binary tensors behind them.
    pub(crate) fn mark_binary(&self, reply: &mut Reply, length: usize) {
        let headers = reply.headers_mut();
        match self.reply_type.map(|prefix| HeaderValue::from_str(&format!("{prefix}{length}"))) {
            Some(Ok(value)) => {
                headers.insert(CONTENT_TYPE, value);
            }
            Some(Err(_)) | None => {
                headers.insert(CONTENT_TYPE, OCTETS);
                headers.insert(HEADER_LENGTH, HeaderValue::from(length));
            }
        }
    }

    /// The compression of the request's body; `Err` with an unknown encoding.
    pub(crate) fn encoding_of_request(&self, headers: &HeaderMap) -> Result<Encoding, String> {
        if self.request_type.is_some() { Ok(Encoding::Identity) } else { Encoding::of_request(headers) }
    }

    /// The compression acceptable for the reply.
    pub(crate) fn encoding_of_reply(&self, headers: &HeaderMap) -> Encoding {
        if self.request_type.is_some() { Encoding::Identity } else { Encoding::of_reply(headers) }
    }
}

/// Parses the length in KServe's header.
///
/// # Errors
/// The value is not a length, or exceeds the body.
pub(crate) fn json_length(announced: &[u8], body: usize) -> Result<usize> {
    parsed("Inference-Header-Content-Length", announced, body)
}

fn parsed(what: &str, length: &[u8], body: usize) -> Result<usize> {
    // Most requests end here.
    if let Ok(Ok(length)) = std::str::from_utf8(length).map(str::parse::<usize>)
        && length <= body
    {
        return Ok(length);
    }
    let text = String::from_utf8_lossy(length);
    match text.trim().parse::<usize>() {
        Ok(length) if length <= body => Ok(length),
        Ok(length) => {
            Err(Error::invalid_arg(format!("{what} is {length}, but the body has only {body} bytes")))
        }
        Err(_) => Err(Error::invalid_arg(format!("{what} is '{text}'; expected a number of bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "application/vnd.x+json;json-header-size=";

    fn length(dialect: Dialect, name: &str, value: &str) -> Result<Option<usize>> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        dialect.json_length(&headers, 20)
    }

    #[test]
    fn json_length_comes_from_header_or_content_type() {
        let cloud = Dialect { request_type: Some(TYPE), ..Dialect::default() };
        let header = "inference-header-content-length";
        for (dialect, name, value, expected) in [
            (Dialect::default(), header, "7", Some(Some(7))),
            (Dialect::default(), header, " 20 ", Some(Some(20))),
            (Dialect::default(), header, "21", None),
            (Dialect::default(), header, "-1", None),
            (Dialect::default(), header, "x", None),
            (Dialect::default(), "content-type", "application/vnd.x+json;json-header-size=7", Some(None)),
            (cloud, header, "7", Some(None)),
            (cloud, "content-type", "application/json", Some(None)),
            (cloud, "content-type", "application/vnd.x+json;json-header-size=0", Some(Some(0))),
            (cloud, "content-type", "application/vnd.x+json;json-header-size=20", Some(Some(20))),
            (cloud, "content-type", "application/vnd.x+json;json-header-size=21", None),
            (cloud, "content-type", "application/vnd.x+json;json-header-size=-1", None),
            (cloud, "content-type", "application/vnd.x+json;json-header-size=", None),
            (cloud, "content-type", "a, application/vnd.x+json;json-header-size=7", None),
        ] {
            assert_eq!(length(dialect, name, value).ok(), expected, "{name}: {value}");
        }
    }

    #[test]
    fn binary_reply_announces_its_json_length() {
        for (reply_type, content_type, header) in
            [(None, "application/octet-stream", Some("7")), (Some("a/b;size="), "a/b;size=7", None)]
        {
            let mut reply = Reply::default();
            Dialect { reply_type, ..Dialect::default() }.mark_binary(&mut reply, 7);
            let header_of = |name: HeaderName| reply.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!((header_of(CONTENT_TYPE), header_of(HEADER_LENGTH)), (Some(content_type), header));
        }
    }
}
