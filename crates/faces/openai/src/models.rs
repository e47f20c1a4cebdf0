//! `/v1/models`: the models that this face can use, and loading and unloading them.

use std::borrow::Cow;

use hyper::StatusCode;
use nereid_core::backend_api::ErrorCode;
use nereid_core::{Overrides, Scope, ScopedName, VersionState};
use nereid_http::{Call, Reply, reply};
use nereid_protocol::{Action, repository};
use serde::Serialize;

use crate::OpenAi;
use crate::adapters::{self, AdapterName};
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
    id: Cow<'a, str>,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

impl<'a> Document<'a> {
    fn new(face: &OpenAi, id: impl Into<Cow<'a, str>>) -> Self {
        Self { id: id.into(), object: "model", created: face.created, owned_by: "nereid" }
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

/// Lists the models that the client may see, each followed by its adapters.
pub(crate) fn list(face: &OpenAi, call: &Call<'_>) -> Reply {
    let models = face.server.models();
    let scope = call.scope_of(Action::Index);
    let mut data = Vec::new();
    for name in models.names() {
        let scoped = ScopedName::new(name, &scope);
        if call.may(Action::Index, Some(name)) && is_usable(models.states_of(scoped)) {
            data.push(Document::new(face, name));
        }
        // A client may see an adapter without its model.
        let all = ScopedName::new(name, &Scope::ALL);
        for adapter in adapters::of_versions(models.states_of(all)) {
            let full = format!("{name}:{adapter}");
            if has_adapter(face, call, &full) {
                data.push(Document::new(face, full));
            }
        }
    }
    reply::json(StatusCode::OK, &List { object: "list", data })
}

/// Whether there is an adapter of this name that the client may see.
fn has_adapter(face: &OpenAi, call: &Call<'_>, full: &str) -> bool {
    let models = face.server.models();
    AdapterName::parse(full).is_some_and(|name| {
        name.is_shown(call, |model| {
            is_usable(models.states_of(model))
                && adapters::of_versions(models.states_of(model)).contains(name.adapter)
        })
    })
}

fn has_model(face: &OpenAi, call: &Call<'_>, name: &str) -> bool {
    is_usable(face.server.models().states_of(call.scoped(name)))
}

/// Describes a model.
///
/// # Errors
/// 404 for a model that is not listed.
pub(crate) fn describe(face: &OpenAi, call: &Call<'_>, name: &str) -> Result<Reply, Refusal> {
    described(face, name, has_model(face, call, name))
}

/// Describes an adapter, or a model with a colon in its name.
///
/// # Errors
/// 403 if the caller may not see it, 404 if it is not listed.
pub(crate) fn describe_adapter(face: &OpenAi, call: &Call<'_>, name: &str) -> Result<Reply, Refusal> {
    let is_model = call.may(Action::Index, Some(name)) && has_model(face, call, name);
    if !is_model && let Some(name) = AdapterName::parse(name) {
        name.permit(call, Action::Index)?;
    }
    described(face, name, is_model || has_adapter(face, call, name))
}

fn described(face: &OpenAi, name: &str, is_listed: bool) -> Result<Reply, Refusal> {
    match is_listed {
        true => Ok(reply::json(StatusCode::OK, &Document::new(face, name))),
        false => Err(Failure::unknown_model(format!("Unknown model: {name}")).into()),
    }
}

/// Loads a model.
///
/// # Errors
/// The load failed.
pub(crate) async fn load(face: &OpenAi, call: &Call<'_>, name: &str) -> Result<Reply, Refusal> {
    changed(repository::load(&face.server, call.scoped(name), Overrides::default()).await, name)
}

/// Unloads a model.
///
/// # Errors
/// The unload failed.
pub(crate) async fn unload(face: &OpenAi, call: &Call<'_>, name: &str) -> Result<Reply, Refusal> {
    changed(repository::unload(&face.server, call.scoped(name), false).await, name)
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
