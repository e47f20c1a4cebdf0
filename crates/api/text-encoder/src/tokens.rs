//! Texts as numbers of tokens, by `tokenizer.json`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use tokenizers::utils::truncation::{
    TruncationDirection, TruncationParams, TruncationStrategy, truncate_encodings,
};
use tokenizers::{Encoding, PaddingDirection, PostProcessor, Tokenizer};

use crate::files::{Folders, TOKENIZER, TOKENIZER_LIMIT};
use crate::flag;

/// The limit of tokens if neither a parameter nor a file sets one.
const DEFAULT_LIMIT: usize = 512;

/// The most bytes of a text for each token of the limit. Few tokens have more than ten.
const BYTES_PER_TOKEN: usize = 256;

/// Architectures whose positions begin behind the padding token's number, as RoBERTa's.
const SHIFTED: [&str; 6] = ["camembert", "data2vec-text", "longformer", "mpnet", "roberta", "xlm-roberta"];

/// The tokens of a text, or of a pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Their numbers.
    pub ids: Vec<u32>,
    /// The text of a pair that each belongs to, 0 or 1. Empty if all belong to the first.
    pub types: Vec<u32>,
}

/// The treatment of a text with too many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// Refuse the text.
    Refuse,
    /// Cut the text to this many tokens, or to the model's limit if that is lower.
    CutTo(usize),
}

/// Why a text has no tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The text has too many tokens.
    TooLong {
        /// Number of tokens in the text.
        tokens: usize,
        /// The most that it may have.
        limit: usize,
    },
    /// The text has too many bytes to be tokenized.
    TooManyBytes {
        /// Length of the text in bytes.
        bytes: usize,
        /// The most tokens that it may have.
        limit: usize,
    },
    /// The vocabulary has no such token.
    UnknownToken(u32),
    /// The tokenizer failed.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { tokens, limit } => {
                write!(f, "has {tokens} tokens, but the model takes {limit} at most")
            }
            Self::TooManyBytes { bytes, limit } => {
                write!(f, "has {bytes} bytes, but the model takes {limit} tokens at most")
            }
            Self::UnknownToken(token) => {
                write!(f, "has the token {token}, which the model's vocabulary lacks")
            }
            Self::Failed(reason) => write!(f, "cannot be tokenized: {reason}"),
        }
    }
}

/// Makes tokens of texts.
pub struct Encoder {
    tokenizer: Tokenizer,
    limit: usize,
    /// The token that fills shorter rows of a batch.
    pad: u32,
    pads_left: bool,
    cuts_left: bool,
    lowercases: bool,
    truncates: bool,
    tells_types: bool,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("limit", &self.limit).field("pad", &self.pad).finish_non_exhaustive()
    }
}

/// The part of `tokenizer_config.json` that matters here.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    pad_token: Option<SpecialToken>,
    padding_side: Option<Side>,
    truncation_side: Option<Side>,
    /// A huge number for no limit.
    model_max_length: Option<f64>,
    model_input_names: Option<Vec<String>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Side {
    Left,
    Right,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Described { content: String },
}

/// The part of `sentence_bert_config.json` that matters here.
#[derive(Default, Deserialize)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
}

/// The part of `config.json` that matters here.
#[derive(Default, Deserialize)]
struct ModelConfig {
    max_position_embeddings: Option<usize>,
    model_type: Option<String>,
    pad_token_id: Option<u32>,
}

