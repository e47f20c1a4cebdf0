//! The console: pages for browsers that show what the server does, and a small JSON API for what they cannot learn elsewhere.
//!
//! The page is at `/` for clients whose `Accept` names HTML, and its files and API are below `/console/`. It uses the
//! server's other HTTP routes for everything that these offer, so it has exactly the rights of its user. This crate counts
//! nothing that the server does not count anyway: [`Sampling`] reads those counters at an interval, and requests never
//! wait for it.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod advice;
mod changes;
mod details;
mod documents;
mod gpus;
mod history;
mod process;
mod sampling;
mod states;
mod traces;

use std::sync::Arc;
use std::time::Instant;

use hyper::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use hyper::http::request;
use hyper::{Method, StatusCode};
use nereid_core::backend_api::Result;
use nereid_core::model_config::to_json;
use nereid_core::{ModelId, Server};
use nereid_http::{
    Call, Encoding, Face, PackedFile, Pages, PendingReply, Properties, Reply, RequestBody, Route, RouteId,
    RouteMatch, Routes, accepts, compress, reply,
};
use nereid_protocol::{Access, Action, Denied, LogControl};
use nereid_tasks::long_work;

pub use crate::advice::{Advice, Advisor};
pub use crate::changes::ClientChanges;
use crate::documents::{
    HistoryQuery, LogQuery, ModelQuery, NowDocument, SequencesDocument, TraceDocument, VersionQuery,
};
pub use crate::gpus::Gpu;
use crate::gpus::GpusDocument;
pub use crate::sampling::{ReadGpus, Sampling};
use crate::traces::Captures;

/// The path of the page.
const PAGE: &str = "/";
/// The prefix of the files and of the API.
const PREFIX: &str = "/console/";

/// The files of the pages.
static FILES: &[PackedFile] = &include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// A document of the API.
#[derive(Clone, Copy, Debug)]
enum Document {
    Server,
    Models,
    Declared,
    Quantiles,
    Now,
    Advice,
    Sequences,
    States,
    Changes,
    Gpus,
    Trace,
    Capture,
    History,
    Log,
}

static ROUTES: Routes<Document> = Routes::new({
    const ALL: &[Route<Document>] = &[
        Route::new(Method::GET, "/console/api/server", Action::Metadata, Document::Server),
        Route::new(Method::GET, "/console/api/models", Action::Index, Document::Models),
        Route::new(
            Method::GET,
            "/console/api/models/{model}/declared",
            Action::ModelConfig,
            Document::Declared,
        ),
        Route::new(
            Method::GET,
            "/console/api/models/{model}/quantiles",
            Action::Statistics,
            Document::Quantiles,
        ),
        Route::new(Method::GET, "/console/api/models/{model}/now", Action::Statistics, Document::Now),
        Route::new(Method::GET, "/console/api/models/{model}/advice", Action::ModelConfig, Document::Advice),
        Route::new(
            Method::GET,
            "/console/api/models/{model}/sequences",
            Action::ReadTrace,
            Document::Sequences,
        ),
        Route::new(Method::GET, "/console/api/states", Action::Index, Document::States),
        Route::new(Method::GET, "/console/api/changes", Action::ReadLog, Document::Changes),
        Route::new(Method::GET, "/console/api/gpus", Action::MachineMetrics, Document::Gpus),
        Route::new(Method::GET, "/console/api/models/{model}/trace", Action::ReadTrace, Document::Trace),
        Route::new(Method::POST, "/console/api/models/{model}/trace", Action::ChangeTrace, Document::Capture),
        Route::new(Method::GET, "/console/api/history", Action::Statistics, Document::History),
        Route::new(Method::GET, "/console/api/log", Action::ReadLog, Document::Log),
    ];
    ALL
});

/// The method, path and action of each route of the API.
pub fn routes() -> impl Iterator<Item = (&'static Method, &'static str, Action)> {
    ROUTES.all().iter().map(|route| (&route.method, route.path, route.action))
}

