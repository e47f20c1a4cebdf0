//! The face with OpenAI's interface: answers, embeddings and scores by models that take text.
//!
//! A model belongs to this face if its configuration declares the tensors of Triton's vLLM or TensorRT-LLM backend (see
//! `contract`). The face renders chat templates, cuts outputs at stop texts, reads tool calls and
//! reasoning. Models of text count and find tokens themselves; for models of tokens (see `tokenized`), the face does, by the crate
//! `text-encoder`. Requests enter the server by the same door as KServe's. This crate knows no backend and no other face.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod adapters;
mod chat;
mod choices;
mod completions;
mod contract;
mod embeddings;
mod error;
mod exchange;
mod fields;
mod images;
mod literals;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod parsing;
mod prefix;
mod profile;
mod rerank;
mod responses;
mod sampling;
mod search;
mod sse;
mod template;
mod tensors;
mod tokenized;
mod tokens;
mod tools;
mod traces;

use std::future::ready;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_core::Server;
use nereid_http::{
    Call, Cors, Face, Limit, PendingReply, Properties, Reply, RequestBody, Route, RouteId, RouteMatch,
    Routes, reply,
};
use nereid_protocol::{Access, Action, HeaderPattern};

use crate::error::transport_error;
use crate::exchange::{Refusal, request_id};
use crate::metrics::LanguageMetrics;
pub use crate::prefix::OpenAiPrefix;
use crate::profile::Profiles;
use crate::responses::Store;
use crate::traces::Traces;

pub use crate::responses::{AnswerFolder, AnswerStore};

/// The prefix of paths that this face alone has. Others are elsewhere, as in vLLM.
const PREFIX: &str = "/v1/";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Options of the face.
#[derive(Clone, Debug)]
pub struct OpenAiOptions {
    /// The longest request body, in bytes.
    pub max_input_size: usize,
    /// The largest number of tokens of an answer where a request has no limit and the model needs one.
    pub default_max_tokens: u64,
    /// Where answers are stored.
    pub answers: AnswerStore,
    /// A further path below which all routes are, with the same rights.
    pub path_prefix: Option<OpenAiPrefix>,
    /// Which headers are forwarded to models as parameters; `None` for none.
    pub forwarded_headers: Option<HeaderPattern>,
    /// Access to the routes.
    pub access: Access,
    /// The web pages that may use the face.
    pub cors: Cors,
}

impl Default for OpenAiOptions {
    /// Triton's limits, without restrictions or forwarded headers.
    fn default() -> Self {
        Self {
            max_input_size: 64 << 20,
            default_max_tokens: 16,
            answers: AnswerStore::new(AnswerStore::DEFAULT_BYTES),
            path_prefix: None,
            forwarded_headers: None,
            access: Access::default(),
            cors: Cors::default(),
        }
    }
}

impl OpenAiOptions {
    fn input_limit(&self) -> Limit {
        Limit { bytes: self.max_input_size, option: "--http-max-input-size" }
    }
}

/// An operation of this face.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Chat,
    Completion,
    Embeddings,
    Response,
    StoredResponse,
    RemoveResponse,
    Rerank,
    Score,
    Tokenize,
    Detokenize,
    Models,
    Model,
    Adapter,
    Load,
    Unload,
}

static ROUTES: Routes<Operation> = Routes::new({
    const ALL: &[Route<Operation>] = &[
        Route::new(Method::POST, "/v1/chat/completions", Action::Infer, Operation::Chat),
        Route::new(Method::POST, "/v1/completions", Action::Infer, Operation::Completion),
        Route::new(Method::POST, "/v1/embeddings", Action::Infer, Operation::Embeddings),
        Route::new(Method::POST, "/v1/responses", Action::Infer, Operation::Response),
        Route::new(Method::GET, "/v1/responses/{response}", Action::Infer, Operation::StoredResponse),
        Route::new(Method::DELETE, "/v1/responses/{response}", Action::Infer, Operation::RemoveResponse),
        Route::new(Method::POST, "/v1/rerank", Action::Infer, Operation::Rerank),
        Route::new(Method::POST, "/v2/rerank", Action::Infer, Operation::Rerank),
        Route::new(Method::POST, "/rerank", Action::Infer, Operation::Rerank),
        Route::new(Method::POST, "/v1/score", Action::Infer, Operation::Score),
        Route::new(Method::POST, "/score", Action::Infer, Operation::Score),
        Route::new(Method::POST, "/tokenize", Action::Infer, Operation::Tokenize),
        Route::new(Method::POST, "/detokenize", Action::Infer, Operation::Detokenize),
        Route::new(Method::GET, "/v1/models", Action::Index, Operation::Models),
        Route::new(Method::GET, "/v1/models/{adapter}", Action::Index, Operation::Adapter),
        Route::new(Method::GET, "/v1/models/{model}", Action::Index, Operation::Model),
        Route::new(Method::POST, "/v1/models/{model}/load", Action::Load, Operation::Load),
        Route::new(Method::POST, "/v1/models/{model}/unload", Action::Unload, Operation::Unload),
    ];
    ALL
})
.accepting(|name, segment| name != "adapter" || segment.contains(':') || segment.contains("%3"));

