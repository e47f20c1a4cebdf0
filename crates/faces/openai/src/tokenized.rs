//! Models that take tokens, such as exports of sentence-transformers, with a tokenizer file in their folder.
//!
//! The face makes tokens of the texts, in batches that fit the model's inputs, and reads embeddings or scores from its
//! outputs, by the rules of the crate `text-encoder`. Which engine runs the model makes no difference.

mod inputs;
mod job;

use std::sync::Arc;

use nereid_core::backend_api::DataType;
use nereid_core::{Model, OutputSignature, Signature};
use nereid_text_encoder::{Encoder, Folders, TextModel, Truncation};

use crate::error::{Failure, Outcome};
use crate::fields::Fields;
use crate::rerank::SCORES;

pub(crate) use self::inputs::TokenInputs;
pub(crate) use self::job::{Item, Job, Kind};

/// Outputs with one vector for each text, then those with one for each token.
const VECTORS: [&str; 3] = ["sentence_embedding", "embedding", "embeddings"];
const TOKENS: [&str; 2] = ["last_hidden_state", "token_embeddings"];

/// A model of tokens, with its files.
#[derive(Debug)]
pub(crate) struct TokenModel {
    inputs: TokenInputs,
    outputs: TokenOutputs,
    text: TextModel,
}

/// The outputs of such a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenOutputs {
    embedding: Option<String>,
    score: Option<&'static str>,
}

/// Whether a model of tokens makes embeddings, and whether it scores pairs. Looks whether there is a tokenizer, and reads no file.
pub(crate) fn capabilities(model: &Model) -> (bool, bool) {
    match TokenOutputs::of(model) {
        Ok(Some(outputs)) if TokenInputs::of(model).is_some() && folders(model).have_tokenizer() => {
            (outputs.embedding.is_some(), outputs.score.is_some())
        }
        _ => (false, false),
    }
}

fn folders(model: &Model) -> Folders {
    Folders::new(model.directory(), model.version())
}

/// Reads what the client wants to happen to texts that are too long: `truncate_prompt_tokens` as in vLLM, or `truncate` as in Hugging
/// Face's Text Embeddings Inference.
///
/// # Errors
/// A field has an invalid value.
pub(crate) fn truncation(fields: &mut Fields<'_>, encoder: &Encoder) -> Outcome<Truncation> {
    const FIELD: &str = "truncate_prompt_tokens";
    let most: Option<i64> = fields.take(FIELD)?;
    let truncates: Option<bool> = fields.take("truncate")?;
    match (most, truncates) {
        (None, None) => Ok(encoder.truncation()),
        (None, Some(false)) => Ok(Truncation::Refuse),
        (None, Some(true)) | (Some(-1), _) => Ok(Truncation::CutTo(usize::MAX)),
        (Some(most), _) => match usize::try_from(most) {
            Ok(most) if most > 0 => Ok(Truncation::CutTo(most)),
            _ => Err(Failure::invalid_field(FIELD, format!("'{FIELD}' must be -1 or at least 1"))),
        },
    }
}

impl TokenModel {
    /// Reads the files of a model; `None` if it is not a model of tokens. Blocks.
    ///
    /// # Errors
    /// A file or a parameter of the configuration is invalid.
    pub(crate) fn read(model: &Model) -> Result<Option<Arc<Self>>, String> {
        let folders = folders(model);
        let Some(inputs) = TokenInputs::of(model).filter(|_| folders.have_tokenizer()) else {
            return Ok(None);
        };
        let Some(outputs) = TokenOutputs::of(model)? else { return Ok(None) };
        let parameters = &model.config().parameters;
        let parameter = |name: &str| parameters.get(name).map(|value| value.string_value.as_str());
        let mut text = TextModel::read(&folders, &parameter)?;
        if let Some(length) = inputs.length() {
            text.encoder.lower_limit(length);
        }
        Ok(Some(Arc::new(Self { inputs, outputs, text })))
    }

    /// The text processing of the model.
    pub(crate) fn text(&self) -> &TextModel {
        &self.text
    }

    /// Whether the model makes embeddings.
    pub(crate) fn embeds(&self) -> bool {
        self.outputs.embedding.is_some()
    }

    /// Whether the model scores pairs of texts.
    pub(crate) fn scores(&self) -> bool {
        self.outputs.score.is_some()
    }
}

impl TokenOutputs {
    /// The outputs of a model; `None` if it has none of these.
    ///
    /// # Errors
    /// The parameter `embedding_output` names an output that does not fit.
    fn of(model: &Model) -> Result<Option<Self>, String> {
        let parameters = &model.config().parameters;
        let chosen = parameters.get("embedding_output").map(|value| value.string_value.as_str());
        Self::find(model.signature(), chosen, parameters.contains_key("pooling"))
    }

    /// `chosen` is the configuration's choice. With `pools`, outputs that have to be pooled come first.
    fn find(signature: &Signature, chosen: Option<&str>, pools: bool) -> Result<Option<Self>, String> {
        let rank = |output: &OutputSignature| output.dims.len() + usize::from(signature.max_batch_size > 0);
        let is_float =
            |output: &&OutputSignature| matches!(output.data_type, DataType::Fp32 | DataType::Fp16);
        let embedding = |name: &str, ranks: &[usize]| {
            let output = signature.output(name).filter(is_float);
            output.filter(|output| ranks.contains(&rank(output))).map(|_| name.to_owned())
        };
        let embedding = match chosen {
            Some(name) => Some(embedding(name, &[2, 3]).ok_or_else(|| {
                format!("embedding_output: the model has no output '{name}' of FP32 or FP16 with a vector for each text or token")
            })?),
            None => {
                let pooled = || VECTORS.into_iter().find_map(|name| embedding(name, &[2]));
                let unpooled = || TOKENS.into_iter().chain(VECTORS).find_map(|name| embedding(name, &[3]));
                if pools { unpooled().or_else(pooled) } else { pooled().or_else(unpooled) }
            }
        };
        let is_score = |name: &&str| {
            let output = signature.output(name).filter(is_float);
            output.is_some_and(|output| {
                rank(output) == 1 || rank(output) == 2 && matches!(output.dims.last(), Some(-1 | 1 | 2))
            })
        };
        let score = SCORES.into_iter().find(is_score);
        Ok((embedding.is_some() || score.is_some()).then_some(Self { embedding, score }))
    }
}
