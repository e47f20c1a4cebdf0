//! How a model takes a prompt and returns text: the tensors of Triton's vLLM backend, or those of its TensorRT-LLM backend.
//!
//! A model follows one of these contracts if its configuration declares the inputs and outputs by name, regardless of its
//! backend: a library, a model in Python, an ensemble.

use std::borrow::Cow;

use nereid_core::backend_api::{DataType, InferRequest, Response, Tensor};
use nereid_core::{InputSignature, Model, Signature};
use serde_json::value::RawValue;

use crate::adapters;
use crate::error::{Failure, Outcome};
use crate::fields::Fields;
use crate::literals;
use crate::logprobs::{self, TokenLogprobs};
use crate::tensors;

/// The contract of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextContract {
    form: Form,
    /// Whether a request may have any number of responses.
    is_decoupled: bool,
    /// Whether the model needs no limit of tokens.
    has_own_limit: bool,
}

/// How sampling parameters reach the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As one JSON text in `sampling_parameters`, with the names of vLLM's `SamplingParams`.
    Vllm,
    /// As an input each.
    Inputs,
}

/// The names of the input that leaves the prompt out of the output, in the order of preference.
const EXCLUDE_INPUT: [&str; 2] = ["exclude_input_in_output", "sampling_param_exclude_input_from_output"];

/// The inputs by which a model returns more than the text.
const RETURNED: [&str; 4] = [
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_cached_tokens",
    "return_num_output_tokens",
];

/// The sampling parameter that constrains the output.
const STRUCTURED_OUTPUTS: &str = "structured_outputs";

/// The backends whose models end at the end of their context without a limit of tokens.
const OWN_BACKENDS: [&str; 2] = ["llamacpp", "transformers"];

/// Bytes of sampling parameters that one request may cause to be written, for all of its choices.
pub(crate) const SAMPLING_ROOM: usize = 256 << 20;

/// A request for text, from any of the endpoints.
#[derive(Debug)]
pub(crate) struct Generation<'a> {
    /// The whole prompt, unless it is given as tokens.
    pub prompt: Cow<'a, str>,
    /// The tokens of the prompt.
    pub tokens: Option<Vec<i32>>,
    /// The mark around texts in the prompt that have no control tokens.
    pub literal_mark: Option<char>,
    /// The images that the prompt has places for.
    pub images: Option<Tensor>,
    /// Whether the model should answer token by token if it can.
    pub stream: bool,
    /// The largest number of tokens to generate.
    pub max_tokens: Option<u64>,
    /// Texts that end the output, which they are not part of.
    pub stop: Vec<String>,
    /// The seed of the first choice; each further choice has the next one.
    pub seed: Option<i64>,
    /// How many alternatives of each token to report.
    pub logprobs: Option<u32>,
    /// The form of the output.
    pub guide: Option<Guide<'a>>,
    /// The adapter to use.
    pub lora: Option<String>,
    /// Whether special tokens are part of the text, as marks of tool calls are.
    pub keep_special_tokens: bool,
    /// Further sampling parameters.
    pub fields: Fields<'a>,
}

/// A constraint of the output.
#[derive(Clone, Debug)]
pub(crate) enum Guide<'a> {
    /// A JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Cow<'a, str>),
}

/// A piece of a model's output.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// The bytes of the text; a character may be cut.
    pub text: Vec<u8>,
    /// The model's reason for the end of its output.
    pub finish: Option<Finish>,
    /// The number of tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// The part that the model had in a cache.
    pub cached_tokens: Option<u64>,
    /// The number of tokens that this piece adds.
    pub output_tokens: Option<u64>,
    /// The probabilities of the tokens.
    pub logprobs: Option<Vec<TokenLogprobs>>,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model has finished, or has generated a stop text.
    Stop,
    /// The limit of tokens is reached.
    Length,
}

