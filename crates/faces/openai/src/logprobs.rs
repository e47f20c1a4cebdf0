//! Probabilities of tokens: from vLLM's JSON to the two forms of OpenAI's interface.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Outcome};

/// A generated token, and the most probable tokens in its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprobs {
    /// The token.
    pub token: TokenLogprob,
    /// The alternatives, the most probable first. The token may be among them.
    pub top: Vec<TokenLogprob>,
}

/// A token and its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TokenLogprob {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    #[serde(skip)]
    rank: u64,
}

/// Reads vLLM's form: a list with an object for each token, which has the generated token first and its alternatives after it,
/// by their numbers. `None` if the model returned nothing.
///
/// # Errors
/// The text has another form.
pub(crate) fn parse(json: &[u8]) -> Outcome<Option<Vec<TokenLogprobs>>> {
    if matches!(json, b"" | b"null" | b"None") {
        return Ok(None);
    }
    let tokens: Vec<Candidates> = serde_json::from_slice(json).map_err(|error| {
        Failure::broken_model(format!("the model's output 'logprobs' is invalid: {error}"))
    })?;
    Ok(Some(tokens.into_iter().filter_map(|Candidates(all)| of_candidates(all)).collect()))
}

/// The token is the first one; its alternatives are ordered by their rank.
fn of_candidates(mut all: Vec<TokenLogprob>) -> Option<TokenLogprobs> {
    let token = all.first()?.clone();
    all.sort_by_key(|candidate| candidate.rank);
    Some(TokenLogprobs { token, top: all })
}

/// The candidates for a place, in the order of the text.
struct Candidates(Vec<TokenLogprob>);

impl<'de> Deserialize<'de> for Candidates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Candidate {
            logprob: f64,
            #[serde(default)]
            rank: Option<u64>,
            #[serde(default)]
            decoded_token: Option<String>,
        }
        struct CandidatesVisitor;
        impl<'de> Visitor<'de> for CandidatesVisitor {
            type Value = Candidates;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Candidates, A::Error> {
                let mut all = Vec::new();
                while let Some((id, candidate)) = map.next_entry::<String, Candidate>()? {
                    let Candidate { logprob, rank, decoded_token } = candidate;
                    let token = decoded_token.unwrap_or_else(|| format!("token_id:{id}"));
                    let bytes = token.as_bytes().to_vec();
                    all.push(TokenLogprob { token, logprob, bytes, rank: rank.unwrap_or(u64::MAX) });
                }
                Ok(Candidates(all))
            }
        }
        deserializer.deserialize_map(CandidatesVisitor)
    }
}

/// The form of chat completions.
#[derive(Serialize)]
pub(crate) struct ChatLogprobs<'a> {
    content: Vec<ChatToken<'a>>,
    refusal: (),
}

#[derive(Serialize)]
struct ChatToken<'a> {
    #[serde(flatten)]
    token: &'a TokenLogprob,
    top_logprobs: &'a [TokenLogprob],
}

impl<'a> ChatLogprobs<'a> {
    /// The tokens with at most `top` alternatives each.
    pub(crate) fn new(tokens: &'a [TokenLogprobs], top: usize) -> Self {
        let content = tokens.iter().map(|place| ChatToken {
            token: &place.token,
            top_logprobs: place.top.get(..top.min(place.top.len())).unwrap_or_default(),
        });
        Self { content: content.collect(), refusal: () }
    }
}

/// The form of completions.
#[derive(Serialize)]
pub(crate) struct CompletionLogprobs<'a> {
    text_offset: Vec<usize>,
    token_logprobs: Vec<f64>,
    tokens: Vec<&'a str>,
    top_logprobs: Vec<serde_json::Map<String, serde_json::Value>>,
}

impl<'a> CompletionLogprobs<'a> {
    /// The tokens of a text, the first of which begins at `offset` characters.
    pub(crate) fn new(tokens: &'a [TokenLogprobs], top: usize, mut offset: usize) -> Self {
        let mut form =
            Self { text_offset: vec![], token_logprobs: vec![], tokens: vec![], top_logprobs: vec![] };
        for place in tokens {
            form.text_offset.push(offset);
            form.token_logprobs.push(place.token.logprob);
            form.tokens.push(&place.token.token);
            let top = place.top.iter().take(top);
            form.top_logprobs.push(top.map(|one| (one.token.clone(), one.logprob.into())).collect());
            offset += place.token.token.chars().count();
        }
        form
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    const VLLM: &str = r#"[
        {"11": {"logprob": -1.5, "rank": 3, "decoded_token": " a"}, "7": {"logprob": -0.5, "rank": 1, "decoded_token": "é"},
         "2": {"logprob": -1.0, "rank": 2, "decoded_token": "b"}},
        {"5": {"logprob": -0.25, "rank": 1, "decoded_token": null}}
    ]"#;

    #[test]
    fn generated_token_comes_first_and_alternatives_by_rank() {
        let tokens = parse(VLLM.as_bytes()).unwrap().unwrap();
        let chat = to_value(ChatLogprobs::new(&tokens, 2)).unwrap();
        assert_eq!(
            chat["content"][0],
            json!({"token": " a", "logprob": -1.5, "bytes": [32, 97], "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [195, 169]}, {"token": "b", "logprob": -1.0, "bytes": [98]}]})
        );
        assert_eq!(chat["content"][1]["token"], "token_id:5");
        assert_eq!(to_value(ChatLogprobs::new(&tokens, 0)).unwrap()["content"][0]["top_logprobs"], json!([]));
        let completion = to_value(CompletionLogprobs::new(&tokens, 1, 4)).unwrap();
        assert_eq!(
            completion,
            json!({"text_offset": [4, 6], "token_logprobs": [-1.5, -0.25], "tokens": [" a", "token_id:5"],
                "top_logprobs": [{"é": -0.5}, {"token_id:5": -0.25}]})
        );
    }

    #[test]
    fn other_forms_are_a_fault_of_the_model() {
        for nothing in ["", "null", "None"] {
            assert_eq!(parse(nothing.as_bytes()).unwrap(), None);
        }
        assert_eq!(parse(b"[]").unwrap(), Some(vec![]));
        for invalid in ["{", "{}", "[1]", "[{\"1\": {}}]", "[{\"1\": {\"logprob\": \"x\"}}]"] {
            assert!(parse(invalid.as_bytes()).is_err(), "{invalid}");
        }
    }
}
