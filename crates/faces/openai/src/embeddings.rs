//! `/v1/embeddings`.

mod contract;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use nereid_core::Model;
use nereid_core::backend_api::InferRequest;
use nereid_http::{Call, Reply, RequestBody, reply};
use nereid_tasks::long_work;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::OpenAi;
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal, Request};
use crate::fields::{Fields, read};
use crate::tokenized::{self, Item, Job, Kind, TokenModel};
use crate::traces::Traces;

pub(crate) use self::contract::EmbeddingContract;
use self::contract::shorten;

/// The most texts of a request.
const MOST_TEXTS: usize = 2048;

/// A request, ready to be sent to its model.
struct Plan {
    work: Work,
    is_base64: bool,
    dimensions: Option<usize>,
}

/// The work for the model.
enum Work {
    /// Texts.
    Requests(EmbeddingContract, Vec<InferRequest>),
    /// Tokens.
    Job(Job),
}

/// Answers a request for embeddings.
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
    let Plan { work, is_base64, dimensions } = exchange.plan(plan).await?;
    let (vectors, tokens) = match work {
        Work::Requests(contract, requests) => collect(&mut exchange, &contract, requests, dimensions).await?,
        Work::Job(job) => {
            let (mut vectors, tokens) = job.run(&mut exchange).await?;
            if let Some(count) = dimensions {
                vectors.iter_mut().try_for_each(|vector| shorten(vector, count))?;
            }
            (vectors, Some(tokens))
        }
    };
    let size = vectors.iter().map(Vec::len).sum::<usize>() * size_of::<f32>();
    let model = exchange.name.clone();
    let document = long_work::run_sized(size, move || document(&model, &vectors, tokens, is_base64)).await?;
    Ok(reply::json_bytes(StatusCode::OK, face.server.bodies().hold(document)?))
}

/// The embeddings in the responses to all requests, and the number of tokens if the model counts them.
async fn collect(
    exchange: &mut Exchange<'_>,
    contract: &EmbeddingContract,
    requests: Vec<InferRequest>,
    dimensions: Option<usize>,
) -> Result<(Vec<Vec<f32>>, Option<u64>), Refusal> {
    let mut streams = Vec::with_capacity(requests.len());
    for request in requests {
        streams.push(exchange.infer(request)?);
    }
    let (mut vectors, mut tokens) = (Vec::new(), Some(0_u64));
    for mut answers in streams {
        let mut is_answered = false;
        while let Some(response) = answers.next().await {
            let response = response?;
            let found = contract.read(&response, dimensions)?;
            is_answered |= !found.is_empty();
            if !found.is_empty() {
                tokens = tokens.zip(contract.tokens(&response)).map(|(sum, more)| sum.saturating_add(more));
            }
            vectors.extend(found);
        }
        if !is_answered {
            return Err(Failure::broken_model("the model returned no embedding").into());
        }
    }
    Ok((vectors, tokens))
}

/// A text, a list of texts, or such of token numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    One(String),
    Many(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

/// Reads a request.
fn plan(request: &Request) -> Outcome<Plan> {
    let token_model = request.profile.token_model(&request.name)?.filter(|model| model.embeds());
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model", "user"]);
    let input: &RawValue =
        fields.take_raw("input").ok_or_else(|| Failure::invalid_field("input", "'input' is missing"))?;
    let is_base64 = match fields.take::<String>("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("'encoding_format': unknown value '{other}' (available: float, base64)");
            return Err(Failure::invalid_field("encoding_format", message));
        }
    };
    let dimensions: Option<usize> = fields.take("dimensions")?;
    if dimensions == Some(0) {
        return Err(Failure::invalid_field("dimensions", "'dimensions' must be at least 1"));
    }
    let work = match token_model {
        Some(model) => Work::Job(job(model, &mut fields, input, dimensions)?),
        None => {
            let contract = request.profile.embedding_contract(&request.name)?;
            let requests = requests(&contract, &request.model, input, dimensions)?;
            Work::Requests(contract, requests)
        }
    };
    if let Some((name, _)) = fields.rest().next() {
        return Err(Failure::unsupported(
            name.to_owned(),
            format!("'{name}' is not supported for embeddings of this model"),
        ));
    }
    Ok(Plan { work, is_base64, dimensions })
}

