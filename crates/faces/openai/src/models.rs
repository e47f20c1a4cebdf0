//! `/v1/models`: the models that this face can use, and loading and unloading them.

use hyper::StatusCode;
use nereid_core::backend_api::ErrorCode;
use nereid_core::{Overrides, VersionState};
use nereid_http::{Call, Reply, reply};
use nereid_protocol::{Action, repository};
use serde::Serialize;

use crate::OpenAi;
use crate::contract::TextContract;
use crate::embeddings::EmbeddingContract;
use crate::error::Failure;
use crate::exchange::Refusal;
use crate::rerank::PairContract;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Document<'a>>,
}

#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

impl<'a> Document<'a> {
    fn new(face: &OpenAi, id: &'a str) -> Self {
        Self { id, object: "model", created: face.created, owned_by: "nereid" }
    }
}

/// Whether this face can use one of these versions. Of a version that its next request loads, that is not known yet.
fn is_usable<'v>(mut states: impl Iterator<Item = &'v VersionState>) -> bool {
    states.any(|state| match state.model() {
        Some(model) => {
            TextContract::of(model).is_some()
                || EmbeddingContract::of(model).is_ok_and(|found| found.is_some())
                || PairContract::of(model).is_some()
        }
        None => state.is_evicted(),
    })
}

/// Lists the models that the client may see.
pub(crate) fn list(face: &OpenAi, call: &Call<'_>) -> Reply {
    let models = face.server.models();
    let names = models.names().filter(|name| call.may(Action::Index, Some(name)));
    let data = names.filter(|name| is_usable(models.states_of(name))).map(|name| Document::new(face, name));
    reply::json(StatusCode::OK, &List { object: "list", data: data.collect() })
}

/// Describes a model.
///
/// # Errors
/// 404 for a model that is not listed.
pub(crate) fn describe(face: &OpenAi, name: &str) -> Result<Reply, Refusal> {
    match is_usable(face.server.models().states_of(name)) {
        true => Ok(reply::json(StatusCode::OK, &Document::new(face, name))),
        false => Err(Failure::unknown_model(format!("Unknown model: {name}")).into()),
    }
}

/// Loads a model.
///
/// # Errors
/// The load failed.
pub(crate) async fn load(face: &OpenAi, name: &str) -> Result<Reply, Refusal> {
    changed(repository::load(&face.server, name, Overrides::default()).await, name)
}

/// Unloads a model.
///
/// # Errors
/// The unload failed.
pub(crate) async fn unload(face: &OpenAi, name: &str) -> Result<Reply, Refusal> {
    changed(repository::unload(&face.server, name, false).await, name)
}

fn changed(outcome: nereid_core::backend_api::Result<()>, name: &str) -> Result<Reply, Refusal> {
    #[derive(Serialize)]
    struct Changed<'a> {
        status: &'static str,
        model: &'a str,
    }
    match outcome {
        Ok(()) => Ok(reply::json(StatusCode::OK, &Changed { status: "success", model: name })),
        Err(error) if error.code() == ErrorCode::NotFound => {
            Err(Failure::unknown_model(error.message().to_owned()).into())
        }
        Err(error) => Err(error.into()),
    }
}
