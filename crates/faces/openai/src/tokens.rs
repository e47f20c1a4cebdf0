//! `/tokenize` and `/detokenize`, as vLLM has them: by models with an input `operation`, whose backend has the tokenizer, and for models of
//! tokens by the tokenizer in their folder.

use hyper::StatusCode;
use nereid_core::backend_api::{BytesElements, DataType, InferRequest, Response, Tensor};
use nereid_core::{Admission, InputSignature, Model};
use nereid_http::{Call, Reply, RequestBody, reply};
use nereid_text_encoder::Encoder;
use serde::Serialize;

use crate::OpenAi;
use crate::chat::plan::prompt;
use crate::contract::mark_tensor;
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal, Request};
use crate::fields::{Fields, read};
use crate::profile::Profile;
use crate::tensors;
use crate::traces::Traces;

/// The field and the input by which a request wants the texts of tokens, and the output with them.
const RETURN_TEXTS: &str = "return_token_strs";
const TEXTS: &str = "token_strs";

/// The most tokens of a request.
const MOST_TOKENS: usize = 1 << 20;

/// The longest text that the server itself makes tokens of, in bytes. It takes a second.
const MOST_BYTES: usize = 1 << 20;

/// The input of a model with operations on tokens.
fn input<'m>(request: &'m Request, name: &str) -> Outcome<&'m InputSignature> {
    let signature = request.model.signature();
    let has_tokens = signature.output("tokens").is_some_and(|output| output.data_type == DataType::Int32);
    signature.input(name).filter(|_| has_tokens && signature.input("operation").is_some()).ok_or_else(|| {
        let message = format!(
            "model '{}' does not tokenize: that takes the inputs 'operation' and '{name}' and an INT32 output 'tokens'",
            request.name
        );
        Failure::invalid_field("model", message)
    })
}

/// The inputs of an operation on a text.
fn operation(request: &Request, name: &str, text: &str) -> Outcome<Vec<Tensor>> {
    let signature = request.model.signature();
    Ok(vec![
        tensors::text(signature, input(request, "text_input")?, text)?,
        tensors::text(signature, input(request, "operation")?, name)?,
    ])
}

/// The answer to a request, or the request to the model that has it.
enum Plan<T> {
    Known(T),
    Asked(Box<InferRequest>),
}

/// The tokenizer in a model's folder, unless its backend has one.
fn tokenizer<'p>(profile: &'p Profile, model: &Model, name: &str) -> Outcome<Option<&'p Encoder>> {
    if model.signature().input("operation").is_some() {
        return Ok(None);
    }
    Ok(profile.token_model(name)?.map(|model| &model.text().encoder))
}

fn plan_tokenize(request: &Request) -> Outcome<Plan<TokenizeDocument>> {
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model", "user"]);
    let given: Option<String> = fields.take("prompt")?;
    let is_chat = given.is_none();
    let (text, mark) = match given {
        Some(text) => (text, None),
        None => prompt(request, &mut fields)?,
    };
    // A chat template writes the special tokens itself.
    let adds_special = fields.take("add_special_tokens")?.unwrap_or(!is_chat);
    let wants_texts = fields.take(RETURN_TEXTS)?.unwrap_or(false);
    fields.end()?;
    if let Some(encoder) = tokenizer(&request.profile, &request.model, &request.name)? {
        if text.len() > MOST_BYTES {
            let message = format!("'prompt' has {} bytes, but may have {MOST_BYTES} at most", text.len());
            return Err(Failure::invalid_field("prompt", message));
        }
        let refused = |refusal| Failure::of_text("prompt", "", &refusal);
        let tokens = encoder.tokenize(&text, adds_special).map_err(refused)?;
        let token_strs = wants_texts.then(|| encoder.texts(&tokens)).transpose().map_err(refused)?;
        let (tokens, max_model_len): (Vec<_>, _) =
            (tokens.into_iter().map(i64::from).collect(), Some(encoder.limit() as u64));
        return Ok(Plan::Known(TokenizeDocument { count: tokens.len(), max_model_len, tokens, token_strs }));
    }
    let signature = request.model.signature();
    let mut inputs = operation(request, "tokenize", &text)?;
    inputs.extend(mark_tensor(&request.model, mark)?);
    let special = input(request, "add_special_tokens")?;
    inputs.push(tensors::scalar(signature, special, vec![u8::from(adds_special)]));
    if wants_texts {
        let has_texts = signature.output(TEXTS).is_some_and(|output| output.data_type == DataType::Bytes);
        let input = signature.input(RETURN_TEXTS).filter(|_| has_texts).ok_or_else(|| {
            let message = format!(
                "model '{}' returns no texts of tokens: that takes a BOOL input '{RETURN_TEXTS}' and a BYTES output '{TEXTS}'",
                request.name
            );
            Failure::unsupported(RETURN_TEXTS, message)
        })?;
        inputs.push(tensors::scalar(signature, input, vec![1]));
    }
    Ok(Plan::Asked(Box::new(InferRequest { inputs, ..InferRequest::default() })))
}

