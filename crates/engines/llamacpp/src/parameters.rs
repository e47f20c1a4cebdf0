//! The sampling parameters of a request: JSON with the names of vLLM's `SamplingParams`.
//!
//! Numbers and truth values may also be text, as in requests for Triton's vLLM backend. Parameters that this engine lacks are
//! refused by name, unless they have the value that makes no difference.

use nereid_backend_api::{Error, ParameterValue, Parameters, Result};
use serde_json::{Map, Value};

use crate::engine::Token;
use crate::structure::{Parts, Structure};

/// The tokens of a request that sets no limit, as in vLLM.
const DEFAULT_MAX_TOKENS: usize = 16;

/// The most alternatives that a request may list for each token.
const MAX_LOGPROBS: usize = 20;

/// The most stop strings of a request, and the longest in bytes: the engine searches for all of them after each token.
const MAX_STOPS: usize = 64;
const MAX_STOP_LENGTH: usize = 4096;

/// Below this temperature, the most likely token is taken.
const GREEDY: f32 = 1e-5;

/// How a request's tokens are chosen, and when they end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SamplingParameters {
    /// 0 for the most likely token.
    pub(crate) temperature: f32,
    /// 0 for no limit.
    pub(crate) top_k: usize,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) repetition_penalty: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) presence_penalty: f32,
    pub(crate) logit_bias: Vec<(Token, f32)>,
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<Token>,
    pub(crate) includes_stop: bool,
    /// `None` for no limit but the context's.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) min_tokens: usize,
    pub(crate) ignores_end: bool,
    /// How many alternatives are listed for each token; `None` for no probabilities at all.
    pub(crate) logprobs: Option<usize>,
    pub(crate) skips_special_tokens: bool,
    /// Requests share cached prefixes only if this is equal.
    pub(crate) cache_salt: String,
    /// The LoRA adapter, by its name.
    pub(crate) adapter: Option<String>,
    /// The most tokens of a guess; `None` for the model's limit.
    pub(crate) speculative_tokens: Option<usize>,
    /// The form of the output.
    pub(crate) structure: Option<Structure>,
}

impl Default for SamplingParameters {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            includes_stop: false,
            max_tokens: Some(DEFAULT_MAX_TOKENS),
            min_tokens: 0,
            ignores_end: false,
            logprobs: None,
            skips_special_tokens: true,
            cache_salt: String::new(),
            adapter: None,
            speculative_tokens: None,
            structure: None,
        }
    }
}

impl SamplingParameters {
    /// Reads the JSON of a request for a model with a vocabulary of this size.
    ///
    /// # Errors
    /// The text is not a JSON object, or has a parameter that is unknown, unsupported or out of range.
    pub(crate) fn parse(json: &str, vocabulary: usize) -> Result<Self> {
        let parsed: Map<String, Value> = serde_json::from_str(json).map_err(|error| {
            Error::invalid_arg(format!("input 'sampling_parameters': not a JSON object: {error}"))
        })?;
        Self::of(parsed, vocabulary)
    }

