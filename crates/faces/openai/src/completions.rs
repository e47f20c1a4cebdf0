//! `/v1/completions`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::StatusCode;
use nereid_core::backend_api::InferRequest;
use nereid_http::{Call, Reply, RequestBody, reply};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::OpenAi;
use crate::chat::Head;
use crate::choices::{ChoiceOptions, Choices, Delta, Usage};
use crate::contract::{Finish, Generation, SAMPLING_ROOM};
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal, Request, random_id};
use crate::fields::{Fields, read};
use crate::logprobs::{CompletionLogprobs, TokenLogprobs};
use crate::metrics::Operation;
use crate::sampling::{Sampling, guide};
use crate::sse::{self, Events};
use crate::tokens;
use crate::traces::Traces;

/// The most prompts of a request.
const MOST_PROMPTS: usize = 2048;
/// The most choices of a request, for all of its prompts.
const MOST_CHOICES: usize = 4096;
/// The most alternatives of a token.
const MOST_LOGPROBS: u32 = 20;

/// A completion, ready to be sent to its model.
struct Plan {
    choices: Vec<(InferRequest, ChoiceOptions)>,
    /// The texts before the choices' own.
    echoes: Vec<Arc<str>>,
    /// The requests for these texts, of prompts of tokens: one for `n` choices each.
    detokenizations: Vec<InferRequest>,
    n: usize,
    stream: bool,
    include_usage: bool,
    top_logprobs: Option<usize>,
}

/// A prompt.
enum Prompt {
    Text(String),
    Tokens(Vec<i32>),
}

/// Answers a completion.
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
    let mut plan = exchange.plan(plan).await?;
    for (prompt, request) in plan.detokenizations.drain(..).enumerate() {
        let text: Arc<str> = tokens::text_of(&exchange.infer(request)?.single().await?)?.into();
        plan.echoes.iter_mut().skip(prompt * plan.n).take(plan.n).for_each(|echo| *echo = Arc::clone(&text));
    }
    let mut requests = Vec::with_capacity(plan.choices.len());
    for (request, options) in plan.choices {
        let measured = exchange.measure(Operation::TextCompletion, plan.stream);
        requests.push((exchange.infer(request)?, options, measured));
    }
    let mut choices = Choices::new(requests, exchange.meter.take());
    let head = Head { id: random_id("cmpl-"), created: crate::now(), model: exchange.name.clone() };
    let mut texts: Vec<_> = plan.echoes.into_iter().map(|echo| Text { echo, ..Text::default() }).collect();
    if !plan.stream {
        while let Some(delta) = poll_fn(|context| choices.poll_next(context)).await {
            let delta = delta?;
            if let Some(text) = texts.get_mut(delta.index) {
                text.add(delta);
            }
        }
        let document = document(&head, &texts, choices.usage(), plan.top_logprobs);
        return Ok(reply::json_bytes(StatusCode::OK, face.server.bodies().hold(document)?));
    }
    // As for chat completions.
    let first = timeout(sse::KEEP_ALIVE, poll_fn(|context| choices.poll_next(context))).await;
    let Plan { include_usage, top_logprobs, .. } = plan;
    let mut stream = CompletionStream { head, choices, texts, include_usage, top_logprobs };
    let mut written = Vec::with_capacity(1024);
    let goes_on = match first {
        Err(_) => true,
        Ok(Some(Err(failure))) => return Err(failure.into()),
        Ok(first) => stream.write(first, &mut written),
    };
    Ok(sse::stream(written, !goes_on, stream, exchange.call().busy()))
}

/// Reads a completion.
fn plan(request: &Request) -> Outcome<Plan> {
    let Request { name, model, profile, .. } = request;
    let contract = profile.text_contract(name)?;
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model"]);
    let prompt =
        fields.take_raw("prompt").ok_or_else(|| Failure::invalid_field("prompt", "'prompt' is missing"))?;
    let prompts = prompts(prompt)?;
    if prompts.is_empty() || prompts.iter().any(Prompt::is_empty) {
        return Err(Failure::invalid_field("prompt", "prompt must be non-empty"));
    }
    if prompts.len() > MOST_PROMPTS {
        let message = format!("'prompt' has {} prompts, but may have {MOST_PROMPTS} at most", prompts.len());
        return Err(Failure::invalid_field("prompt", message));
    }
    let echo = fields.take("echo")?.unwrap_or(false);
    let top_logprobs: Option<u32> = fields.take("logprobs")?;
    if let Some(top) = top_logprobs.filter(|top| *top > MOST_LOGPROBS) {
        let message = format!("'logprobs' is {top}, but must be at most {MOST_LOGPROBS}");
        return Err(Failure::invalid_field("logprobs", message));
    }
    if echo && top_logprobs.is_some() {
        return Err(Failure::unsupported("echo", "'echo' is not supported together with 'logprobs'"));
    }
    let sampling = Sampling::take(&mut fields, contract, request.default_max_tokens)?;
    if prompts.len().saturating_mul(sampling.n as usize) > MOST_CHOICES {
        let message = format!("a request may have {MOST_CHOICES} choices at most, for all of its prompts");
        return Err(Failure::invalid_field("n", message));
    }
    let guide = guide(&mut fields)?;
    let mut generation = Generation {
        images: None,
        prompt: "".into(),
        tokens: None,
        literal_mark: None,
        stream: sampling.stream,
        max_tokens: sampling.max_tokens,
        stop: sampling.stop,
        seed: sampling.seed,
        logprobs: top_logprobs,
        guide,
        lora: request.lora.clone(),
        keep_special_tokens: false,
        fields,
    };
    let stop: Arc<[String]> = generation.stop.as_slice().into();
    let (mut choices, mut echoes, mut room) = (Vec::new(), Vec::new(), SAMPLING_ROOM);
    let mut detokenizations = Vec::new();
    for prompt in prompts {
        let mut echoed = Arc::default();
        match prompt {
            Prompt::Text(prompt) => {
                if echo {
                    echoed = prompt.as_str().into();
                }
                generation.prompt = prompt.into();
            }
            Prompt::Tokens(tokens) => {
                if echo {
                    detokenizations.push(tokens::detokenization(request, &tokens)?);
                }
                generation.tokens = Some(tokens);
            }
        }
        let requests = contract.requests(model, &generation, sampling.n, &mut room)?;
        for (choice, request) in requests.into_iter().enumerate() {
            let options = ChoiceOptions {
                stop: Arc::clone(&stop),
                max_tokens: generation.max_tokens,
                counts_prompt: choice == 0,
            };
            choices.push((request, options));
            echoes.push(Arc::clone(&echoed));
        }
    }
    let top_logprobs = top_logprobs.map(|top| top as usize);
    Ok(Plan {
        choices,
        echoes,
        detokenizations,
        n: sampling.n as usize,
        stream: sampling.stream,
        include_usage: sampling.include_usage,
        top_logprobs,
    })
}

