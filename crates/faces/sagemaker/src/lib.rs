//! The face for Amazon SageMaker: its container contract, answered by KServe's face.
//!
//! `/ping` reports whether the server works, `/invocations` runs the one model of an endpoint, and `/models` belongs to
//! multi-model endpoints, for which SageMaker loads and unloads models by their folders. Inference requests have
//! KServe's form; since SageMaker forwards no other header, the content type of bodies with binary tensors contains the
//! length of their JSON. This crate learns the meaning of a folder of models only through [`Folders`].

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod memory;
mod models;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};
use nereid_core::backend_api::Result;
use nereid_http::{
    Call, Face, PendingReply, Properties, Reply, RequestBody, Route, RouteId, RouteMatch, Routes, reply,
};
use nereid_kserve::{Dialect, Inference, KserveHttp};
use nereid_protocol::Action;

use crate::models::Models;

/// The content type of bodies with binary tensors, up to the length of their JSON.
const BINARY: &str = "application/vnd.sagemaker-triton.binary+json;json-header-size=";

/// The header with the archive that a client named. Loads, requests and unloads of a model carry the same.
const TARGET: &str = "x-amzn-sagemaker-target-model";

/// The condition reported by `/ping`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PingMode {
    /// Whether every model is ready.
    #[default]
    Ready,
    /// Whether the server works.
    Live,
}

impl FromStr for PingMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "ready" => Ok(Self::Ready),
            "live" => Ok(Self::Live),
            _ => Err(format!("must be ready or live, not '{text}'")),
        }
    }
}

/// Options of the face.
#[derive(Clone, Debug, Default)]
pub struct SageMakerOptions {
    /// The condition reported by `/ping`.
    pub ping: PingMode,
    /// The model of `/invocations`. Without one, they are answered with 404, as in the reference.
    pub model: Option<String>,
    /// The kind of inference of `/invocations`.
    pub inference: Inference,
}

/// The model folders of multi-model endpoints.
pub trait Folders: Send + Sync {
    /// Adds the repository in a folder, whose model is called `name`, and returns its path. It may block.
    ///
    /// # Errors
    /// `AlreadyExists` for a registered repository or name, otherwise the reason why the folder has no model.
    fn register(&self, folder: &Path, name: &str) -> Result<PathBuf>;

    /// Removes a repository that was added.
    fn unregister(&self, path: &Path);
}

/// The face for SageMaker, to be mounted on a transport.
pub struct SageMaker {
    /// Answers `/invocations`.
    kserve: KserveHttp,
    options: SageMakerOptions,
    models: Arc<Models>,
    properties: Properties,
}

/// An operation of this face.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Reports the server's health.
    Ping,
    /// Sends a request to the endpoint's only model.
    Invocations,
    /// Lists the models of a multi-model endpoint.
    List,
    /// Loads a model.
    Load,
    /// Describes a model.
    Get,
    /// Unloads a model.
    Unload,
    /// Sends a request to a model.
    Invoke,
}

impl SageMaker {
    /// The face over KServe's, for a server whose folders of models are `folders`.
    pub fn new(kserve: KserveHttp, options: SageMakerOptions, folders: Arc<dyn Folders>) -> Self {
        let dialect = Dialect { request_type: Some(BINARY), reply_type: Some(BINARY), ..Dialect::default() };
        let invoked = Dialect { error: memory::reply, ..dialect };
        let models = Models::new(kserve.clone().with_dialect(invoked), folders);
        let properties = Properties { fallback: unknown_path, ..kserve.properties().clone() };
        Self { kserve: kserve.with_dialect(dialect), options, models: Arc::new(models), properties }
    }

    async fn ping(&self) -> Reply {
        let server = self.kserve.server();
        let is_well = match self.options.ping {
            PingMode::Ready => server.ready().await,
            PingMode::Live => server.is_live(),
        };
        reply::empty(if is_well { StatusCode::OK } else { StatusCode::BAD_REQUEST })
    }

    async fn invocations(&self, call: &Call<'_>, body: RequestBody) -> Reply {
        let Some(model) = &self.options.model else {
            let message = "no default model: set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME";
            return reply::error_text(StatusCode::NOT_FOUND, message);
        };
        self.kserve.infer(model, self.options.inference, call, body).await
    }
}

/// The archive that a client named.
fn target(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(TARGET).map(HeaderValue::as_bytes)
}

static ROUTES: Routes<Operation> = Routes::new({
    const ALL: &[Route<Operation>] = &[
        Route::new(Method::POST, "/invocations", Action::Infer, Operation::Invocations),
        Route::new(Method::GET, "/ping", Action::Health, Operation::Ping),
        Route::new(Method::POST, "/models/{model}/invoke", Action::Infer, Operation::Invoke),
        Route::new(Method::GET, "/models/{model}/invoke", Action::Index, Operation::Get),
        Route::new(Method::GET, "/models", Action::Index, Operation::List),
        Route::new(Method::GET, "/models/", Action::Index, Operation::List),
        Route::new(Method::POST, "/models", Action::Load, Operation::Load),
        Route::new(Method::POST, "/models/", Action::Load, Operation::Load),
        Route::new(Method::GET, "/models/{model}", Action::Index, Operation::Get),
        Route::new(Method::DELETE, "/models/{model}", Action::Unload, Operation::Unload),
        // Without a name, or with a path that another method has, as in the reference: such a model is unknown.
        Route::new(Method::GET, "/models//invoke", Action::Index, Operation::List),
        Route::new(Method::POST, "/models//invoke", Action::Infer, Operation::Invoke),
        Route::new(Method::DELETE, "/models", Action::Unload, Operation::Unload),
        Route::new(Method::DELETE, "/models/", Action::Unload, Operation::Unload),
        Route::new(Method::DELETE, "/models//invoke", Action::Unload, Operation::Unload),
        Route::new(Method::DELETE, "/models/{model}/invoke", Action::Unload, Operation::Unload),
    ];
    ALL
});

/// The method, path and action of each route.
pub fn routes() -> impl Iterator<Item = (&'static Method, &'static str, Action)> {
    ROUTES.all().iter().map(|route| (&route.method, route.path, route.action))
}

impl Face for SageMaker {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        match ROUTES.find(head) {
            // As in the reference, a wrong method is 400 here and 405 elsewhere.
            RouteMatch::Methods(methods, _)
                if !methods.is_empty() && head.uri.path().starts_with("/models") =>
            {
                RouteMatch::none()
            }
            found => found,
        }
    }

    fn times_arrival(&self) -> bool {
        self.kserve.times_arrival()
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, body: RequestBody) -> PendingReply<'a> {
        Box::pin(async move {
            let model = call.params.get("model").unwrap_or_default();
            match ROUTES.handler(route) {
                Some(Operation::Ping) => self.ping().await,
                Some(Operation::Invocations) => self.invocations(call, body).await,
                Some(Operation::List) => self.models.list(call),
                Some(Operation::Load) => Arc::clone(&self.models).load(call, body).await,
                Some(Operation::Get) => self.models.get(&model, call),
                Some(Operation::Unload) => Arc::clone(&self.models).unload(&model, call).await,
                Some(Operation::Invoke) => self.models.invoke(&model, call, body).await,
                None => unknown_path(),
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
