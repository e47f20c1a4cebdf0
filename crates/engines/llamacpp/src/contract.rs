//! The tensors of a language model, with the names and meanings of Triton's vLLM backend.

use nereid_backend_api::{
    BytesElements, DataType, Error, ModelConfig, Request, Response, Result, Tensor, push_bytes_element,
};
use nereid_model_config::proto::{ModelInput, ModelOutput, ModelParameter};

use crate::engine::{Token, Vocabulary};
use crate::parameters::SamplingParameters;
use crate::sampler::TokenLogprob;
use crate::scheduler::{Finish, Part};
use crate::tokens;
use crate::weights::Weights;

pub(crate) const TEXT_INPUT: &str = "text_input";
pub(crate) const TEXT_OUTPUT: &str = "text_output";
const STREAM: &str = "stream";
const SAMPLING_PARAMETERS: &str = "sampling_parameters";
/// A character; between two of it, the prompt has no special tokens.
const LITERAL_MARK: &str = "literal_mark";
const EXCLUDE_INPUT: &str = "exclude_input_in_output";
/// `generate` unless a request sets it.
pub(crate) const OPERATION: &str = "operation";
/// Whether the operation `tokenize` adds the tokens that begin and end every text.
pub(crate) const SPECIAL_TOKENS: &str = "add_special_tokens";
/// Whether the operation `tokenize` also returns the vocabulary's texts of the tokens.
pub(crate) const RETURN_TOKEN_TEXTS: &str = "return_token_strs";
/// These texts.
pub(crate) const TOKEN_TEXTS: &str = "token_strs";
/// Tokens of a text, the input and the output of operations on them.
pub(crate) const TOKENS: &str = "tokens";
const RETURN_FINISH_REASON: &str = "return_finish_reason";
const RETURN_LOGPROBS: &str = "return_logprobs";
const RETURN_INPUT_TOKENS: &str = "return_num_input_tokens";
const RETURN_CACHED_TOKENS: &str = "return_num_cached_tokens";
const RETURN_OUTPUT_TOKENS: &str = "return_num_output_tokens";
const FINISH_REASON: &str = "finish_reason";
const LOGPROBS: &str = "logprobs";
const INPUT_TOKENS: &str = "num_input_tokens";
/// The number of the prompt's tokens that were in the cache.
const CACHED_TOKENS: &str = "num_cached_tokens";
const OUTPUT_TOKENS: &str = "num_output_tokens";

/// The inputs, and whether a request needs them. All have one element, but for the tokens.
const INPUTS: &[(&str, DataType, bool)] = &[
    (TEXT_INPUT, DataType::Bytes, true),
    (STREAM, DataType::Bool, false),
    (SAMPLING_PARAMETERS, DataType::Bytes, false),
    (EXCLUDE_INPUT, DataType::Bool, false),
    (RETURN_FINISH_REASON, DataType::Bool, false),
    (RETURN_LOGPROBS, DataType::Bool, false),
    (RETURN_INPUT_TOKENS, DataType::Bool, false),
    (RETURN_CACHED_TOKENS, DataType::Bool, false),
    (RETURN_OUTPUT_TOKENS, DataType::Bool, false),
    (OPERATION, DataType::Bytes, false),
    (SPECIAL_TOKENS, DataType::Bool, false),
    (RETURN_TOKEN_TEXTS, DataType::Bool, false),
    (TOKENS, DataType::Int32, false),
    (LITERAL_MARK, DataType::Bytes, false),
];

const OUTPUTS: &[(&str, DataType)] = &[
    (TEXT_OUTPUT, DataType::Bytes),
    (FINISH_REASON, DataType::Bytes),
    (LOGPROBS, DataType::Bytes),
    (INPUT_TOKENS, DataType::Uint32),
    (CACHED_TOKENS, DataType::Uint32),
    (OUTPUT_TOKENS, DataType::Uint32),
    (TOKENS, DataType::Int32),
    (TOKEN_TEXTS, DataType::Bytes),
];

/// The length of a tensor's only dimension.
fn length_of(name: &str) -> i64 {
    if [TOKENS, TOKEN_TEXTS].contains(&name) { -1 } else { 1 }
}

/// Adds the inputs and outputs that a configuration lacks, and makes the model decoupled.
pub(crate) fn complete(config: &mut ModelConfig) {
    for (name, data_type, is_required) in INPUTS {
        if !config.input.iter().any(|input| input.name == *name) {
            config.input.push(ModelInput {
                name: (*name).to_owned(),
                data_type: i32::from(data_type.number()),
                dims: vec![length_of(name)],
                optional: !is_required,
                ..ModelInput::default()
            });
        }
    }
    for (name, data_type) in OUTPUTS {
        if !config.output.iter().any(|output| output.name == *name) {
            config.output.push(ModelOutput {
                name: (*name).to_owned(),
                data_type: i32::from(data_type.number()),
                dims: vec![length_of(name)],
                ..ModelOutput::default()
            });
        }
    }
    config.model_transaction_policy.get_or_insert_default().decoupled = true;
}