    /// Takes the parameters of a request without `sampling_parameters`, as Triton's vLLM backend does.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn of_request(parameters: &Parameters, vocabulary: usize) -> Result<Self> {
        let value = |value: &ParameterValue| match value {
            ParameterValue::Bool(value) => Value::from(*value),
            ParameterValue::Int(value) => Value::from(*value),
            ParameterValue::Double(value) => Value::from(*value),
            ParameterValue::String(value) => Value::from(&**value),
        };
        Self::of(parameters.iter().map(|(name, it)| (name.to_owned(), value(it))).collect(), vocabulary)
    }

    fn of(given: Map<String, Value>, vocabulary: usize) -> Result<Self> {
        let mut parameters = Self::default();
        let mut structure = Parts::default();
        for (name, value) in given {
            if value.is_null() || !structure.take(&name, &value)? {
                parameters.set(&Named { name: &name, value: &value }, vocabulary)?;
            }
        }
        parameters.structure = structure.finish()?;
        if parameters.min_tokens > parameters.max_tokens.unwrap_or(usize::MAX) {
            return Err(Error::invalid_arg(format!(
                "sampling parameter 'min_tokens' is {}, but 'max_tokens' is {}",
                parameters.min_tokens,
                parameters.max_tokens.unwrap_or_default()
            )));
        }
        if parameters.temperature < GREEDY {
            parameters.temperature = 0.0;
        }
        Ok(parameters)
    }

    fn set(&mut self, given: &Named<'_>, vocabulary: usize) -> Result<()> {
        if given.value.is_null() {
            // Parameters without a value keep their default, except for the one that then has no limit.
            if given.name == "max_tokens" {
                self.max_tokens = None;
            }
            return Ok(());
        }
        match given.name {
            "temperature" => self.temperature = given.number(0.0..=f32::MAX, "0 or more")?,
            "top_p" => self.top_p = given.number(f32::MIN_POSITIVE..=1.0, "above 0 and at most 1")?,
            "top_k" => {
                self.top_k = usize::try_from(given.integer(-1..=i64::MAX, "-1, 0 or more")?).unwrap_or(0);
            }
            "min_p" => self.min_p = given.number(0.0..=1.0, "between 0 and 1")?,
            "repetition_penalty" => {
                self.repetition_penalty = given.number(f32::MIN_POSITIVE..=f32::MAX, "above 0")?;
            }
            "frequency_penalty" => self.frequency_penalty = given.number(-2.0..=2.0, "between -2 and 2")?,
            "presence_penalty" => self.presence_penalty = given.number(-2.0..=2.0, "between -2 and 2")?,
            "logit_bias" => self.logit_bias = given.biases(vocabulary)?,
            "seed" => self.seed = Some(given.integer(i64::MIN..=i64::MAX, "an integer")?.cast_unsigned()),
            "stop" => self.stop = given.stops()?,
            "stop_token_ids" => self.stop_tokens = given.tokens(vocabulary)?,
            "include_stop_str_in_output" => self.includes_stop = given.truth()?,
            "max_tokens" => self.max_tokens = Some(given.count(1)?),
            "min_tokens" => self.min_tokens = given.count(0)?,
            "ignore_eos" => self.ignores_end = given.truth()?,
            "logprobs" => {
                let count = given.count(0)?;
                if count > MAX_LOGPROBS {
                    return Err(given.wrong(&format!("at most {MAX_LOGPROBS}")));
                }
                self.logprobs = Some(count);
            }
            "skip_special_tokens" => self.skips_special_tokens = given.truth()?,
            "lora_name" => self.adapter = Some(given.text()?.to_owned()),
            "speculative_tokens" => self.speculative_tokens = Some(given.count(0)?),
            "cache_salt" => self.cache_salt = given.text()?.to_owned(),
            // Triton's faces and clients send these with the others; they do not concern sampling.
            "spaces_between_special_tokens" | "detokenize" | "output_kind" => {}
            _ => return given.refuse_unless_neutral(),
        }
        Ok(())
    }
}

/// A parameter of a request, as JSON.
struct Named<'a> {
    name: &'a str,
    value: &'a Value,
}

