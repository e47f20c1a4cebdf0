//! `/v1/chat/completions`.

pub(crate) mod plan;
mod whole;
mod writing;

use std::future::poll_fn;

use hyper::StatusCode;
use nereid_http::{Call, Reply, RequestBody, reply};
use tokio::time::timeout;

use crate::OpenAi;
use crate::choices::Choices;
use crate::exchange::{Exchange, Refusal, random_id};
use crate::metrics::Operation;
use crate::sse;
use crate::traces::Traces;

use self::plan::plan;
use self::whole::Whole;
use self::writing::ChatStream;

/// Fields that all chunks of an answer share.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The answer's identifier.
    pub id: String,
    /// When it was made, in seconds of Unix time.
    pub created: u64,
    /// The model's name as the client wrote it.
    pub model: String,
}

/// Answers a chat completion.
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
    let plan = exchange.plan(plan).await?;
    let mut requests = Vec::with_capacity(plan.choices.len());
    for (request, options) in plan.choices {
        let measured = exchange.measure(Operation::Chat, plan.form.stream);
        requests.push((exchange.infer(request)?, options, measured));
    }
    let mut choices = Choices::new(requests, exchange.meter.take());
    let head = Head { id: random_id("chatcmpl-"), created: crate::now(), model: exchange.name.clone() };
    if !plan.form.stream {
        let mut whole = Whole::new(&plan.form);
        while let Some(delta) = poll_fn(|context| choices.poll_next(context)).await {
            whole.add(delta?);
        }
        let document = whole.into_document(&head, choices.usage(), plan.form.top_logprobs);
        return Ok(reply::json_bytes(StatusCode::OK, face.server.bodies().hold(document)?));
    }
    // An error before the first piece has a status of its own, unless the client has waited too long for a sign of life.
    let first = timeout(sse::KEEP_ALIVE, poll_fn(|context| choices.poll_next(context))).await;
    let mut written = Vec::with_capacity(1024);
    let mut stream = ChatStream::new(head, choices, &plan.form);
    let goes_on = match first {
        Err(_) => true,
        Ok(Some(Err(failure))) => return Err(failure.into()),
        Ok(first) => stream.write(first, &mut written),
    };
    Ok(sse::stream(written, !goes_on, stream, exchange.call().busy()))
}