/// Adds the parameters by which faces render chats, and the longest context, unless the configuration sets them.
pub(crate) fn complete_chat(config: &mut ModelConfig, weights: &Weights, context: usize) {
    let control_tokens = serde_json::Value::from(weights.control_tokens());
    let found = [
        ("control_tokens", Some(control_tokens.to_string())),
        ("context_length", Some(context.to_string())),
        ("chat_template", weights.metadata("tokenizer.chat_template")),
        ("bos_token", weights.first_token()),
        ("eos_token", weights.last_token()),
    ];
    for (key, value) in found {
        if let Some(string_value) = value {
            config.parameters.entry(key.to_owned()).or_insert(ModelParameter { string_value });
        }
    }
}

/// Checks a configuration, as far as the server does not.
///
/// # Errors
/// `InvalidArg` for a setting or tensor that the backend cannot have.
pub(crate) fn check(config: &ModelConfig) -> Result<()> {
    if config.max_batch_size > 0 {
        return Err(Error::invalid_arg(format!(
            "max_batch_size is {}, but must be 0: backend 'llamacpp' batches requests itself, see parameter 'max_sequences'",
            config.max_batch_size
        )));
    }
    if !config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled) {
        return Err(Error::invalid_arg(
            "model_transaction_policy must have decoupled: true: a request with 'stream' has several responses",
        ));
    }
    let has_text = config.input.iter().any(|input| input.name == TEXT_INPUT);
    if !has_text || !config.output.iter().any(|output| output.name == TEXT_OUTPUT) {
        return Err(Error::invalid_arg(format!(
            "the model needs the input '{TEXT_INPUT}' and the output '{TEXT_OUTPUT}'"
        )));
    }
    let inputs = config.input.iter().map(|input| ("input", &input.name, input.data_type, &input.dims));
    let outputs = config.output.iter().map(|output| ("output", &output.name, output.data_type, &output.dims));
    for (role, name, data_type, dims) in inputs.chain(outputs) {
        let mut known: Box<dyn Iterator<Item = (&str, DataType)>> = match role {
            "input" => Box::new(INPUTS.iter().map(|(name, data_type, _)| (*name, *data_type))),
            _ => Box::new(OUTPUTS.iter().copied()),
        };
        let Some((_, expected)) = known.find(|(known, _)| known == name) else {
            return Err(Error::invalid_arg(format!(
                "{role} '{name}': backend 'llamacpp' has no {role} of this name"
            )));
        };
        if data_type != i32::from(expected.number()) || !matches!(dims.as_slice(), [1 | -1]) {
            return Err(Error::invalid_arg(format!(
                "{role} '{name}' must have data_type TYPE_{expected} and dims [ {length} ]",
                expected = type_name(expected),
                length = length_of(name)
            )));
        }
    }
    Ok(())
}

fn type_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Bool => "BOOL",
        DataType::Uint32 => "UINT32",
        DataType::Int32 => "INT32",
        _ => "STRING",
    }
}

/// A request's inputs, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wish {
    pub(crate) text: String,
    /// The tokens of the prompt, if they are given instead of its text.
    pub(crate) tokens: Option<Vec<Token>>,
    pub(crate) literal_mark: Option<char>,
    pub(crate) parameters: SamplingParameters,
    pub(crate) format: Format,
}

/// The form of a request's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) streams: bool,
    pub(crate) repeats_input: bool,
    finish_reason: bool,
    logprobs: bool,
    input_tokens: bool,
    cached_tokens: bool,
    output_tokens: bool,
}

/// How many tokens a prompt has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PromptTokens {
    pub(crate) count: usize,
    /// The part that was in the cache.
    pub(crate) cached: usize,
}

impl Wish {
    /// Reads the inputs of a request for a model with a vocabulary of this size.
    ///
    /// # Errors
    /// `InvalidArg` for inputs that are missing or invalid.
    pub(crate) fn of(request: &Request, vocabulary: usize) -> Result<Self> {
        let streams = flag(request, STREAM)?.unwrap_or(false);
        let excludes_input = flag(request, EXCLUDE_INPUT)?;
        if streams && excludes_input == Some(false) {
            return Err(Error::invalid_arg(format!(
                "input '{EXCLUDE_INPUT}' must not be false if '{STREAM}' is true"
            )));
        }
        let mut parameters = match text(request, SAMPLING_PARAMETERS)? {
            Some(json) => SamplingParameters::parse(&json, vocabulary)?,
            None => SamplingParameters::of_request(&request.parameters, vocabulary)?,
        };
        let returns = |name| Ok::<_, Error>(flag(request, name)?.unwrap_or(false));
        let logprobs = returns(RETURN_LOGPROBS)?;
        if !logprobs {
            parameters.logprobs = None;
        }
        let prompt = text(request, TEXT_INPUT)?
            .ok_or_else(|| Error::invalid_arg("the request lacks input 'text_input'"))?;
        let tokens = tokens::given(request, vocabulary)?;
        if tokens.is_some() && !prompt.is_empty() {
            return Err(Error::invalid_arg(format!(
                "the request has a prompt in both '{TEXT_INPUT}' and '{TOKENS}', but one of them must be empty"
            )));
        }
        Ok(Self {
            text: prompt,
            tokens,
            literal_mark: literal_mark(request)?,
            parameters,
            format: Format {
                streams,
                repeats_input: !excludes_input.unwrap_or(streams),
                finish_reason: returns(RETURN_FINISH_REASON)?,
                logprobs,
                input_tokens: returns(RETURN_INPUT_TOKENS)?,
                cached_tokens: returns(RETURN_CACHED_TOKENS)?,
                output_tokens: returns(RETURN_OUTPUT_TOKENS)?,
            },
        })
    }
}