/// The method, path and action of each route.
pub fn routes() -> impl Iterator<Item = (&'static Method, &'static str, Action)> {
    ROUTES.all().iter().map(|route| (&route.method, route.path, route.action))
}

/// The face, to be mounted on a transport.
pub struct OpenAi {
    server: Arc<Server>,
    options: OpenAiOptions,
    properties: Properties,
    profiles: Profiles,
    answers: Arc<Store>,
    metrics: LanguageMetrics,
    /// When the face was made, in seconds of Unix time.
    created: u64,
}

impl OpenAi {
    /// The face of `server`.
    pub fn new(server: Arc<Server>, options: OpenAiOptions) -> Self {
        let properties = Properties {
            prefix: PREFIX,
            fallback: unknown_path,
            access: options.access.clone(),
            body_limit: options.input_limit(),
            body_budget: server.bodies().clone(),
            cors: options.cors.clone(),
            keeps_spelling: options.forwarded_headers.is_some(),
            error_body: Some(transport_error),
        };
        let answers = Arc::clone(&options.answers.0);
        let metrics = LanguageMetrics::new(server.options().metrics.clone());
        Self { server, options, properties, profiles: Profiles::new(), answers, metrics, created: now() }
    }

    async fn answer(&self, operation: Operation, call: &Call<'_>, body: RequestBody) -> Reply {
        let model = call.params.get("model").unwrap_or_default();
        let adapter = call.params.get("adapter").unwrap_or_default();
        let response = call.params.get("response").unwrap_or_default();
        let traces = Traces::default();
        // Boxed because a future has the size of its largest branch.
        let outcome = match operation {
            Operation::Chat => Box::pin(chat::answer(self, call, body, &traces)).await,
            Operation::Completion => Box::pin(completions::answer(self, call, body, &traces)).await,
            Operation::Embeddings => Box::pin(embeddings::answer(self, call, body, &traces)).await,
            Operation::Response => Box::pin(responses::answer(self, call, body, &traces)).await,
            Operation::StoredResponse => Box::pin(responses::describe(self, call, &response)).await,
            Operation::RemoveResponse => Box::pin(responses::remove(self, call, &response)).await,
            Operation::Rerank => Box::pin(rerank::rerank(self, call, body, &traces)).await,
            Operation::Score => Box::pin(rerank::score(self, call, body, &traces)).await,
            Operation::Tokenize => Box::pin(tokens::tokenize(self, call, body, &traces)).await,
            Operation::Detokenize => Box::pin(tokens::detokenize(self, call, body, &traces)).await,
            Operation::Models => Ok(models::list(self, call)),
            Operation::Model => models::describe(self, call, &model),
            Operation::Adapter => models::describe_adapter(self, call, &adapter),
            Operation::Load => Box::pin(models::load(self, call, &model)).await,
            Operation::Unload => Box::pin(models::unload(self, call, &model)).await,
        };
        let mut reply = outcome.unwrap_or_else(|Refusal(reply)| *reply);
        if let Ok(id) = HeaderValue::from_str(&request_id(call.headers)) {
            reply.headers_mut().insert(REQUEST_ID, id);
        }
        traces.follow(reply)
    }
}

impl Face for OpenAi {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        let prefix = self.options.path_prefix.as_ref();
        let Some(path) = prefix.and_then(|prefix| prefix.strip(head.uri.path())) else {
            return ROUTES.find(head);
        };
        match ROUTES.find_at(&head.method, path) {
            // The error has this face's form, even if another face of the port has a longer prefix of the path.
            RouteMatch::Methods(methods, _) if methods.is_empty() => {
                RouteMatch::Refused(Box::new(unknown_path()))
            }
            found => found,
        }
    }

    fn times_arrival(&self) -> bool {
        self.server.trace().is_on()
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, body: RequestBody) -> PendingReply<'a> {
        match ROUTES.handler(route) {
            Some(operation) => Box::pin(self.answer(operation, call, body)),
            None => Box::pin(ready(unknown_path())),
        }
    }
}

/// The reply to unknown paths, in the transport's form, which becomes this face's.
fn unknown_path() -> Reply {
    reply::error_text(StatusCode::NOT_FOUND, "Not Found: this server has no such path of OpenAI's interface")
}

/// Seconds of Unix time.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests;