/// Parts of the program around the server that the console shows. The default has none.
#[derive(Clone, Default)]
pub struct Parts {
    /// Checks models that are not served.
    pub advisor: Option<Arc<dyn Advisor>>,
    /// The changes by clients.
    pub changes: Option<Arc<ClientChanges>>,
    /// Reads the GPUs.
    pub gpus: Option<ReadGpus>,
}

/// The console of a server, to be mounted on the port of the faces that it uses.
pub struct Console {
    server: Arc<Server>,
    log: Arc<LogControl>,
    sampling: Sampling,
    captures: Captures,
    parts: Parts,
    pages: Pages,
}

impl Console {
    /// The console of `server`, with the access of the faces on its port.
    pub fn new(server: Arc<Server>, log: Arc<LogControl>, access: Access) -> Self {
        let fallback = || reply::error_text(StatusCode::NOT_FOUND, "Not Found: the console has no such file");
        let properties = Properties { prefix: PREFIX, fallback, access, ..Properties::default() };
        let pages = Pages::new(properties, PAGE, "index.html", FILES);
        let (sampling, captures) = (Sampling::new(&server), Captures::default());
        Self { server, log, sampling, captures, parts: Parts::default(), pages }
    }

    /// Adds parts of the program around the server.
    #[must_use]
    pub fn with_parts(self, parts: Parts) -> Self {
        let sampling = self.sampling.with_gpus(parts.gpus.clone());
        Self { parts, sampling, ..self }
    }

    /// Samples the server's counters at an interval, to be run as a task as long as the server serves.
    pub fn sampling(&self) -> Sampling {
        self.sampling.clone()
    }

    async fn document(&self, document: Document, call: &Call<'_>) -> Result<Reply> {
        let is_by_name = matches!(document, Document::Advice | Document::Trace | Document::Capture);
        if is_by_name && !call.scoped("").scope.is_all() {
            // They know the models of all namespaces by their names alone.
            let why = "advice and traces need a role that is not limited to namespaces";
            return Ok(reply::denied(&Denied::Forbidden(why.to_owned())));
        }
        match document {
            Document::Server => {
                Ok(reply::json(StatusCode::OK, &documents::server(&self.server, &self.sampling)))
            }
            Document::Models => self.models(call).await,
            Document::Declared => {
                let name = call.params.get("model").unwrap_or_default();
                let model =
                    self.server.model(call.scoped(&name), VersionQuery::parse(call.query)?.version)?;
                Ok(reply::json_bytes(StatusCode::OK, to_json(model.declared_config())))
            }
            Document::Quantiles => {
                let name = call.params.get("model").unwrap_or_default();
                let model =
                    self.server.model(call.scoped(&name), VersionQuery::parse(call.query)?.version)?;
                Ok(reply::json(StatusCode::OK, &documents::quantiles(&model)))
            }
            Document::Now => {
                let name = call.params.get("model").unwrap_or_default();
                let model =
                    self.server.model(call.scoped(&name), VersionQuery::parse(call.query)?.version)?;
                Ok(reply::json(StatusCode::OK, &NowDocument::of(&model, Instant::now())))
            }
            Document::Advice => {
                let name = call.params.get("model").unwrap_or_default().into_owned();
                let Some(advisor) = self.parts.advisor.clone() else {
                    return Ok(reply::json(StatusCode::OK, &[(); 0]));
                };
                let advice = long_work::run(move || advisor.advise(&name)).await?;
                Ok(reply::json(StatusCode::OK, &advice))
            }
            Document::Sequences => {
                let name = call.params.get("model").unwrap_or_default();
                let model =
                    self.server.model(call.scoped(&name), VersionQuery::parse(call.query)?.version)?;
                Ok(reply::json(StatusCode::OK, &SequencesDocument::of(&model, Instant::now())))
            }
            Document::States => {
                let of = ModelQuery::parse(call.query).model;
                let may_see = |model: &ModelId| call.shows(Action::Index, model);
                Ok(reply::json(StatusCode::OK, &documents::states(&self.sampling, of.as_deref(), may_see)))
            }
            Document::Changes => {
                let changes = self.parts.changes.as_ref().map(|changes| changes.last());
                Ok(reply::json(StatusCode::OK, &changes.unwrap_or_default()))
            }
            Document::Gpus => {
                let after = HistoryQuery::parse(call.query)?.after();
                let gpus = self.sampling.gpus().after(after);
                let (zero, at) = (self.sampling.unix_ms(0), self.sampling.history().last_tick());
                Ok(reply::json(StatusCode::OK, &GpusDocument::new(zero, at, gpus)))
            }
            Document::Trace => Ok(self.trace(&call.params.get("model").unwrap_or_default(), call)),
            Document::Capture => {
                let name = call.params.get("model").unwrap_or_default();
                self.server.model(call.scoped(&name), None)?;
                let (sink, until) = self.captures.begin(&name, Instant::now());
                self.server.trace().capture_next(&name, sink, until);
                Ok(self.trace(&name, call))
            }
            Document::History => {
                let query = HistoryQuery::parse(call.query)?;
                let may_see = |model: &ModelId| call.shows(Action::Statistics, model);
                let history = documents::history(&self.sampling, &query, may_see);
                // An hour of many models is a megabyte of numbers.
                long_work::run_sized(history.size(), move || reply::json(StatusCode::OK, &history)).await
            }
            Document::Log => {
                let LogQuery { after } = LogQuery::parse(call.query)?;
                Ok(reply::json(StatusCode::OK, &documents::log(&self.log, after)))
            }
        }
    }

