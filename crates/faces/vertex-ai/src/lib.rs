//! The face for Google Vertex AI: the routes that it chooses for a container, answered by KServe's face.
//!
//! One route reports whether the server is ready, the other one runs the default model. A header turns the latter into
//! one of KServe's read-only routes, or into the metrics. The content type of bodies with binary tensors contains the
//! length of their JSON.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod route;

use std::borrow::Cow;

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_core::backend_api::{Error, Result};
use nereid_core::{ModelId, Server};
use nereid_http::{
    Call, Face, Params, PendingReply, Properties, Reply, RequestBody, RouteId, RouteMatch, reply,
};
use nereid_kserve::{Dialect, Inference, KserveHttp};
use nereid_metrics::Metrics;
use nereid_protocol::Action;

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
    /// The route that reports whether the server is ready.
    pub health: RoutePattern,
    /// The route of requests for inference.
    pub predict: RoutePattern,
    /// The model of predictions; `None` for the server's only model.
    pub model: Option<String>,
}

/// The face for Vertex AI, to be mounted on a transport.
pub struct VertexAi {
    kserve: KserveHttp,
    metrics: Metrics,
    options: VertexAiOptions,
    properties: Properties,
}

/// The routes of this face. Numbers from `REDIRECTED` on belong to routes of KServe's face, to which a header redirects.
const HEALTH: RouteId = RouteId(0);
const PREDICT: RouteId = RouteId(1);
const METRICS: RouteId = RouteId(2);
const REDIRECTED: usize = 3;

/// The method, path and action of each route, in their order. The options choose the paths.
const ROUTES: [(&Method, &str, Action); 3] = [
    (GET, "(health route)", Action::Health),
    (POST, "(predict route)", Action::Infer),
    (POST, "(predict route), redirected to metrics", Action::Metrics),
];

/// The action of a route of this face.
const fn action(route: RouteId) -> Action {
    ROUTES[route.0].2
}

/// The method, path and action of each route, including KServe's routes to which a header redirects.
pub fn routes() -> impl Iterator<Item = (&'static Method, String, Action)> {
    let own = ROUTES.into_iter().map(|(method, path, action)| (method, path.to_owned(), action));
    own.chain(nereid_kserve::redirections().map(|(path, action)| {
        (POST, format!("(predict route), redirected to {}", path.trim_start_matches('/')), action)
    }))
}

impl VertexAi {
    /// The face over KServe's.
    pub fn new(kserve: KserveHttp, metrics: Metrics, options: VertexAiOptions) -> Self {
        // Replies with binary tensors are KServe's, as in the reference.
        let dialect = Dialect { request_type: Some(BINARY), ..Dialect::default() };
        let properties = Properties { fallback: unknown_path, ..kserve.properties().clone() };
        Self { kserve: kserve.with_dialect(dialect), metrics, options, properties }
    }

    async fn predict(&self, call: &Call<'_>, body: RequestBody) -> Reply {
        let model = match &self.options.model {
            Some(model) => Cow::Borrowed(model),
            None => match only_model_of(self.kserve.server(), |model| call.shows(Action::Infer, model)) {
                Ok(model) => Cow::Owned(model),
                Err(error) => return reply::error(&error),
            },
        };
        self.kserve.infer(&model, Inference::Infer, call, body).await
    }

    /// The route of a request for inference, or of what its header names.
    fn find_predict<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        if head.method != *POST {
            return RouteMatch::Methods(vec![POST], Some(action(PREDICT)));
        }
        match head.headers.get(REDIRECT).map(HeaderValue::to_str) {
            None => RouteMatch::Route(PREDICT, Params::default(), action(PREDICT)),
            Some(Ok("metrics")) => RouteMatch::Route(METRICS, Params::default(), action(METRICS)),
            Some(Ok(target)) => match self.kserve.redirected(target) {
                RouteMatch::Route(RouteId(id), params, action) => {
                    RouteMatch::Route(RouteId(REDIRECTED + id), params, action)
                }
                other => other,
            },
            Some(Err(_)) => RouteMatch::none(),
        }
    }
}

/// The only model of a server.
///
/// # Errors
/// The server has none, or several.
pub fn only_model(server: &Server) -> Result<String> {
    only_model_of(server, |_| true)
}

/// The only model of those that a caller may use.
fn only_model_of(server: &Server, may_use: impl Fn(&ModelId) -> bool) -> Result<String> {
    let table = server.models();
    let usable = table.ready().filter(|model| may_use(model.id()));
    let mut names: Vec<_> = usable.map(|model| model.name()).collect();
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
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        let path = head.uri.path();
        if self.options.health.matches(path) {
            match head.method == *GET {
                true => RouteMatch::Route(HEALTH, Params::default(), action(HEALTH)),
                false => RouteMatch::Methods(vec![GET], Some(action(HEALTH))),
            }
        } else if self.options.predict.matches(path) {
            self.find_predict(head)
        } else {
            RouteMatch::none()
        }
    }

    fn times_arrival(&self) -> bool {
        self.kserve.times_arrival()
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, body: RequestBody) -> PendingReply<'a> {
        if let Some(id) = route.0.checked_sub(REDIRECTED) {
            return self.kserve.perform(RouteId(id), call, body);
        }
        Box::pin(async move {
            match route {
                HEALTH => {
                    let is_ready = self.kserve.server().ready().await;
                    reply::empty(if is_ready { StatusCode::OK } else { StatusCode::BAD_REQUEST })
                }
                METRICS => self.metrics.text(call).await,
                _ => self.predict(call, body).await,
            }
        })
    }
}

/// The reference's reply to unknown paths.
fn unknown_path() -> Reply {
    reply::empty(StatusCode::BAD_REQUEST)
}

#[cfg(test)]
mod tests;
