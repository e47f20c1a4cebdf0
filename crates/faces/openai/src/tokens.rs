//! `/tokenize` and `/detokenize`, as vLLM has them: by models with an input `operation`, whose backend has the tokenizer.

use hyper::StatusCode;
use nereid_core::backend_api::{BytesElements, DataType, InferRequest, Response, Tensor};
use nereid_core::{InputSignature, Model};
use nereid_http::{Call, Reply, RequestBody, reply};
use serde::Serialize;

use crate::OpenAi;
use crate::chat::plan::prompt;
use crate::contract::mark_tensor;
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal, Request};
use crate::fields::Fields;
use crate::tensors;
use crate::traces::Traces;

/// The field and the input by which a request wants the texts of tokens, and the output with them.
const RETURN_TEXTS: &str = "return_token_strs";
const TEXTS: &str = "token_strs";

/// The most tokens of a request.
const MOST_TOKENS: usize = 1 << 20;

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

fn plan_tokenize(request: &Request) -> Outcome<InferRequest> {
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
    Ok(InferRequest { inputs, ..InferRequest::default() })
}

fn plan_detokenize(request: &Request) -> Outcome<InferRequest> {
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model", "user"]);
    let raw = fields.take_raw("tokens");
    let raw = raw.ok_or_else(|| Failure::invalid_field("tokens", "'tokens' is missing"))?;
    fields.end()?;
    if !raw.get().starts_with('[') || raw.get().bytes().filter(|byte| *byte == b',').count() >= MOST_TOKENS {
        let message = format!("'tokens' must be a list of up to {MOST_TOKENS} numbers");
        return Err(Failure::invalid_field("tokens", message));
    }
    let mut inputs = operation(request, "detokenize", "")?;
    let tokens = input(request, "tokens")?;
    inputs.push(tensors::from_json(request.model.signature(), tokens, "tokens", raw)?);
    Ok(InferRequest { inputs, ..InferRequest::default() })
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
fn tokens_of(response: &Response) -> Outcome<Vec<i32>> {
    let output = response.outputs.iter().find(|output| output.name == "tokens");
    let output = output.ok_or_else(|| Failure::broken_model("the model returned no tokens"))?;
    let contents = output.contiguous()?;
    let (tokens, _) = contents.as_chunks();
    Ok(tokens.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect())
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
    #[derive(Serialize)]
    struct Document {
        count: usize,
        max_model_len: Option<u64>,
        tokens: Vec<i32>,
        token_strs: Option<Vec<String>>,
    }
    let mut exchange = Exchange::begin(face, call, body, traces).await?;
    let request = exchange.plan(plan_tokenize).await?;
    let response = exchange.infer(request)?.single().await?;
    let tokens = tokens_of(&response)?;
    let max_model_len = context_length(&exchange.model);
    let token_strs = texts_of(&response)?;
    let document = Document { count: tokens.len(), max_model_len, tokens, token_strs };
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
    let request = exchange.plan(plan_detokenize).await?;
    let response = exchange.infer(request)?.single().await?;
    Ok(reply::json(StatusCode::OK, &Document { prompt: text_of(&response)? }))
}
