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
use crate::tokenized;

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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    capabilities: Capabilities,
}

/// The kinds of requests that a model answers. Empty if its next request loads it: then they are not known yet.
type Capabilities = Vec<&'static str>;

impl<'a> Document<'a> {
    fn new(face: &OpenAi, id: impl Into<Cow<'a, str>>, capabilities: Capabilities) -> Self {
        Self { id: id.into(), object: "model", created: face.created, owned_by: "nereid", capabilities }
    }
}

/// The capabilities of these versions; `None` if the face cannot use them.
fn capabilities<'v>(states: impl Iterator<Item = &'v VersionState>) -> Option<Capabilities> {
    let mut all: Option<Capabilities> = None;
    for state in states {
        let Some(model) = state.model() else {
            if state.is_evicted() {
                all.get_or_insert_default();
            }
            continue;
        };
        let (embeds, scores) = tokenized::capabilities(model);
        let known = [
            ("completions", TextContract::of(model).is_some()),
            ("embeddings", embeds || EmbeddingContract::of(model).is_ok_and(|found| found.is_some())),
            ("rerank", scores || PairContract::of(model).is_some()),
        ];
        for (name, _) in known.into_iter().filter(|(_, is_there)| *is_there) {
            let all = all.get_or_insert_default();
            if !all.contains(&name) {
                all.push(name);
            }
        }
    }
    all
}

/// Lists the models that the client may see, each followed by its adapters.
pub(crate) fn list(face: &OpenAi, call: &Call<'_>) -> Reply {
    let models = face.server.models();
    let scope = call.scope_of(Action::Index);
    let mut data = Vec::new();
    for name in models.names() {
        let scoped = ScopedName::new(name, &scope);
        if call.may(Action::Index, Some(name))
            && let Some(capabilities) = capabilities(models.states_of(scoped))
        {
            data.push(Document::new(face, name, capabilities));
        }
        // A client may see an adapter without its model.
        let all = ScopedName::new(name, &Scope::ALL);
        for adapter in adapters::of_versions(models.states_of(all)) {
            let full = format!("{name}:{adapter}");
            if let Some(capabilities) = of_adapter(face, call, &full) {
                data.push(Document::new(face, full, capabilities));
            }
        }
    }
    reply::json(StatusCode::OK, &List { object: "list", data })
}

/// The capabilities of an adapter, if the client may see it.
fn of_adapter(face: &OpenAi, call: &Call<'_>, full: &str) -> Option<Capabilities> {
    let models = face.server.models();
    let name = AdapterName::parse(full)?;
    name.shown(call, |model| {
        let found = capabilities(models.states_of(model));
        found.filter(|_| adapters::of_versions(models.states_of(model)).contains(name.adapter))
    })
}

fn of_model(face: &OpenAi, call: &Call<'_>, name: &str) -> Option<Capabilities> {
    capabilities(face.server.models().states_of(call.scoped(name)))
}

/// Describes a model.
///
/// # Errors
/// 404 for a model that is not listed.
pub(crate) fn describe(face: &OpenAi, call: &Call<'_>, name: &str) -> Result<Reply, Refusal> {
    described(face, name, of_model(face, call, name))
}

/// Describes an adapter, or a model with a colon in its name.
///
/// # Errors
/// 403 if the caller may not see it, 404 if it is not listed.
pub(crate) fn describe_adapter(face: &OpenAi, call: &Call<'_>, name: &str) -> Result<Reply, Refusal> {
    let model = call.may(Action::Index, Some(name)).then(|| of_model(face, call, name)).flatten();
    if model.is_none()
        && let Some(name) = AdapterName::parse(name)
    {
        name.permit(call, Action::Index)?;
    }
    described(face, name, model.or_else(|| of_adapter(face, call, name)))
}

fn described(face: &OpenAi, name: &str, found: Option<Capabilities>) -> Result<Reply, Refusal> {
    match found {
        Some(capabilities) => Ok(reply::json(StatusCode::OK, &Document::new(face, name, capabilities))),
        None => Err(Failure::unknown_model(format!("Unknown model: {name}")).into()),
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
