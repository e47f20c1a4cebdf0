//! The fields that completions and chat completions share.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::contract::{Guide, TextContract};
use crate::error::{Failure, Outcome};
use crate::fields::Fields;

/// The most choices of a request.
const MOST_CHOICES: u32 = 128;
/// The most stop texts of a request, and the length of each.
const MOST_STOPS: usize = 32;
const LONGEST_STOP: usize = 1024;

/// Fields that describe the client or the request to OpenAI and change no output.
const IGNORED: &[&str] = &[
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
];

/// Fields that are known and have no counterpart here.
const REFUSED: &[&str] = &[
    "audio",
    "best_of",
    "function_call",
    "functions",
    "moderation",
    "prediction",
    "suffix",
    "web_search_options",
];

/// The parameters of a generation, without its prompt.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// The number of choices for each prompt.
    pub n: u32,
    /// Whether to stream.
    pub stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub include_usage: bool,
    /// The largest number of tokens of a choice.
    pub max_tokens: Option<u64>,
    /// Texts that end the output.
    pub stop: Vec<String>,
    /// The seed of the first choice.
    pub seed: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Sampling {
    /// Takes the fields of a request to a model with this contract. `default_max_tokens` is the limit of requests without one.
    ///
    /// # Errors
    /// A field is invalid or not supported.
    pub(crate) fn take(
        fields: &mut Fields<'_>,
        contract: TextContract,
        default_max_tokens: u64,
    ) -> Outcome<Self> {
        fields.ignore(IGNORED);
        if let Some(name) = REFUSED.iter().find(|name| fields.take_raw(name).is_some()) {
            return Err(Failure::unsupported(*name, format!("'{name}' is not supported")));
        }
        let n = fields.take("n")?.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&n) {
            return Err(Failure::invalid_field(
                "n",
                format!("'n' is {n}, but must be from 1 to {MOST_CHOICES}"),
            ));
        }
        let stream = fields.take("stream")?.unwrap_or(false);
        let stream_options: Option<StreamOptions> = fields.take("stream_options")?;
        if stream_options.is_some() && !stream {
            let message = "'stream_options' can only be used when 'stream' is true";
            return Err(Failure::invalid_field("stream_options", message));
        }
        let include_usage = stream_options.unwrap_or_default().include_usage.unwrap_or(false);
        let (old, new) = (fields.take("max_tokens")?, fields.take("max_completion_tokens")?);
        let given: Option<u64> = new.or(old);
        if given == Some(0) {
            return Err(Failure::invalid_field("max_tokens", "'max_tokens' must be at least 1"));
        }
        let max_tokens = given.or((!contract.has_own_limit()).then_some(default_max_tokens));
        let stop = match fields.take("stop")? {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop],
            Some(OneOrMany::Many(all)) => all,
        };
        if stop.len() > MOST_STOPS || stop.iter().any(|stop| stop.is_empty() || stop.len() > LONGEST_STOP) {
            let message = format!("'stop' takes up to {MOST_STOPS} texts of 1 to {LONGEST_STOP} bytes each");
            return Err(Failure::invalid_field("stop", message));
        }
        Ok(Self { n, stream, include_usage, max_tokens, stop, seed: fields.take("seed")? })
    }
}

/// Takes the form of the output from `response_format`. `None` for text.
///
/// # Errors
/// The form is unknown.
pub(crate) fn guide<'a>(fields: &mut Fields<'a>) -> Outcome<Option<Guide<'a>>> {
    let Some(raw) = fields.take_raw("response_format") else { return Ok(None) };
    guide_of(raw, "response_format")
}

/// The form of the output in the value of a field.
///
/// # Errors
/// The form is unknown.
pub(crate) fn guide_of<'a>(raw: &'a RawValue, field: &'static str) -> Outcome<Option<Guide<'a>>> {
    #[derive(Deserialize)]
    struct Format<'a> {
        r#type: String,
        #[serde(borrow)]
        json_schema: Option<JsonSchema<'a>>,
        /// In `/v1/responses` it is not nested.
        #[serde(borrow)]
        schema: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct JsonSchema<'a> {
        #[serde(borrow)]
        schema: Option<&'a RawValue>,
    }
    let format: Format<'a> = serde_json::from_str(raw.get())
        .map_err(|error| Failure::invalid_field(field, format!("'{field}': {error}")))?;
    match format.r#type.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Guide::JsonObject)),
        "json_schema" => {
            let schema = format.json_schema.and_then(|format| format.schema).or(format.schema);
            match schema {
                Some(schema) => Ok(Some(Guide::JsonSchema(Cow::Borrowed(schema.get())))),
                None => Err(Failure::invalid_field(field, format!("'{field}' has no schema"))),
            }
        }
        other => {
            let message = format!(
                "'{field}': type '{other}' is not supported (available: text, json_object, json_schema)"
            );
            Err(Failure::unsupported(field, message))
        }
    }
}
