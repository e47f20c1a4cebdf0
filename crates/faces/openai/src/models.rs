//! `/v1/models`: the models that this face can use, and loading and unloading them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use hyper::StatusCode;
use nereid_core::backend_api::ErrorCode;
use nereid_core::{Model, Overrides, ScopedName, VersionState};
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

/// The parameter with the names of a model's LoRA adapters, separated by commas.
const ADAPTERS: &str = "lora_adapters";

/// The LoRA adapters that a model lists; `None` if its configuration has no list.
pub(crate) fn adapters(model: &Model) -> Option<impl Iterator<Item = &str>> {
    let names = &model.config().parameters.get(ADAPTERS)?.string_value;
    Some(names.split(',').map(str::trim).filter(|name| !name.is_empty()))
}

/// The LoRA adapters of a model's versions.
fn adapters_of<'v>(states: impl Iterator<Item = &'v VersionState>) -> BTreeSet<String> {
    let models = states.filter_map(VersionState::model);
    models.filter_map(|model| adapters(model)).flatten().map(str::to_owned).collect()
}

/// Lists the models that the client may see, each followed by its adapters.
pub(crate) fn list(face: &OpenAi, call: &Call<'_>) -> Reply {
    let models = face.server.models();
    let scope = call.scope_of(Action::Index);
    let names = models.names().filter(|name| call.may(Action::Index, Some(name)));
    let scoped = names.map(|name| (name, ScopedName::new(name, &scope)));
    let usable = scoped.filter(|(_, scoped)| is_usable(models.states_of(*scoped)));
    let data = usable.flat_map(|(name, scoped)| {
        let adapters = adapters_of(models.states_of(scoped)).into_iter();
        let adapters = adapters.map(move |adapter| Document::new(face, format!("{name}:{adapter}")));
        [Document::new(face, name)].into_iter().chain(adapters)
    });
    reply::json(StatusCode::OK, &List { object: "list", data: data.collect() })
}

/// Describes a model.
///
/// # Errors
/// 404 for a model that is not listed.
pub(crate) fn describe(face: &OpenAi, call: &Call<'_>, name: &str) -> Result<Reply, Refusal> {
    let models = face.server.models();
    let is_adapter = || {
        let (base, adapter) = name.split_once(':')?;
        let base = call.scoped(base);
        Some(is_usable(models.states_of(base)) && adapters_of(models.states_of(base)).contains(adapter))
    };
    match is_usable(models.states_of(call.scoped(name))) || is_adapter().unwrap_or(false) {
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