impl TextContract {
    /// The contract of a model; `None` if it has none.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let (signature, backend) = (model.signature(), model.config().backend.as_str());
        let prompt = signature.input("text_input").filter(|input| input.data_type == DataType::Bytes)?;
        signature.output("text_output").filter(|output| output.data_type == DataType::Bytes)?;
        let others_are_known = signature
            .inputs
            .iter()
            .all(|input| input.name == prompt.name || input.optional || is_set_always(&input.name));
        let form = match signature.input("sampling_parameters") {
            Some(input) if input.data_type == DataType::Bytes => Form::Vllm,
            _ if backend == "vllm" => Form::Vllm,
            _ => Form::Inputs,
        };
        // A model with other required inputs belongs to another face.
        (others_are_known || form == Form::Vllm).then_some(Self {
            form,
            is_decoupled: model.is_decoupled(),
            has_own_limit: OWN_BACKENDS.contains(&backend),
        })
    }

    /// Whether the model generates up to the end of its context if a request has no limit.
    pub(crate) fn has_own_limit(self) -> bool {
        self.has_own_limit
    }

    /// Whether the output arrives in pieces if a client streams.
    pub(crate) fn is_decoupled(self) -> bool {
        self.is_decoupled
    }

    /// The requests for `count` choices. `room` is how many bytes of sampling parameters may be written: choices share their prompt
    /// and images, and all of their inputs unless they differ by their seeds.
    ///
    /// # Errors
    /// The model does not support the request, or the room is exhausted.
    pub(crate) fn requests(
        self,
        model: &Model,
        generation: &Generation<'_>,
        count: u32,
        room: &mut usize,
    ) -> Outcome<Vec<InferRequest>> {
        let Some(input) = model.signature().input("text_input") else {
            return Err(Failure::broken_model("the model has no input 'text_input'"));
        };
        let mut shared = vec![tensors::text(model.signature(), input, &generation.prompt)?];
        if let Some(tokens) = &generation.tokens {
            shared.push(tokens_tensor(model, tokens)?);
        }
        shared.extend(mark_tensor(model, generation.literal_mark)?);
        shared.extend(generation.images.clone());
        let mut requests: Vec<InferRequest> = Vec::with_capacity(count as usize);
        for choice in 0..count {
            let request = match requests.first() {
                Some(first) if generation.seed.is_none() => {
                    InferRequest { inputs: first.inputs.clone(), ..InferRequest::default() }
                }
                _ => {
                    let request = self.request(model, generation, choice, shared.clone())?;
                    let size = request.inputs.iter().skip(shared.len()).map(Tensor::byte_size).sum();
                    *room = room.checked_sub(size).ok_or_else(|| {
                        Failure::invalid_field(
                            "n",
                            "the sampling parameters are too long for so many choices",
                        )
                    })?;
                    request
                }
            };
            requests.push(request);
        }
        Ok(requests)
    }

    /// The request for one choice.
    fn request(
        self,
        model: &Model,
        generation: &Generation<'_>,
        choice: u32,
        shared: Vec<Tensor>,
    ) -> Outcome<InferRequest> {
        let mut inputs = Inputs { model, signature: model.signature(), request: InferRequest::default() };
        inputs.request.inputs.extend(shared);
        inputs.flag("stream", generation.stream && self.is_decoupled);
        if let Some(name) = EXCLUDE_INPUT.iter().find(|name| inputs.signature.input(name).is_some()) {
            inputs.flag(name, true);
        }
        for name in RETURNED {
            inputs.flag(name, true);
        }
        if generation.logprobs.is_some() {
            inputs.require("return_logprobs", "logprobs")?;
            inputs.flag("return_logprobs", true);
        }
        let seed = generation.seed.map(|seed| seed.wrapping_add(choice.into()));
        match self.form {
            Form::Vllm => inputs.sampling_parameters(generation, seed)?,
            Form::Inputs => inputs.sampling_inputs(generation, seed)?,
        }
        Ok(inputs.request)
    }
}

/// The tokens of a prompt, for a model that takes them.
fn tokens_tensor(model: &Model, tokens: &[i32]) -> Outcome<Tensor> {
    let signature = model.signature();
    let takes_tokens = |input: &&InputSignature| input.data_type == DataType::Int32 && input.optional;
    let input = signature.input("tokens").filter(takes_tokens).ok_or_else(|| {
        let message = format!(
            "model '{}' takes no prompts of token numbers: that takes an optional INT32 input 'tokens'",
            model.name()
        );
        Failure::unsupported("prompt", message)
    })?;
    Ok(tensors::numbers(signature, input, tokens))
}

/// The mark around texts in a prompt that have no control tokens.
///
/// # Errors
/// As for [`tensors::text`].
pub(crate) fn mark_tensor(model: &Model, mark: Option<char>) -> Outcome<Option<Tensor>> {
    let signature = model.signature();
    let Some((mark, input)) = mark.zip(signature.input(literals::INPUT)) else { return Ok(None) };
    tensors::text(signature, input, mark.encode_utf8(&mut [0; 4])).map(Some)
}