impl Encoder {
    pub(crate) fn read<'p>(
        folders: &Folders,
        parameter: &dyn Fn(&str) -> Option<&'p str>,
    ) -> Result<Self, String> {
        let Some((path, contents)) = folders.find(TOKENIZER, TOKENIZER_LIMIT)? else {
            return Err(format!("{TOKENIZER} is missing"));
        };
        let parsed = caught(|| Tokenizer::from_bytes(&contents).map_err(|error| error.to_string()));
        let mut tokenizer = parsed.map_err(|error| format!("{}: {error}", path.display()))?;
        drop(contents);
        let config: TokenizerConfig = folders.settings("tokenizer_config.json")?;
        let sentence: SentenceConfig = folders.settings("sentence_bert_config.json")?;
        let model: ModelConfig = folders.settings("config.json")?;
        let limit = match parameter("context_length") {
            Some(text) => text.trim().parse().ok().filter(|limit| *limit > 0).ok_or_else(|| {
                format!("context_length: must be a positive number of tokens, not '{text}'")
            })?,
            None => {
                limit(&sentence, &config, &model, tokenizer.get_truncation().map(|found| found.max_length))
            }
        };
        let added = |is_pair| tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(is_pair));
        let most_added = added(false).max(added(true));
        if limit <= most_added {
            return Err(format!(
                "the limit of {limit} tokens leaves none for a text, because {} adds {most_added}",
                path.display()
            ));
        }
        let named = config.pad_token.map(|token| match token {
            SpecialToken::Text(text) | SpecialToken::Described { content: text } => text,
        });
        let padding = tokenizer.get_padding();
        let pad = named.and_then(|token| tokenizer.token_to_id(&token)).or(padding.map(|found| found.pad_id));
        let pad = pad.or(model.pad_token_id).unwrap_or(0);
        let is_left =
            |padding: &tokenizers::PaddingParams| matches!(padding.direction, PaddingDirection::Left);
        let pads_left = config.padding_side.map_or(padding.is_some_and(is_left), |side| side == Side::Left);
        let cuts_left = config.truncation_side == Some(Side::Left);
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        Ok(Self {
            tokenizer,
            limit,
            pad,
            pads_left,
            cuts_left,
            lowercases: sentence.do_lower_case.unwrap_or(false),
            truncates: flag("truncate", parameter)?.unwrap_or(false),
            tells_types: config
                .model_input_names
                .is_none_or(|names| names.iter().any(|name| name == "token_type_ids")),
        })
    }

    /// The most tokens of a text, special ones included.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Lowers the limit to what a model with inputs of a fixed length takes.
    pub fn lower_limit(&mut self, most: usize) {
        self.limit = self.limit.min(most);
    }

    /// The token that fills shorter rows of a batch.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// Whether the texts of a batch end in the same column, rather than begin there.
    pub fn pads_left(&self) -> bool {
        self.pads_left
    }

    /// The treatment of texts with too many tokens by default.
    pub fn truncation(&self) -> Truncation {
        if self.truncates { Truncation::CutTo(usize::MAX) } else { Truncation::Refuse }
    }

    /// The tokens of a text or a pair of texts, with special ones. Takes about a second for a megabyte.
    ///
    /// # Errors
    /// The text has too many tokens, or the tokenizer fails.
    pub fn encode(&self, text: &str, pair: Option<&str>, truncation: Truncation) -> Result<Tokens, Refusal> {
        guarded(|| self.encode_unguarded(text, pair, truncation))
    }

    /// The tokens of a text of any length, with special ones if `adds_special`. Takes about a second for a megabyte.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn tokenize(&self, text: &str, adds_special: bool) -> Result<Vec<u32>, Refusal> {
        let lower = self.lowercases.then(|| text.to_lowercase());
        let text = lower.as_deref().unwrap_or(text);
        guarded(|| Ok(self.tokenizer.encode_fast(text, adds_special).map_err(failed)?.get_ids().to_vec()))
    }

    /// The vocabulary's texts of tokens.
    ///
    /// # Errors
    /// The vocabulary lacks one.
    pub fn texts(&self, ids: &[u32]) -> Result<Vec<String>, Refusal> {
        ids.iter().map(|id| self.tokenizer.id_to_token(*id).ok_or(Refusal::UnknownToken(*id))).collect()
    }

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    /// The vocabulary lacks one, or the tokenizer fails.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, Refusal> {
        self.check_known(ids)?;
        guarded(|| self.tokenizer.decode(ids, false).map_err(failed))
    }

    /// Checks tokens that a client sent instead of a text.
    ///
    /// # Errors
    /// There are too many, or the vocabulary lacks one.
    pub fn given(&self, ids: &[u32], truncation: Truncation) -> Result<Tokens, Refusal> {
        let most = self.most(truncation);
        if ids.len() > most && truncation == Truncation::Refuse {
            return Err(Refusal::TooLong { tokens: ids.len(), limit: most });
        }
        self.check_known(ids)?;
        let mut ids = ids.to_vec();
        ids.truncate(most);
        Ok(Tokens { ids, types: Vec::new() })
    }

    /// How many tokens a prompt takes in front of a text, with the special ones before it.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn prompt_length(&self, prompt: &str) -> Result<usize, Refusal> {
        if prompt.is_empty() {
            return Ok(0);
        }
        let count = |special| {
            let encoded = self.tokenizer.encode_fast(prompt, special).map_err(failed)?;
            let trailing = encoded.get_special_tokens_mask().iter().rev().take_while(|mask| **mask == 1);
            Ok(encoded.len() - trailing.count())
        };
        guarded(|| count(true))
    }

    fn check_known(&self, ids: &[u32]) -> Result<(), Refusal> {
        let unknown = ids.iter().find(|id| self.tokenizer.id_to_token(**id).is_none());
        unknown.map_or(Ok(()), |unknown| Err(Refusal::UnknownToken(*unknown)))
    }

    fn most(&self, truncation: Truncation) -> usize {
        match truncation {
            Truncation::Refuse => self.limit,
            Truncation::CutTo(most) => most.min(self.limit),
        }
    }

    fn encode_unguarded(
        &self,
        text: &str,
        pair: Option<&str>,
        truncation: Truncation,
    ) -> Result<Tokens, Refusal> {
        let most = self.most(truncation);
        let text = self.alone(text, truncation)?;
        let pair = pair.map(|pair| self.alone(pair, truncation)).transpose()?;
        let post = self.tokenizer.get_post_processor();
        let added = post.map_or(0, |post| post.added_tokens(pair.is_some()));
        let tokens = text.len() + pair.as_ref().map_or(0, Encoding::len) + added;
        let (text, pair) = if tokens <= most {
            (text, pair)
        } else if truncation == Truncation::Refuse {
            return Err(Refusal::TooLong { tokens, limit: most });
        } else {
            self.cut(text, pair, most.saturating_sub(added))?
        };
        let whole = self.tokenizer.post_process(text, pair, true).map_err(failed)?;
        let types = whole.get_type_ids();
        let is_plain = !self.tells_types || types.iter().all(|kind| *kind == 0);
        let types = if is_plain { Vec::new() } else { types.to_vec() };
        Ok(Tokens { ids: whole.get_ids().to_vec(), types })
    }

    /// The tokens of one text, without special ones.
    fn alone(&self, text: &str, truncation: Truncation) -> Result<Encoding, Refusal> {
        let most = self.limit.saturating_mul(BYTES_PER_TOKEN);
        let text = match truncation {
            _ if text.len() <= most => text,
            Truncation::Refuse => {
                return Err(Refusal::TooManyBytes { bytes: text.len(), limit: self.limit });
            }
            Truncation::CutTo(_) if self.cuts_left => {
                text.get(text.ceil_char_boundary(text.len() - most)..).unwrap_or_default()
            }
            Truncation::CutTo(_) => text.get(..text.floor_char_boundary(most)).unwrap_or_default(),
        };
        let lower = self.lowercases.then(|| text.to_lowercase());
        self.tokenizer.encode_fast(lower.as_deref().unwrap_or(text), false).map_err(failed)
    }

    /// Cuts texts to this many tokens in all, the longer one first.
    fn cut(
        &self,
        text: Encoding,
        pair: Option<Encoding>,
        most: usize,
    ) -> Result<(Encoding, Option<Encoding>), Refusal> {
        let direction = if self.cuts_left { TruncationDirection::Left } else { TruncationDirection::Right };
        let strategy = TruncationStrategy::LongestFirst;
        let params = TruncationParams { direction, max_length: most, strategy, stride: 0 };
        let (mut text, mut pair) = truncate_encodings(text, pair, &params).map_err(failed)?;
        // What was cut off would be processed, too.
        text.take_overflowing();
        if let Some(pair) = &mut pair {
            pair.take_overflowing();
        }
        Ok((text, pair))
    }
}

