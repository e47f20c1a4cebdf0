//! `/v1/responses`: the same conversations as chat completions, in the form of OpenAI's newer interface. Nothing is stored: each request
//! holds its whole conversation.

mod input;
mod whole;
mod writing;

use std::future::poll_fn;

use hyper::StatusCode;
use nereid_http::{Call, Reply, RequestBody, reply};
use serde_json::{Map, Value};
use tokio::time::timeout;

use self::input::plan;
use self::whole::{Answer, envelope};
use self::writing::ResponseStream;
use crate::OpenAi;
use crate::choices::Choices;
use crate::exchange::{Exchange, Refusal, random_id};
use crate::sse;

/// Fields that all documents of an answer share.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    id: String,
    created: u64,
    model: String,
    /// Fields of the request that an answer repeats.
    echo: Map<String, Value>,
}

/// Answers a request.
///
/// # Errors
/// The reply to a request that is refused or has failed.
pub(crate) async fn answer(face: &OpenAi, call: &Call<'_>, body: RequestBody) -> Result<Reply, Refusal> {
    let mut exchange = Exchange::begin(face, call, body).await?;
    let (plan, echo) = exchange.plan(plan).await?;
    let mut requests = Vec::with_capacity(plan.choices.len());
    for (request, options) in plan.choices {
        requests.push((exchange.infer(request)?, options));
    }
    let mut choices = Choices::new(requests, exchange.meter.take());
    let head = Head { id: random_id("resp_"), created: crate::now(), model: exchange.name.clone(), echo };
    if !plan.form.stream {
        let mut answer = Answer::new(&plan.form);
        while let Some(delta) = poll_fn(|context| choices.poll_next(context)).await {
            answer.add(delta?);
        }
        let document = envelope(&head, answer.status(), answer.items(), choices.usage());
        let document = serde_json::to_vec(&document).unwrap_or_default();
        return Ok(reply::json_bytes(StatusCode::OK, face.server.bodies().hold(document)?));
    }
    // As for chat completions.
    let first = timeout(sse::KEEP_ALIVE, poll_fn(|context| choices.poll_next(context))).await;
    let mut written = Vec::with_capacity(4096);
    let mut stream = ResponseStream::new(head, choices, &plan.form);
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