impl Named<'_> {
    fn wrong(&self, expected: &str) -> Error {
        let mut value = self.value.to_string();
        if value.len() > 60 {
            value = value.chars().take(60).chain(['…']).collect();
        }
        Error::invalid_arg(format!("sampling parameter '{}' is {value}, but must be {expected}", self.name))
    }

    fn double(&self) -> Option<f64> {
        match self.value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    fn number(&self, range: std::ops::RangeInclusive<f32>, expected: &str) -> Result<f32> {
        #[expect(clippy::cast_possible_truncation, reason = "sampling uses single precision")]
        let number = self.double().map(|number| number as f32);
        number.filter(|number| range.contains(number)).ok_or_else(|| self.wrong(expected))
    }

    fn integer(&self, range: std::ops::RangeInclusive<i64>, expected: &str) -> Result<i64> {
        let integer = match self.value {
            Value::Number(number) => number.as_i64().or_else(|| number.as_u64().map(u64::cast_signed)),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        integer.filter(|integer| range.contains(integer)).ok_or_else(|| self.wrong(expected))
    }

    fn count(&self, least: i64) -> Result<usize> {
        let count = self.integer(least..=i64::MAX, &format!("{least} or more"))?;
        usize::try_from(count).map_err(|_| self.wrong("smaller"))
    }

    fn truth(&self) -> Result<bool> {
        match self.value {
            Value::Bool(value) => Ok(*value),
            Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Value::Number(number) if number.as_i64() == Some(0) => Ok(false),
            Value::Number(number) if number.as_i64() == Some(1) => Ok(true),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn text(&self) -> Result<&str> {
        self.value.as_str().ok_or_else(|| self.wrong("text"))
    }

    fn stops(&self) -> Result<Vec<String>> {
        let expected = || {
            self.wrong(&format!(
                "text, or at most {MAX_STOPS} texts, each of at most {MAX_STOP_LENGTH} bytes"
            ))
        };
        let stops: Vec<String> = match self.value {
            Value::String(stop) => vec![stop.clone()],
            Value::Array(stops) => {
                let stops = stops.iter().map(|stop| stop.as_str().map(str::to_owned));
                stops.collect::<Option<_>>().ok_or_else(expected)?
            }
            _ => return Err(expected()),
        };
        if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.len() > MAX_STOP_LENGTH) {
            return Err(expected());
        }
        Ok(stops)
    }

    fn token(&self, number: Option<i64>, vocabulary: usize) -> Result<Token> {
        let token = number.filter(|number| usize::try_from(*number).is_ok_and(|number| number < vocabulary));
        token
            .and_then(|token| Token::try_from(token).ok())
            .ok_or_else(|| self.wrong(&format!("made of tokens from 0 to {}", vocabulary.saturating_sub(1))))
    }

    fn tokens(&self, vocabulary: usize) -> Result<Vec<Token>> {
        let tokens = self.value.as_array().ok_or_else(|| self.wrong("a list of tokens"))?;
        if tokens.len() > MAX_STOPS {
            return Err(self.wrong(&format!("a list of at most {MAX_STOPS} tokens")));
        }
        tokens.iter().map(|token| self.token(token.as_i64(), vocabulary)).collect()
    }

    fn biases(&self, vocabulary: usize) -> Result<Vec<(Token, f32)>> {
        let biases = self.value.as_object().ok_or_else(|| self.wrong("an object of tokens and numbers"))?;
        let bias = |(token, bias): (&String, &Value)| {
            let token = self.token(token.parse().ok(), vocabulary)?;
            let bias = Named { name: self.name, value: bias }
                .number(-100.0..=100.0, "made of numbers from -100 to 100")?;
            Ok((token, bias))
        };
        biases.iter().map(bias).collect()
    }

    /// Accepts the values with which a parameter makes no difference.
    fn refuse_unless_neutral(&self) -> Result<()> {
        let is_neutral = match self.name {
            "n" | "best_of" => self.integer(1..=1, "1").is_ok(),
            "use_beam_search" | "early_stopping" => self.truth().is_ok_and(|value| !value),
            "length_penalty" => self.number(1.0..=1.0, "1").is_ok(),
            "bad_words" => self.value.as_array().is_some_and(Vec::is_empty),
            "prompt_logprobs"
            | "allowed_token_ids"
            | "truncate_prompt_tokens"
            | "logits_processors"
            | "extra_args" => false,
            _ => return Err(Error::invalid_arg(format!("unknown sampling parameter '{}'", self.name))),
        };
        if is_neutral {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "backend 'llamacpp' does not support sampling parameter '{}' with the value {}",
            self.name, self.value
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: usize = 100;

    fn parse(json: &str) -> Result<SamplingParameters> {
        SamplingParameters::parse(json, VOCABULARY)
    }

    #[test]
    fn parameters_have_the_names_and_defaults_of_vllm() {
        let default = SamplingParameters::default();
        for (json, expected) in [
            ("{}", default.clone()),
            (r#"{"n": 1, "temperature": null, "best_of": "1", "bad_words": []}"#, default.clone()),
            (r#"{"max_tokens": null}"#, SamplingParameters { max_tokens: None, ..default.clone() }),
            (
                r#"{"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": -1, "max_tokens": 7}"#,
                SamplingParameters {
                    temperature: 0.5,
                    top_p: 0.9,
                    top_k: 3,
                    min_p: 0.1,
                    seed: Some(u64::MAX),
                    max_tokens: Some(7),
                    ..default.clone()
                },
            ),
            (
                r#"{"temperature": "0.000001", "top_k": "-1", "max_tokens": "3", "ignore_eos": "True"}"#,
                SamplingParameters {
                    temperature: 0.0,
                    max_tokens: Some(3),
                    ignores_end: true,
                    ..default.clone()
                },
            ),
            (
                r#"{"stop": "x", "stop_token_ids": [4, 99], "include_stop_str_in_output": true, "min_tokens": 2}"#,
                SamplingParameters {
                    stop: vec!["x".to_owned()],
                    stop_tokens: vec![4, 99],
                    includes_stop: true,
                    min_tokens: 2,
                    ..default.clone()
                },
            ),
            (
                r#"{"repetition_penalty": 1.1, "frequency_penalty": -2, "presence_penalty": 2, "logit_bias": {"7": -100}}"#,
                SamplingParameters {
                    repetition_penalty: 1.1,
                    frequency_penalty: -2.0,
                    presence_penalty: 2.0,
                    logit_bias: vec![(7, -100.0)],
                    ..default.clone()
                },
            ),
            (
                r#"{"logprobs": 2, "skip_special_tokens": false, "stop": ["a", "b"], "cache_salt": "s",
                    "lora_name": "l", "speculative_tokens": 0}"#,
                SamplingParameters {
                    logprobs: Some(2),
                    skips_special_tokens: false,
                    stop: vec!["a".to_owned(), "b".to_owned()],
                    cache_salt: "s".to_owned(),
                    adapter: Some("l".to_owned()),
                    speculative_tokens: Some(0),
                    ..default.clone()
                },
            ),
        ] {
            assert_eq!(parse(json).unwrap(), expected, "{json}");
        }
    }

    #[test]
    fn wrong_parameters_are_refused_by_name() {
        for (json, expected) in [
            ("[]", "input 'sampling_parameters': not a JSON object"),
            (r#"{"temperature": -1}"#, "'temperature' is -1, but must be 0 or more"),
            (r#"{"temperature": "hot"}"#, r#"'temperature' is "hot", but must be"#),
            (r#"{"top_p": 0}"#, "'top_p' is 0, but must be above 0 and at most 1"),
            (r#"{"top_p": 1.5}"#, "'top_p' is 1.5"),
            (r#"{"top_k": -2}"#, "'top_k' is -2"),
            (r#"{"min_p": 2}"#, "'min_p' is 2"),
            (r#"{"repetition_penalty": 0}"#, "'repetition_penalty' is 0"),
            (r#"{"frequency_penalty": 2.1}"#, "'frequency_penalty' is 2.1"),
            (r#"{"max_tokens": 0}"#, "'max_tokens' is 0, but must be 1 or more"),
            (r#"{"max_tokens": 1.5}"#, "'max_tokens' is 1.5"),
            (r#"{"speculative_tokens": -1}"#, "'speculative_tokens' is -1, but must be 0 or more"),
            (r#"{"min_tokens": 20}"#, "'min_tokens' is 20, but 'max_tokens' is 16"),
            (r#"{"logprobs": 21}"#, "'logprobs' is 21, but must be at most 20"),
            (r#"{"logit_bias": {"100": 1}}"#, "must be made of tokens from 0 to 99"),
            (r#"{"logit_bias": {"x": 1}}"#, "must be made of tokens from 0 to 99"),
            (r#"{"logit_bias": {"1": 101}}"#, "must be made of numbers from -100 to 100"),
            (r#"{"logit_bias": [1]}"#, "must be an object of tokens and numbers"),
            (r#"{"stop_token_ids": [-1]}"#, "must be made of tokens from 0 to 99"),
            (r#"{"stop": [1]}"#, "'stop' is [1], but must be text"),
            (r#"{"ignore_eos": "maybe"}"#, "must be true or false"),
            (r#"{"n": 2}"#, "does not support sampling parameter 'n' with the value 2"),
            (r#"{"structured_outputs": "[]"}"#, "'structured_outputs' must be a JSON object"),
            (r#"{"guided_regex": "a", "guided_choice": ["a"]}"#, "but only one may be set"),
            (r#"{"use_beam_search": true}"#, "does not support sampling parameter 'use_beam_search'"),
            (r#"{"warmth": 1}"#, "unknown sampling parameter 'warmth'"),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.message().contains(expected), "{json}: {error}");
        }
        let many = format!(r#"{{"stop": [{}]}}"#, vec!["\"a\""; MAX_STOPS + 1].join(","));
        assert!(parse(&many).unwrap_err().message().contains("at most 64 texts"));
    }

    #[test]
    fn request_parameters_are_taken_where_there_is_no_input() {
        let mut parameters = Parameters::default();
        parameters.set("max_tokens".to_owned(), ParameterValue::Int(3));
        parameters.set("temperature".to_owned(), ParameterValue::Double(0.0));
        parameters.set("stop".to_owned(), ParameterValue::String("x".into()));
        let found = SamplingParameters::of_request(&parameters, VOCABULARY).unwrap();
        let expected = SamplingParameters {
            max_tokens: Some(3),
            temperature: 0.0,
            stop: vec!["x".to_owned()],
            ..SamplingParameters::default()
        };
        assert_eq!(found, expected);
    }
}