/// The mark in the prompt of a request.
///
/// # Errors
/// The input is not one character.
pub(crate) fn literal_mark(request: &Request) -> Result<Option<char>> {
    let Some(text) = text(request, LITERAL_MARK)? else { return Ok(None) };
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(mark), None) => Ok(Some(mark)),
        _ => Err(Error::invalid_arg(format!("input '{LITERAL_MARK}' must be one character"))),
    }
}

/// The contents of an optional input.
pub(crate) fn element<'a>(request: &'a Request, name: &str) -> Result<Option<std::borrow::Cow<'a, [u8]>>> {
    match request.inputs.iter().find(|input| input.name == name) {
        Some(input) => Ok(Some(input.contiguous()?)),
        None => Ok(None),
    }
}

pub(crate) fn flag(request: &Request, name: &str) -> Result<Option<bool>> {
    match element(request, name)?.as_deref() {
        None => Ok(None),
        Some([value]) => Ok(Some(*value != 0)),
        Some(_) => Err(Error::invalid_arg(format!("input '{name}' must have one element"))),
    }
}

pub(crate) fn text(request: &Request, name: &str) -> Result<Option<String>> {
    let Some(contents) = element(request, name)? else { return Ok(None) };
    let mut elements = BytesElements::new(&contents);
    let (Some(element), None) = (elements.next(), elements.next()) else {
        return Err(Error::invalid_arg(format!("input '{name}' must have one element")));
    };
    let text = String::from_utf8(element?.to_vec());
    text.map(Some).map_err(|_| Error::invalid_arg(format!("input '{name}' is not valid UTF-8")))
}

/// Makes a response of a part of the output. `finish` is set for the last one.
pub(crate) fn response(
    request: &Request,
    format: Format,
    part: &Part,
    prompt: PromptTokens,
    finish: Option<Finish>,
    vocabulary: &dyn Vocabulary,
) -> Result<Response> {
    let mut outputs = Vec::new();
    if request.wants(TEXT_OUTPUT) {
        outputs.push(text_tensor(TEXT_OUTPUT, &part.text)?);
    }
    if format.finish_reason && request.wants(FINISH_REASON) {
        let reason = match finish {
            // Python's `None` as text, as in the reference.
            None => "None",
            Some(Finish::Stop) => "stop",
            Some(Finish::Length) => "length",
        };
        outputs.push(text_tensor(FINISH_REASON, reason)?);
    }
    if format.logprobs && request.wants(LOGPROBS) {
        outputs.push(text_tensor(LOGPROBS, &logprobs_json(&part.logprobs, vocabulary))?);
    }
    let counts = [
        (format.input_tokens, INPUT_TOKENS, prompt.count),
        (format.cached_tokens, CACHED_TOKENS, prompt.cached),
        (format.output_tokens, OUTPUT_TOKENS, part.tokens),
    ];
    for (is_requested, name, count) in counts {
        if is_requested && request.wants(name) {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            outputs.push(Tensor::new(name, DataType::Uint32, [1], count.to_le_bytes().to_vec()));
        }
    }
    Ok(Response::new(outputs))
}

fn text_tensor(name: &str, text: &str) -> Result<Tensor> {
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, text.as_bytes())?;
    Ok(Tensor::new(name, DataType::Bytes, [1], contents))
}

/// The probabilities as JSON, as vLLM lists them: for each token, an object with the token first, then its alternatives.
fn logprobs_json(logprobs: &[Vec<TokenLogprob>], vocabulary: &dyn Vocabulary) -> String {
    let entry = |found: &TokenLogprob| {
        let mut piece = Vec::new();
        vocabulary.piece(found.token, true, &mut piece);
        let value = serde_json::json!({
            "logprob": found.logprob,
            "rank": found.rank,
            "decoded_token": String::from_utf8_lossy(&piece),
        });
        format!("\"{}\":{value}", found.token)
    };
    if logprobs.is_empty() {
        return "null".to_owned();
    }
    let object = |token: &Vec<TokenLogprob>| {
        let entries: Vec<_> = token.iter().map(entry).collect();
        format!("{{{}}}", entries.join(","))
    };
    let objects: Vec<_> = logprobs.iter().map(object).collect();
    format!("[{}]", objects.join(","))
}

#[cfg(test)]
mod tests;