/// The limit of tokens, from the first file that sets one.
fn limit(
    sentence: &SentenceConfig,
    config: &TokenizerConfig,
    model: &ModelConfig,
    truncation: Option<usize>,
) -> usize {
    let shift = match model.model_type.as_deref() {
        Some(kind) if SHIFTED.contains(&kind) => model.pad_token_id.map_or(2, |pad| pad as usize + 1),
        _ => 0,
    };
    let positions = model.max_position_embeddings.map(|most| most.saturating_sub(shift));
    let longest = config.model_max_length.filter(|most| (1.0..1e9).contains(most)).map(|most| most as usize);
    let by_files = [positions, longest].into_iter().flatten().min();
    let given = sentence.max_seq_length.or(by_files).or(truncation);
    given.filter(|most| *most > 0).unwrap_or(DEFAULT_LIMIT)
}

fn failed(error: impl fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

/// The error of a computation, or the message of its panic.
enum Panicked<E> {
    No(E),
    Yes(String),
}

impl fmt::Display for Panicked<String> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No(reason) | Self::Yes(reason) => f.write_str(reason),
        }
    }
}

/// Runs the library for a text.
fn guarded<T>(work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    caught(work).map_err(|error| match error {
        Panicked::No(refusal) => refusal,
        Panicked::Yes(reason) => Refusal::Failed(reason),
    })
}

/// Runs the library, which panics on some vocabularies that contradict themselves.
fn caught<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<T, Panicked<E>> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(Panicked::No),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(Panicked::Yes(format!("the tokenizer panicked: {}", message.unwrap_or("unknown reason"))))
        }
    }
}

#[cfg(test)]
mod tests;