    /// The last capture of a model.
    fn trace(&self, model: &str, call: &Call<'_>) -> Reply {
        let may_see = |model: &str| call.may(Action::ReadTrace, Some(model));
        let capture = self.captures.of(model, Instant::now());
        reply::json(StatusCode::OK, &TraceDocument::of(&capture, may_see))
    }

    /// The models, unless the client has them: the tag is the server's generation, which each change raises.
    async fn models(&self, call: &Call<'_>) -> Result<Reply> {
        let tag = format!("\"{}-{}\"", self.sampling.started_ms(), self.server.changes().generation());
        let is_known =
            call.headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
        // The progress of fetches includes the time, which passes without a change.
        if is_known && self.server.fetches().is_empty() {
            return Ok(reply::empty(StatusCode::NOT_MODIFIED));
        }
        let may_see = |model: &ModelId| call.shows(Action::Index, model);
        let mut reply = reply::json(StatusCode::OK, &documents::models(&self.server, may_see).await?);
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            reply.headers_mut().insert(ETAG, tag);
        }
        Ok(reply)
    }
}

impl Face for Console {
    fn properties(&self) -> &Properties {
        self.pages.properties()
    }

    fn find<'a>(&self, head: &'a request::Parts) -> RouteMatch<'a> {
        // Other clients get what this path has without a console.
        if head.uri.path() == PAGE
            && !(matches!(head.method, Method::GET | Method::HEAD) && accepts(&head.headers, "text/html"))
        {
            return RouteMatch::none();
        }
        match ROUTES.find(head) {
            RouteMatch::Methods(methods, _) if methods.is_empty() => match self.pages.find(head) {
                RouteMatch::Route(RouteId(page), params, action) => {
                    RouteMatch::Route(RouteId(ROUTES.all().len() + page), params, action)
                }
                other => other,
            },
            found => found,
        }
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, body: RequestBody) -> PendingReply<'a> {
        let Some(document) = ROUTES.handler(route) else {
            return self.pages.perform(RouteId(route.0.saturating_sub(ROUTES.all().len())), call, body);
        };
        Box::pin(async move {
            let reply = self.document(document, call).await.unwrap_or_else(|error| reply::error(&error));
            let budget = &self.properties().body_budget;
            let mut reply = compress(reply, Encoding::of_reply(call.headers), budget).await;
            let headers = reply.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
            reply
        })
    }
}

#[cfg(test)]
mod tests;
