//! `/v1/embeddings`.

mod contract;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use nereid_core::backend_api::InferRequest;
use nereid_http::{Call, Reply, RequestBody, reply};
use nereid_tasks::long_work;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::OpenAi;
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal, Request};
use crate::fields::{Fields, read};
use crate::traces::Traces;

pub(crate) use self::contract::EmbeddingContract;

/// The most texts of a request.
const MOST_TEXTS: usize = 2048;

/// A request, ready to be sent to its model.
struct Plan {
    contract: EmbeddingContract,
    requests: Vec<InferRequest>,
    is_base64: bool,
    dimensions: Option<usize>,
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
    let Plan { contract, requests, is_base64, dimensions } = exchange.plan(plan).await?;
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
    let size = vectors.iter().map(Vec::len).sum::<usize>() * size_of::<f32>();
    let model = exchange.name.clone();
    let document = long_work::run_sized(size, move || document(&model, &vectors, tokens, is_base64)).await?;
    Ok(reply::json_bytes(StatusCode::OK, face.server.bodies().hold(document)?))
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
    let contract = request.profile.embedding_contract(&request.name)?;
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
    if let Some((name, _)) = fields.rest().next() {
        return Err(Failure::unsupported(
            name.to_owned(),
            format!("'{name}' is not supported for embeddings"),
        ));
    }
    let model = &request.model;
    let requests = match read("input", input)? {
        Input::One(text) => contract.requests(model, &checked(vec![text])?, dimensions)?,
        Input::Many(texts) => contract.requests(model, &checked(texts)?, dimensions)?,
        Input::Tokens(tokens) => contract.token_requests(model, &[tokens], dimensions)?,
        Input::ManyTokens(all) => contract.token_requests(model, &all, dimensions)?,
    };
    Ok(Plan { contract, requests, is_base64, dimensions })
}

/// Texts that are neither missing nor empty.
fn checked(texts: Vec<String>) -> Outcome<Vec<String>> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(Failure::invalid_field("input", "'input' must not be empty"));
    }
    if texts.len() > MOST_TEXTS {
        let message = format!("'input' has {} texts, but may have {MOST_TEXTS} at most", texts.len());
        return Err(Failure::invalid_field("input", message));
    }
    Ok(texts)
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
