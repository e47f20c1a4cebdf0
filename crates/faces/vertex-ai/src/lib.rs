//! The face for Google Vertex AI: the routes that it chooses for a container, answered by KServe's face.
//!
//! One route tells whether the server is ready, the other one asks the default model. A header makes the latter answer as one
//! of KServe's routes, among those that change nothing, or as the metrics. Where a body has binary tensors, its content
//! type says where its JSON ends.

#![forbid(unsafe_code)]

mod route;

use std::borrow::Cow;

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_core::Server;
use nereid_core::backend_api::{Error, Result};
use nereid_http::{
    Call, Cors, Face, Limit, Params, Reply, RequestBody, Route, RouteMatch, reply, restricted,
};
use nereid_kserve::{Dialect, Inference, KserveHttp};
use nereid_metrics::Metrics;
use nereid_protocol::{ApiGroup, BodyBudget, Restrictions};

pub use crate::route::RoutePattern;

/// The content type of bodies with binary tensors, up to the length of their JSON.
const BINARY: &str = "application/vnd.vertex-ai-triton.binary+json;json-header-size=";

/// The header that names another route, without its first slash.
const REDIRECT: &str = "x-vertex-ai-triton-redirect";

const GET: &Method = &Method::GET;
const POST: &Method = &Method::POST;

/// Options of the face.
#[derive(Clone, Debug)]
pub struct VertexAiOptions {
    /// The route that tells whether the server is ready.
    pub health: RoutePattern,
    /// The route of requests for inference.
    pub predict: RoutePattern,
    /// The model that they ask; without one, the server's only model.
    pub model: Option<String>,
}

/// The face for Vertex AI, to be mounted on a transport.
pub struct VertexAi {
    kserve: KserveHttp,
    metrics: Metrics,
    options: VertexAiOptions,
}

/// What a route does.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Tells whether the server is ready.
    Health,
    /// Asks the default model.
    Predict,
    /// Gives the metrics.
    Metrics,
    /// What a route of KServe does.
    Redirected(<KserveHttp as Face>::Action),
}

impl VertexAi {
    /// The face over KServe's.
    pub fn new(kserve: KserveHttp, metrics: Metrics, options: VertexAiOptions) -> Self {
        // Replies with binary tensors are KServe's, as in the reference.
        let dialect = Dialect { request_type: Some(BINARY), ..Dialect::default() };
        Self { kserve: kserve.with_dialect(dialect), metrics, options }
    }

    async fn predict(&self, call: &Call<'_>, body: RequestBody) -> Reply {
        let model = match &self.options.model {
            Some(model) => Cow::Borrowed(model),
            None => match only_model(self.kserve.server()) {
                Ok(model) => Cow::Owned(model),
                Err(error) => return reply::error(&error),
            },
        };
        self.kserve.infer(&model, Inference::Infer, call, body).await
    }

    /// The route of a request for inference, or of what its header names.
    fn find_predict<'a>(&self, head: &'a Parts) -> RouteMatch<'a, Action> {
        if head.method != *POST {
            return RouteMatch::Methods(vec![POST]);
        }
        let Some(target) = head.headers.get(REDIRECT).map(HeaderValue::to_str) else {
            return self.open(ApiGroup::Inference, head, Action::Predict);
        };
        match target {
            Ok("metrics") => RouteMatch::Route(Action::Metrics, Params::default()),
            Ok(target) => match self.kserve.redirected(target, &head.headers) {
                RouteMatch::Route(action, params) => RouteMatch::Route(Action::Redirected(action), params),
                RouteMatch::Methods(methods) => RouteMatch::Methods(methods),
                RouteMatch::Refused(refused) => RouteMatch::Refused(refused),
            },
            Err(_) => RouteMatch::Methods(Vec::new()),
        }
    }

    fn open<'a>(&self, group: ApiGroup, head: &Parts, action: Action) -> RouteMatch<'a, Action> {
        match restricted(self, group, &head.headers) {
            Some(refused) => RouteMatch::Refused(refused),
            None => RouteMatch::Route(action, Params::default()),
        }
    }
}

/// The one model that a server serves.
///
/// # Errors
/// It serves none, or several.
pub fn only_model(server: &Server) -> Result<String> {
    let table = server.models();
    let mut names: Vec<_> = table.ready().map(|model| model.name()).collect();
    names.dedup();
    match names.as_slice() {
        [name] => Ok((*name).to_owned()),
        names => Err(Error::unavailable(format!(
            "{} models are served; predictions need exactly one, or --vertex-ai-default-model",
            names.len()
        ))),
    }
}

impl Face for VertexAi {
    type Action = Action;

    /// They are known only when the server starts.
    const ROUTES: &'static [Route<Action>] = &[];

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a, Action> {
        let path = head.uri.path();
        if self.options.health.matches(path) {
            match head.method == *GET {
                true => self.open(ApiGroup::Health, head, Action::Health),
                false => RouteMatch::Methods(vec![GET]),
            }
        } else if self.options.predict.matches(path) {
            self.find_predict(head)
        } else {
            RouteMatch::Methods(Vec::new())
        }
    }

    fn restrictions(&self) -> Option<&Restrictions> {
        self.kserve.restrictions()
    }

    fn body_limit(&self) -> Limit {
        self.kserve.body_limit()
    }

    fn body_budget(&self) -> Option<&BodyBudget> {
        self.kserve.body_budget()
    }

    fn cors(&self) -> Option<&Cors> {
        Face::cors(&self.kserve)
    }

    /// The reference's status for unknown paths.
    fn not_found(&self) -> Reply {
        reply::empty(StatusCode::BAD_REQUEST)
    }

    fn keeps_spelling(&self) -> bool {
        Face::keeps_spelling(&self.kserve)
    }

    fn times_arrival(&self) -> bool {
        self.kserve.times_arrival()
    }

    async fn perform(&self, action: Action, call: &Call<'_>, body: RequestBody) -> Reply {
        match action {
            Action::Health => {
                let is_ready = self.kserve.server().ready().await;
                reply::empty(if is_ready { StatusCode::OK } else { StatusCode::BAD_REQUEST })
            }
            Action::Predict => self.predict(call, body).await,
            Action::Metrics => self.metrics.text().await,
            Action::Redirected(action) => Face::perform(&self.kserve, action, call, body).await,
        }
    }
}

#[cfg(test)]
mod tests;