/// Whether every request has an input of this name.
fn is_set_always(name: &str) -> bool {
    name == "max_tokens" || name == "stream" || name.starts_with("return_") || EXCLUDE_INPUT.contains(&name)
}

/// A request while its inputs are added.
struct Inputs<'m> {
    model: &'m Model,
    signature: &'m Signature,
    request: InferRequest,
}

impl<'m> Inputs<'m> {
    /// Sets a boolean input, if the model has it.
    fn flag(&mut self, name: &str, value: bool) {
        if let Some(input) = self.signature.input(name).filter(|input| input.data_type == DataType::Bool) {
            self.request.inputs.push(tensors::scalar(self.signature, input, vec![u8::from(value)]));
        }
    }

    /// The input that a field of the request needs.
    fn require(&self, input: &str, field: &str) -> Outcome<&'m InputSignature> {
        self.signature.input(input).ok_or_else(|| {
            let message = format!("'{field}' is not supported by model '{}'", self.model.name());
            Failure::unsupported(field.to_owned(), message)
        })
    }

    /// Sets `sampling_parameters`.
    fn sampling_parameters(&mut self, generation: &Generation<'_>, seed: Option<i64>) -> Outcome<()> {
        let input = self.require("sampling_parameters", "model")?;
        let mut json = SamplingJson::new();
        // Triton's vLLM backend reads this member as a text of JSON.
        let form = |form: &str| match self.model.config().backend == "vllm" && form.starts_with('{') {
            true => serde_json::Value::from(form).to_string(),
            false => form.to_owned(),
        };
        for (name, value) in generation.fields.rest() {
            match name {
                STRUCTURED_OUTPUTS => json.field(name, &form(value.get())),
                _ => json.field(name, value.get()),
            }
        }
        if let Some(max_tokens) = generation.max_tokens {
            json.field("max_tokens", &max_tokens.to_string());
        }
        if !generation.stop.is_empty() {
            json.field("stop", &serde_json::to_string(&generation.stop).unwrap_or_default());
        }
        if let Some(seed) = seed {
            json.field("seed", &seed.to_string());
        }
        if let Some(logprobs) = generation.logprobs {
            json.field("logprobs", &logprobs.to_string());
        }
        let own = generation.fields.rest().find(|(name, _)| is_form(name));
        if let (Some(_), Some((name, _))) = (&generation.guide, own) {
            let message =
                format!("'{name}' is not supported together with 'response_format' or a forced tool");
            return Err(Failure::invalid_field(name.to_owned(), message));
        }
        match &generation.guide {
            None => {}
            Some(Guide::JsonObject) => json.field(STRUCTURED_OUTPUTS, &form("{\"json_object\":true}")),
            Some(Guide::JsonSchema(schema)) => {
                json.field(STRUCTURED_OUTPUTS, &form(&format!("{{\"json\":{schema}}}")));
            }
        }
        if generation.keep_special_tokens
            && generation.fields.rest().all(|(name, _)| name != "skip_special_tokens")
        {
            json.field("skip_special_tokens", "false");
        }
        if let Some(lora) = &generation.lora {
            if generation.fields.get_raw(adapters::FIELD).is_some() {
                let message =
                    format!("'{}' is not supported together with an adapter in 'model'", adapters::FIELD);
                return Err(Failure::invalid_field(adapters::FIELD, message));
            }
            json.field(adapters::FIELD, &serde_json::Value::from(lora.as_str()).to_string());
        }
        let parameters = tensors::text(self.signature, input, &json.end())?;
        self.request.inputs.push(parameters);
        Ok(())
    }

    /// Sets an input for each parameter.
    fn sampling_inputs(&mut self, generation: &Generation<'_>, seed: Option<i64>) -> Outcome<()> {
        if let Some(max_tokens) = generation.max_tokens {
            self.number("max_tokens", &["max_tokens"], max_tokens)?;
        }
        if let Some(seed) = seed {
            self.number("seed", &["seed", "random_seed"], seed)?;
        }
        // Without such an input the face alone cuts the output.
        if !generation.stop.is_empty()
            && let Some(input) = self.signature.input("stop_words")
        {
            let stop = tensors::texts(self.signature, input, &generation.stop)?;
            self.request.inputs.push(stop);
        }
        if let Some(guide) = &generation.guide {
            let (kind, text) = match guide {
                Guide::JsonObject => ("json", None),
                Guide::JsonSchema(schema) => ("json_schema", Some(schema)),
            };
            self.text("guided_decoding_guide_type", "response_format", kind)?;
            if let Some(text) = text {
                self.text("guided_decoding_guide", "response_format", text)?;
            }
        }
        if generation.lora.is_some() {
            return Err(Failure::unsupported(
                "model",
                format!("adapters are not supported by model '{}'", self.model.name()),
            ));
        }
        for (name, value) in generation.fields.rest() {
            match self.signature.input(name) {
                Some(input) => {
                    let tensor = tensors::from_json(self.signature, input, name, value)?;
                    self.request.inputs.push(tensor);
                }
                None if has_no_effect(name, value) => {}
                None => {
                    self.require(name, name)?;
                }
            }
        }
        Ok(())
    }

    /// Sets the first of these inputs that the model has to a whole number.
    fn number(&mut self, field: &str, names: &[&str], number: impl Into<serde_json::Value>) -> Outcome<()> {
        let Some(input) = names.iter().find_map(|name| self.signature.input(name)) else {
            // The face counts tokens itself where the model reports them.
            return if field == "max_tokens" { Ok(()) } else { self.require(field, field).map(|_| ()) };
        };
        let raw = serde_json::value::to_raw_value(&number.into())
            .map_err(|error| Failure::invalid_field(field.to_owned(), error.to_string()))?;
        let tensor = tensors::from_json(self.signature, input, field, &raw)?;
        self.request.inputs.push(tensor);
        Ok(())
    }

    /// Sets an input to a text.
    fn text(&mut self, input: &str, field: &str, text: &str) -> Outcome<()> {
        let input = self.require(input, field)?;
        let tensor = tensors::text(self.signature, input, text)?;
        self.request.inputs.push(tensor);
        Ok(())
    }
}