fn plan_detokenize(request: &Request) -> Outcome<Plan<String>> {
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model", "user"]);
    let raw = fields.take_raw("tokens");
    let raw = raw.ok_or_else(|| Failure::invalid_field("tokens", "'tokens' is missing"))?;
    fields.end()?;
    if !raw.get().starts_with('[') || raw.get().bytes().filter(|byte| *byte == b',').count() >= MOST_TOKENS {
        let message = format!("'tokens' must be a list of up to {MOST_TOKENS} numbers");
        return Err(Failure::invalid_field("tokens", message));
    }
    if let Some(encoder) = tokenizer(&request.profile, &request.model, &request.name)? {
        let text = encoder.detokenize(&read::<Vec<u32>>("tokens", raw)?);
        return Ok(Plan::Known(text.map_err(|refusal| Failure::of_text("tokens", "", &refusal))?));
    }
    let mut inputs = operation(request, "detokenize", "")?;
    let tokens = input(request, "tokens")?;
    inputs.push(tensors::from_json(request.model.signature(), tokens, "tokens", raw)?);
    Ok(Plan::Asked(Box::new(InferRequest { inputs, ..InferRequest::default() })))
}

/// The request for the text of tokens.
///
/// # Errors
/// The model does not tokenize.
pub(crate) fn detokenization(request: &Request, tokens: &[i32]) -> Outcome<InferRequest> {
    let mut inputs = operation(request, "detokenize", "")?;
    inputs.push(tensors::numbers(request.model.signature(), input(request, "tokens")?, tokens));
    Ok(InferRequest { inputs, ..InferRequest::default() })
}

/// The text in a response.
///
/// # Errors
/// The model returned none.
pub(crate) fn text_of(response: &Response) -> Outcome<String> {
    let output = response.outputs.iter().find(|output| output.name == "text_output");
    let output = output.ok_or_else(|| Failure::broken_model("the model returned no text"))?;
    Ok(String::from_utf8_lossy(&tensors::first_text(output)?).into_owned())
}

/// The tokens in a response.
fn tokens_of(response: &Response) -> Outcome<Vec<i64>> {
    let output = response.outputs.iter().find(|output| output.name == "tokens");
    let output = output.ok_or_else(|| Failure::broken_model("the model returned no tokens"))?;
    let contents = output.contiguous()?;
    let (tokens, _) = contents.as_chunks();
    Ok(tokens.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect())
}

/// The texts of tokens in a response, if it has any.
fn texts_of(response: &Response) -> Outcome<Option<Vec<String>>> {
    let Some(output) = response.outputs.iter().find(|output| output.name == TEXTS) else { return Ok(None) };
    let contents = output.contiguous()?;
    let texts = BytesElements::new(&contents);
    let texts = texts.map(|text| text.map(|text| String::from_utf8_lossy(text).into_owned()));
    Ok(Some(texts.collect::<Result<_, _>>()?))
}

/// The longest context of a model, by its configuration.
fn context_length(model: &Model) -> Option<u64> {
    model.config().parameters.get("context_length")?.string_value.trim().parse().ok()
}

#[derive(Serialize)]
struct TokenizeDocument {
    count: usize,
    max_model_len: Option<u64>,
    tokens: Vec<i64>,
    token_strs: Option<Vec<String>>,
}

/// Counts a request that does not reach its model.
fn admit(exchange: &mut Exchange<'_>) -> Result<Option<Admission>, Refusal> {
    match tokenizer(&exchange.profile, &exchange.model, &exchange.name)? {
        Some(_) => exchange.admit(),
        None => Ok(None),
    }
}

/// Answers a request for the tokens of a text or of a conversation.
///
/// # Errors
/// The reply to a request that is refused or has failed.
pub(crate) async fn tokenize(
    face: &OpenAi,
    call: &Call<'_>,
    body: RequestBody,
    traces: &Traces,
) -> Result<Reply, Refusal> {
    let mut exchange = Exchange::begin(face, call, body, traces).await?;
    let _admission = admit(&mut exchange)?;
    let document = match exchange.plan(plan_tokenize).await? {
        Plan::Known(document) => document,
        Plan::Asked(request) => {
            let response = exchange.infer(*request)?.single().await?;
            let tokens = tokens_of(&response)?;
            let max_model_len = context_length(&exchange.model);
            let token_strs = texts_of(&response)?;
            TokenizeDocument { count: tokens.len(), max_model_len, tokens, token_strs }
        }
    };
    Ok(reply::json(StatusCode::OK, &document))
}

/// Answers a request for the text of tokens.
///
/// # Errors
/// The reply to a request that is refused or has failed.
pub(crate) async fn detokenize(
    face: &OpenAi,
    call: &Call<'_>,
    body: RequestBody,
    traces: &Traces,
) -> Result<Reply, Refusal> {
    #[derive(Serialize)]
    struct Document {
        prompt: String,
    }
    let mut exchange = Exchange::begin(face, call, body, traces).await?;
    let _admission = admit(&mut exchange)?;
    let prompt = match exchange.plan(plan_detokenize).await? {
        Plan::Known(text) => text,
        Plan::Asked(request) => text_of(&exchange.infer(*request)?.single().await?)?,
    };
    Ok(reply::json(StatusCode::OK, &Document { prompt }))
}
