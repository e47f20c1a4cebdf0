//! A request with a route, and the target that its path names.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use nereid_core::backend_api::{Error, InferRequest, Result, Trace};
use nereid_core::{Caller, RequestHead, ScopedName};
use nereid_http::{self as http, Params, Reply, RequestBody};
use nereid_protocol::{Action, Admission, parse_version, request_head, trace_parent};
use nereid_shared_memory::Regions;

use crate::KserveHttp;

/// The model, version, region or repository in a path; empty if the path has none.
#[derive(Default)]
pub(crate) struct Target<'a> {
    pub model: Cow<'a, str>,
    pub version: Option<&'a str>,
    pub region: Cow<'a, str>,
    pub repository: Cow<'a, str>,
}

impl<'a> Target<'a> {
    pub(crate) fn new(params: &Params<'a>) -> Self {
        let mut target = Self::default();
        for (name, value) in params.iter() {
            match name {
                "model" => target.model = http::decode(value),
                "version" => target.version = Some(value),
                "repository" => target.repository = http::decode(value),
                _ => target.region = http::decode(value),
            }
        }
        target
    }

    /// The version as a number; `None` if the path has none.
    ///
    /// # Errors
    /// `InvalidArg` if it exceeds 64 bits.
    pub(crate) fn version(&self) -> Result<Option<u64>> {
        self.version.map(|version| parse_version(version, &self.model)).transpose()
    }
}

/// A request with a route, without its body.
pub(crate) struct Call<'a> {
    pub face: &'a KserveHttp,
    pub target: Target<'a>,
    pub headers: &'a HeaderMap,
    pub http: &'a http::Call<'a>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(face: &'a KserveHttp, http: &'a http::Call<'a>) -> Self {
        Self { face, target: Target::new(&http.params), headers: http.headers, http }
    }

    /// The model that the path names, among those on which the caller may perform the route's action.
    pub(crate) fn model(&self) -> ScopedName<'_> {
        self.http.scoped(&self.target.model)
    }

    /// The head of the request, for models that choose their version by it or have to be loaded before its client leaves. The
    /// client waits no longer than `timeout`, a limit in the body.
    pub(crate) fn head(&self, timeout: Option<Duration>) -> RequestHead {
        let headers = self.headers.iter().filter(|(name, _)| !self.http.is_secret(name.as_str()));
        let head = request_head(headers.map(|(name, value)| (name.as_str(), value.as_bytes())));
        head.with_time_limit(timeout.into_iter().chain(http::time_limit(self.headers)).min())
    }

    /// The sender of an inference request, holding the body's share of the budget.
    pub(crate) fn caller(&self, body: &mut RequestBody, admission: Option<Admission>) -> Caller {
        let caller = Caller::default().with_principal(self.http.caller.principal.clone());
        caller.with_body(body.take_share()).with_admission(admission)
    }

    /// The trace of the inference it requests, if it is traced; stamped with the times of arrival.
    pub(crate) fn draw_trace(&self) -> Option<Arc<Trace>> {
        let (head, body) = self.http.arrived?;
        let header = |name: &str| self.headers.get(name)?.to_str().ok();
        let trace = self.face.server.trace().draw(&self.target.model, || trace_parent(header))?;
        trace.stamp("HTTP_RECV_START", head);
        trace.stamp("HTTP_RECV_END", body);
        Some(trace)
    }

    /// Adds the deadline that headers set, and the headers that are forwarded to models.
    ///
    /// # Errors
    /// `InvalidArg` for a header that cannot be forwarded.
    pub(crate) fn apply_headers(&self, request: &mut InferRequest) -> Result<()> {
        request.deadline = http::time_limit(self.headers).and_then(|limit| Instant::now().checked_add(limit));
        match &self.face.options.forwarded_headers {
            Some(pattern) => {
                let headers = self.http.spelled_headers().filter(|(name, _)| !self.http.is_secret(name));
                pattern.forward(headers, &mut request.parameters)
            }
            None => Ok(()),
        }
    }

    /// The regions that the caller may use.
    pub(crate) fn regions(&self) -> &Arc<Regions> {
        match self.http.may(Action::UseRegions, None) {
            true => &self.face.options.regions,
            false => &self.face.no_regions,
        }
    }

    /// The reply to a request that failed because its caller may not use shared memory. `None` for other errors.
    pub(crate) fn region_refusal(&self, error: &Error) -> Option<Reply> {
        if Regions::is_disabled(error) { self.http.refusal(Action::UseRegions) } else { None }
    }
}