impl Prompt {
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Tokens(tokens) => tokens.is_empty(),
        }
    }
}

/// The prompts of a request: a text, a list of token numbers, or a list of either. All are of one kind.
fn prompts(raw: &RawValue) -> Outcome<Vec<Prompt>> {
    let texts = |texts: Vec<String>| texts.into_iter().map(Prompt::Text).collect();
    let first = raw.get().strip_prefix('[').and_then(|rest| rest.trim_start().chars().next());
    Ok(match first {
        None => vec![Prompt::Text(read("prompt", raw)?)],
        Some('"' | ']') => texts(read("prompt", raw)?),
        Some('[') => read::<Vec<Vec<i32>>>("prompt", raw)?.into_iter().map(Prompt::Tokens).collect(),
        Some(_) => vec![Prompt::Tokens(read("prompt", raw)?)],
    })
}

/// The text of a choice.
#[derive(Default)]
struct Text {
    /// The prompt, if the client wants it back; in a stream, until it is written.
    echo: Arc<str>,
    text: String,
    finish: Option<Finish>,
    logprobs: Vec<TokenLogprobs>,
    /// How many characters a stream has written.
    offset: usize,
}

impl Text {
    fn add(&mut self, delta: Delta) {
        if self.text.is_empty() {
            self.text = std::mem::take(&mut self.echo).as_ref().to_owned();
        }
        self.text.push_str(&delta.text);
        self.logprobs.extend(delta.logprobs.into_iter().flatten());
        self.finish = delta.finish;
    }

    fn choice(&self, index: usize, top_logprobs: Option<usize>) -> Choice<'_> {
        Choice {
            index,
            text: &self.text,
            logprobs: top_logprobs.map(|top| CompletionLogprobs::new(&self.logprobs, top, self.offset)),
            finish_reason: self.finish.map(Finish::name),
        }
    }
}

fn document(head: &Head, texts: &[Text], usage: Option<Usage>, top_logprobs: Option<usize>) -> Vec<u8> {
    let choices = texts.iter().enumerate().map(|(index, text)| text.choice(index, top_logprobs)).collect();
    let document = Document { usage: Some(usage), ..Document::new(head, choices) };
    serde_json::to_vec(&document).unwrap_or_default()
}

/// The chunks of an answer.
struct CompletionStream {
    head: Head,
    choices: Choices,
    texts: Vec<Text>,
    include_usage: bool,
    top_logprobs: Option<usize>,
}

impl CompletionStream {
    /// Writes what is new of the choices, `None` being their end. Returns whether more follows.
    fn write(&mut self, news: Option<Outcome<Delta>>, output: &mut Vec<u8>) -> bool {
        match news {
            Some(Ok(delta)) => {
                let (index, head) = (delta.index, &self.head);
                if let Some(text) = self.texts.get_mut(index) {
                    text.add(delta);
                    let choice = text.choice(index, self.top_logprobs);
                    sse::event(output, &Document::new(head, vec![choice]));
                    text.offset += text.text.chars().count();
                    text.text.clear();
                    text.logprobs.clear();
                }
                true
            }
            Some(Err(failure)) => {
                sse::error_event(output, &failure.body());
                sse::done(output);
                false
            }
            None => {
                if self.include_usage {
                    let usage = Some(self.choices.usage());
                    sse::event(output, &Document { usage, ..Document::new(&self.head, Vec::new()) });
                }
                sse::done(output);
                false
            }
        }
    }
}

impl Events for CompletionStream {
    fn poll_events(&mut self, context: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<bool> {
        let news = ready!(self.choices.poll_next(context));
        Poll::Ready(self.write(news, output))
    }
}

#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    /// Null where the model counts no tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

impl<'a> Document<'a> {
    fn new(head: &'a Head, choices: Vec<Choice<'a>>) -> Self {
        let Head { id, created, model } = head;
        Self { id, object: "text_completion", created: *created, model, choices, usage: None }
    }
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}
