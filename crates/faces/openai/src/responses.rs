//! `/v1/responses`: the same conversations as chat completions, in the form of OpenAI's newer interface. A request holds its whole
//! conversation, or continues the conversation of a stored answer.

mod folder;
mod input;
mod locator;
mod store;
mod whole;
mod writing;

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use nereid_core::Principal;
use nereid_http::{Call, Reply, RequestBody, reply};
use nereid_protocol::Action;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use self::input::{Planned, plan};
use self::locator::Locator;
use self::store::{StoredAnswer, Turn};
use self::whole::{Answer, envelope};
use self::writing::ResponseStream;
use crate::OpenAi;
use crate::choices::Choices;
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal, Request, random_id, waiting};
use crate::metrics::Operation;
use crate::sse;
use crate::traces::Traces;

pub use self::folder::AnswerFolder;
pub use self::store::AnswerStore;
pub(crate) use self::store::Store;

/// The beginning of an answer's identifier.
const PREFIX: &str = "resp_";

/// Fields that all documents of an answer share.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    id: String,
    created: u64,
    model: String,
    /// The identifier of the previous answer.
    previous: Option<String>,
    /// Whether the answer will be stored.
    stores: bool,
    /// Fields of the request that an answer repeats.
    echo: Map<String, Value>,
}

/// Answers a request.
///
/// # Errors
/// The reply to a request that is refused or has failed.
pub(crate) async fn answer(
    face: &OpenAi,
    call: &Call<'_>,
    body: RequestBody,
    traces: &Traces,
) -> Result<Reply, Refusal> {
    let mut exchange = Exchange::begin(face, call, body, traces).await?;
    let (store, principal) = (Arc::clone(&face.answers), call.caller.principal.clone());
    let waits = store.has_files();
    let plan = move |request: &Request| plan(request, &store, principal.as_ref());
    let planned = if waits { exchange.plan_waiting(plan).await? } else { exchange.plan(plan).await? };
    let Planned { plan, echo, previous, turns, input, stores } = planned;
    let id = if stores { secret_id() } else { None };
    let stores = id.is_some();
    let keeper = stores.then(|| Keeper {
        store: Arc::clone(&face.answers),
        principal: call.caller.principal.clone(),
        model: exchange.model.name().to_owned(),
        lora: exchange.lora.clone(),
        turns,
        input,
    });
    let mut requests = Vec::with_capacity(plan.choices.len());
    for (request, options) in plan.choices {
        let measured = exchange.measure(Operation::Chat, plan.form.stream);
        requests.push((exchange.infer(request)?, options, measured));
    }
    let mut choices = Choices::new(requests, exchange.meter.take());
    let id = id.unwrap_or_else(|| random_id(PREFIX));
    let (created, model) = (crate::now(), exchange.name.clone());
    let head = Head { id, created, model, previous, stores, echo };
    if !plan.form.stream {
        let mut answer = Answer::new(&plan.form);
        while let Some(delta) = poll_fn(|context| choices.poll_next(context)).await {
            answer.add(delta?);
        }
        let items = answer.items(Locator::of_answer(&head.id));
        let mut document = envelope(&head, answer.status(), items, choices.usage());
        if let Some(keeper) = keeper {
            keeper.keep(&mut document);
        }
        let document = serde_json::to_vec(&document).unwrap_or_default();
        return Ok(reply::json_bytes(StatusCode::OK, face.server.bodies().hold(document)?));
    }
    // As for chat completions.
    let first = timeout(sse::KEEP_ALIVE, poll_fn(|context| choices.poll_next(context))).await;
    let mut written = Vec::with_capacity(4096);
    let mut stream = ResponseStream::new(head, choices, &plan.form, keeper);
    if let Ok(Some(Err(failure))) = first {
        return Err(failure.into());
    }
    stream.begin(&mut written);
    let goes_on = match first {
        Err(_) => true,
        Ok(first) => stream.write(first, &mut written),
    };
    Ok(sse::stream(written, !goes_on, stream, exchange.call().busy()))
}

/// An identifier that cannot be guessed, because clients without a principal share their answers. `None` if the system has no random
/// numbers.
fn secret_id() -> Option<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(format!("{PREFIX}{:032x}", u128::from_ne_bytes(bytes)))
}

/// Stores an answer once it is complete.
pub(crate) struct Keeper {
    store: Arc<Store>,
    principal: Option<Principal>,
    model: String,
    lora: Option<String>,
    /// The conversation before the request.
    turns: Vec<Turn>,
    /// The items of the request.
    input: Vec<Value>,
}

impl Keeper {
    /// Stores the answer with this document. Its field `store` becomes false without room.
    fn keep(self, document: &mut Value) {
        let Self { store, principal, model, lora, mut turns, input: mut items } = self;
        let output = document.get("output").and_then(Value::as_array);
        items.extend(output.into_iter().flatten().cloned());
        turns.push(Value::from(items).to_string().into());
        let id = document.get("id").and_then(Value::as_str).unwrap_or_default();
        let locator = Locator::of_answer(id);
        let text = Bytes::from(document.to_string());
        let answer = StoredAnswer { principal, model, lora, document: text, turns };
        let is_stored = store.put(locator, answer);
        if let Some(stored) = document.get_mut("store") {
            *stored = is_stored.into();
        }
    }
}

/// Replies with a stored answer.
///
/// # Errors
/// 404 unless the answer belongs to the caller, who may run its model.
pub(crate) async fn describe(face: &OpenAi, call: &Call<'_>, id: &str) -> Result<Reply, Refusal> {
    let answer = find(face, call, id).await?;
    Ok(reply::json_bytes(StatusCode::OK, answer.document.clone()))
}

/// Removes a stored answer.
///
/// # Errors
/// As [`describe`].
pub(crate) async fn remove(face: &OpenAi, call: &Call<'_>, id: &str) -> Result<Reply, Refusal> {
    find(face, call, id).await?;
    let locator = Locator::of_answer(id);
    with_store(face, move |store| store.remove(locator)).await?;
    Ok(reply::json(StatusCode::OK, &json!({"id": id, "object": "response", "deleted": true})))
}

/// A stored answer.
async fn find(face: &OpenAi, call: &Call<'_>, id: &str) -> Outcome<Arc<StoredAnswer>> {
    let (locator, principal) = (Locator::of_answer(id), call.caller.principal.clone());
    let answer = with_store(face, move |store| store.get(locator, principal.as_ref())).await?;
    let answer = answer.filter(|answer| {
        let full = || answer.lora.as_ref().map(|lora| format!("{}:{lora}", answer.model));
        let may = |model: &str| call.may(Action::Infer, Some(model));
        may(&answer.model) || full().is_some_and(|full| may(&full))
    });
    answer
        .ok_or_else(|| Failure::unknown_answer("response_id", format!("Response with id '{id}' not found.")))
}

/// Uses the store, on another thread if that may wait for a disk.
async fn with_store<T: Send + 'static>(
    face: &OpenAi,
    work: impl FnOnce(&Store) -> T + Send + 'static,
) -> Outcome<T> {
    let store = Arc::clone(&face.answers);
    if store.has_files() { waiting(move || work(&store)).await } else { Ok(work(&store)) }
}
