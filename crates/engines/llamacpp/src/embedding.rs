//! Embedding models: a vector for each text, several texts in one evaluation.

use std::sync::Arc;

use nereid_backend_api::{
    Batch, BytesElements, DataType, Error, Instance, ModelConfig, Request, Response, Result, Tensor,
};
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::{ModelDynamicBatching, ModelInput, ModelOutput};

use crate::contract::TEXT_INPUT;
use crate::engine::{Limits, Token, Vocabulary};

const EMBEDDING: &str = "embedding";

/// Evaluates texts.
pub(crate) trait Embedder {
    fn limits(&self) -> Limits;

    /// The vectors of texts that fit into one batch.
    ///
    /// # Errors
    /// The texts were not evaluated.
    fn embed(&mut self, texts: &[&[Token]]) -> Result<Vec<Vec<f32>>, String>;
}

/// Adds the input and the output that a configuration lacks; `size` is the length of the vectors. A configuration without any gets
/// batches of up to `max_batch_size` texts.
pub(crate) fn complete(config: &mut ModelConfig, size: usize, max_batch_size: usize) {
    if config.input.is_empty() && config.output.is_empty() && config.max_batch_size == 0 {
        config.max_batch_size = i32::try_from(max_batch_size).unwrap_or(i32::MAX);
        if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
            config.scheduling_choice =
                Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
        }
    }
    if config.input.is_empty() {
        config.input.push(ModelInput {
            name: TEXT_INPUT.to_owned(),
            data_type: i32::from(DataType::Bytes.number()),
            dims: vec![1],
            ..ModelInput::default()
        });
    }
    if config.output.is_empty() {
        config.output.push(ModelOutput {
            name: EMBEDDING.to_owned(),
            data_type: i32::from(DataType::Fp32.number()),
            dims: vec![i64::try_from(size).unwrap_or(-1)],
            ..ModelOutput::default()
        });
    }
}

/// Checks a configuration, as far as the server does not.
///
/// # Errors
/// `InvalidArg` for other tensors.
pub(crate) fn check(config: &ModelConfig, size: usize) -> Result<()> {
    let has_input = matches!(config.input.as_slice(), [input]
        if input.name == TEXT_INPUT && input.data_type == i32::from(DataType::Bytes.number()) && input.dims == [1]);
    let has_output = matches!(config.output.as_slice(), [output]
        if output.name == EMBEDDING
            && output.data_type == i32::from(DataType::Fp32.number())
            && i64::try_from(size).is_ok_and(|size| output.dims == [size]));
    if has_input && has_output {
        return Ok(());
    }
    Err(Error::invalid_arg(format!(
        "an embedding model needs the input '{TEXT_INPUT}' (TYPE_STRING, dims [ 1 ]) and the output '{EMBEDDING}' (TYPE_FP32, dims \
         [ {size} ]), and no others"
    )))
}

/// An instance of an embedding model.
pub(crate) struct EmbeddingInstance<E> {
    pub(crate) embedder: E,
    pub(crate) vocabulary: Arc<dyn Vocabulary>,
    /// Whether vectors get the length 1.
    pub(crate) normalizes: bool,
    /// Whether tensors have a batch dimension.
    pub(crate) is_batched: bool,
    /// Longer texts have more tokens than the context.
    pub(crate) longest_text: usize,
}

impl<E: Embedder> EmbeddingInstance<E> {
    /// The texts of a request as tokens.
    fn texts(&self, request: &Request) -> Result<Vec<Vec<Token>>> {
        let contents = request.input(TEXT_INPUT)?.contiguous()?;
        BytesElements::new(&contents).map(|text| self.tokens(text?)).collect()
    }

    fn tokens(&self, text: &[u8]) -> Result<Vec<Token>> {
        let context = self.embedder.limits().context;
        let wrong = |what: String| Error::invalid_arg(format!("input '{TEXT_INPUT}' {what}"));
        let text = std::str::from_utf8(text).map_err(|_| wrong("is not valid UTF-8".to_owned()))?;
        if text.len() > self.longest_text {
            return Err(wrong(format!("has {} bytes, but the context holds {context} tokens", text.len())));
        }
        let tokens =
            self.vocabulary.tokenize(text, true).map_err(|reason| wrong(format!("is refused: {reason}")))?;
        match tokens.len() {
            0 => Err(wrong("has no tokens".to_owned())),
            count if count > context => {
                Err(wrong(format!("has {count} tokens, but the context holds {context}")))
            }
            _ => Ok(tokens),
        }
    }

    /// The vectors of texts, evaluated in as few batches as their order allows.
    fn embed(&mut self, texts: &[&[Token]]) -> Result<Vec<Vec<f32>>> {
        let limits = self.embedder.limits();
        let mut found = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let mut tokens = 0;
            let mut fits = |text: &[Token]| {
                tokens += text.len();
                tokens <= limits.batch
            };
            let count = rest.iter().take(limits.sequences).take_while(|text| fits(text)).count().max(1);
            let (batch, later) = rest.split_at(count);
            let vectors = self.embedder.embed(batch);
            found.extend(vectors.map_err(|reason| Error::internal(format!("llama.cpp failed: {reason}")))?);
            rest = later;
        }
        if self.normalizes {
            found.iter_mut().for_each(|vector| normalize(vector));
        }
        Ok(found)
    }

    fn response(&self, vectors: &[Vec<f32>]) -> Response {
        let size = vectors.first().map_or(0, Vec::len);
        let contents: Vec<u8> = vectors.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        let dim = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let shape = if self.is_batched { vec![dim(vectors.len()), dim(size)] } else { vec![dim(size)] };
        Response::new(vec![Tensor::new(EMBEDDING, DataType::Fp32, shape.as_slice(), contents)])
    }
}

/// Gives a vector the length 1. The vector of zeros stays as it is.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        #[expect(clippy::cast_possible_truncation, reason = "embeddings have single precision")]
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

impl<E: Embedder + Send> Instance for EmbeddingInstance<E> {
    fn execute(&mut self, mut batch: Batch) {
        let texts: Vec<_> = batch.requests().iter().map(|request| self.texts(request)).collect();
        batch.inputs_ready();
        let all: Vec<&[Token]> = texts.iter().flatten().flatten().map(Vec::as_slice).collect();
        let vectors = match self.embed(&all) {
            Ok(vectors) => vectors,
            Err(error) => return batch.fail(error),
        };
        batch.outputs_ready();
        let mut rest = vectors.as_slice();
        let outcomes: Vec<_> = batch
            .requests()
            .iter()
            .zip(texts)
            .map(|(request, texts)| {
                let (own, later) = rest.split_at_checked(texts?.len()).unwrap_or((rest, &[]));
                rest = later;
                let mut response = self.response(own);
                response.outputs.retain(|output| request.wants(&output.name));
                Ok(response)
            })
            .collect();
        batch.complete(outcomes);
    }
}

#[cfg(test)]
mod tests;