/// Whether a parameter of vLLM's demands a form of the output.
fn is_form(name: &str) -> bool {
    name == STRUCTURED_OUTPUTS || name.starts_with("guided_")
}

/// Whether a parameter has the value that means no change.
fn has_no_effect(name: &str, value: &RawValue) -> bool {
    let neutral = match name {
        "temperature" | "top_p" | "repetition_penalty" => 1.0,
        "presence_penalty" | "frequency_penalty" | "min_p" | "min_tokens" => 0.0,
        "logit_bias" => return value.get() == "{}",
        _ => return false,
    };
    value.get().parse() == Ok(neutral)
}

/// The text of `sampling_parameters`.
struct SamplingJson(String);

impl SamplingJson {
    fn new() -> Self {
        Self(String::with_capacity(128))
    }

    /// Adds a field with this JSON as its value.
    fn field(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&serde_json::Value::from(name).to_string());
        self.0.push(':');
        self.0.push_str(value);
    }

    fn end(mut self) -> String {
        self.0.push_str(if self.0.is_empty() { "{}" } else { "}" });
        self.0
    }
}

impl Piece {
    /// The piece that a response holds.
    ///
    /// # Errors
    /// The response does not have the form of its contract.
    pub(crate) fn read(response: &Response) -> Outcome<Self> {
        let mut piece = Self::default();
        for output in &response.outputs {
            match output.name.as_str() {
                "text_output" => piece.text = tensors::first_text(output)?,
                "finish_reason" if output.data_type == DataType::Bytes => {
                    piece.finish = Finish::parse(&tensors::first_text(output)?);
                }
                "num_input_tokens" => piece.prompt_tokens = tensors::first_count(output),
                "num_cached_tokens" => piece.cached_tokens = tensors::first_count(output),
                "num_output_tokens" => piece.output_tokens = tensors::first_count(output),
                "logprobs" if output.data_type == DataType::Bytes => {
                    piece.logprobs = logprobs::parse(&tensors::first_text(output)?)?;
                }
                _ => {}
            }
        }
        Ok(piece)
    }
}

impl Finish {
    /// Parses a model's reason. `None` while the output continues.
    fn parse(reason: &[u8]) -> Option<Self> {
        match reason {
            b"length" => Some(Self::Length),
            b"" | b"None" | b"none" | b"null" | b"not_finished" => None,
            _ => Some(Self::Stop),
        }
    }

    /// The name in OpenAI's interface.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}