/// The requests to a model of texts.
fn requests(
    contract: &EmbeddingContract,
    model: &Model,
    input: &RawValue,
    dimensions: Option<usize>,
) -> Outcome<Vec<InferRequest>> {
    match read("input", input)? {
        Input::One(text) => contract.requests(model, &checked(vec![text])?, dimensions),
        Input::Many(texts) => contract.requests(model, &checked(texts)?, dimensions),
        Input::Tokens(tokens) => contract.token_requests(model, &[tokens], dimensions),
        Input::ManyTokens(all) => contract.token_requests(model, &all, dimensions),
    }
}

/// The work for a model of tokens.
fn job(
    model: &Arc<TokenModel>,
    fields: &mut Fields<'_>,
    input: &RawValue,
    dimensions: Option<usize>,
) -> Outcome<Job> {
    let text = model.text();
    let truncation = tokenized::truncation(fields, &text.encoder)?;
    let name: Option<String> = fields.take("prompt_name")?;
    let prompt = text.recipe.prompt(name.as_deref());
    let prompt =
        prompt.map_err(|error| Failure::invalid_field("prompt_name", format!("'prompt_name': {error}")))?;
    if let Some(size) = dimensions {
        let checked = text.recipe.check_size(size);
        checked.map_err(|error| Failure::unsupported("dimensions", format!("'dimensions' {error}")))?;
    }
    let with_prompt = |texts: Vec<String>| {
        let items = texts
            .into_iter()
            .map(|text| Item::Text(if prompt.is_empty() { text } else { format!("{prompt}{text}") }));
        items.collect::<Vec<_>>()
    };
    let (items, has_prompt) = match read("input", input)? {
        Input::One(text) => (with_prompt(checked(vec![text])?), true),
        Input::Many(texts) => (with_prompt(checked(texts)?), true),
        Input::Tokens(tokens) => (checked_tokens(vec![tokens])?, false),
        Input::ManyTokens(all) => (checked_tokens(all)?, false),
    };
    let counts_prompt = has_prompt && text.recipe.excludes_prompt();
    let prompt = if counts_prompt { text.encoder.prompt_length(prompt) } else { Ok(0) };
    let prompt = prompt.map_err(|refusal| Failure::of_text("prompt_name", "", &refusal))?;
    let kind = Kind::Embeddings { prompt };
    Ok(Job { model: Arc::clone(model), items, truncation, kind, field: "input" })
}

/// Lists of tokens that are neither missing nor empty.
fn checked_tokens(all: Vec<Vec<u32>>) -> Outcome<Vec<Item>> {
    check_count(all.len(), all.iter().any(Vec::is_empty))?;
    Ok(all.into_iter().map(Item::Tokens).collect())
}

/// Texts that are neither missing nor empty.
fn checked(texts: Vec<String>) -> Outcome<Vec<String>> {
    check_count(texts.len(), texts.iter().any(String::is_empty))?;
    Ok(texts)
}

fn check_count(count: usize, has_empty: bool) -> Outcome<()> {
    if count == 0 || has_empty {
        return Err(Failure::invalid_field("input", "'input' must not be empty"));
    }
    if count > MOST_TEXTS {
        let message = format!("'input' has {count} texts, but may have {MOST_TEXTS} at most");
        return Err(Failure::invalid_field("input", message));
    }
    Ok(())
}

fn document(model: &str, vectors: &[Vec<f32>], tokens: Option<u64>, is_base64: bool) -> Vec<u8> {
    #[derive(Serialize)]
    struct Document<'a> {
        object: &'static str,
        data: Vec<Entry<'a>>,
        model: &'a str,
        /// Null where the model counts no tokens.
        usage: Option<Usage>,
    }
    #[derive(Serialize)]
    struct Entry<'a> {
        object: &'static str,
        index: usize,
        embedding: Embedding<'a>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Embedding<'a> {
        Numbers(&'a [f32]),
        Text(String),
    }
    #[derive(Serialize)]
    struct Usage {
        prompt_tokens: u64,
        total_tokens: u64,
    }
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = if is_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            Embedding::Text(STANDARD.encode(bytes))
        } else {
            Embedding::Numbers(vector)
        };
        Entry { object: "embedding", index, embedding }
    });
    let usage = tokens.map(|tokens| Usage { prompt_tokens: tokens, total_tokens: tokens });
    let document = Document { object: "list", data: data.collect(), model, usage };
    serde_json::to_vec(&document).unwrap_or_default()
}
