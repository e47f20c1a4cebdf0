//! Models that make one output of a whole text: a vector for each text, or a score for each pair of texts; several in one evaluation.

use std::sync::Arc;

use nereid_backend_api::{
    Batch, BytesElements, DataType, Error, Instance, ModelConfig, Request, Response, Result, Tensor,
};
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::{ModelDynamicBatching, ModelInput, ModelOutput};

use crate::contract::TEXT_INPUT;
use crate::engine::{Limits, Token, Vocabulary};

/// The output of a model for its texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A vector of this size.
    Vector(usize),
    /// A number, for a query with a document.
    Score,
}

impl Form {
    /// The names of the inputs.
    fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::Vector(_) => &[TEXT_INPUT],
            Self::Score => &["query", "document"],
        }
    }

    /// The name of the output.
    fn output(self) -> &'static str {
        match self {
            Self::Vector(_) => "embedding",
            Self::Score => "score",
        }
    }

    /// How many numbers the output has for each text or pair.
    fn size(self) -> usize {
        match self {
            Self::Vector(size) => size,
            Self::Score => 1,
        }
    }
}

/// Evaluates texts.
pub(crate) trait Embedder {
    fn limits(&self) -> Limits;

    /// The vectors of texts that fit into one batch.
    ///
    /// # Errors
    /// The texts were not evaluated.
    fn embed(&mut self, texts: &[&[Token]]) -> Result<Vec<Vec<f32>>, String>;
}

/// Adds the inputs and the output that a configuration lacks. A configuration without any gets batches of up to `max_batch_size` texts
/// or pairs.
pub(crate) fn complete(config: &mut ModelConfig, form: Form, max_batch_size: usize) {
    if config.input.is_empty() && config.output.is_empty() && config.max_batch_size == 0 {
        config.max_batch_size = i32::try_from(max_batch_size).unwrap_or(i32::MAX);
        if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
            config.scheduling_choice =
                Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
        }
    }
    if config.input.is_empty() {
        config.input.extend(form.inputs().iter().map(|name| ModelInput {
            name: (*name).to_owned(),
            data_type: i32::from(DataType::Bytes.number()),
            dims: vec![1],
            ..ModelInput::default()
        }));
    }
    if config.output.is_empty() {
        config.output.push(ModelOutput {
            name: form.output().to_owned(),
            data_type: i32::from(DataType::Fp32.number()),
            dims: vec![i64::try_from(form.size()).unwrap_or(-1)],
            ..ModelOutput::default()
        });
    }
}

/// Checks a configuration, as far as the server does not.
///
/// # Errors
/// `InvalidArg` for other tensors.
pub(crate) fn check(config: &ModelConfig, form: Form) -> Result<()> {
    let is_text = |name: &&str| {
        config.input.iter().any(|input| {
            input.name == **name
                && input.data_type == i32::from(DataType::Bytes.number())
                && input.dims == [1]
        })
    };
    let has_inputs = config.input.len() == form.inputs().len() && form.inputs().iter().all(is_text);
    let has_output = matches!(config.output.as_slice(), [output]
        if output.name == form.output()
            && output.data_type == i32::from(DataType::Fp32.number())
            && i64::try_from(form.size()).is_ok_and(|size| output.dims == [size]));
    if has_inputs && has_output {
        return Ok(());
    }
    let inputs: Vec<_> =
        form.inputs().iter().map(|name| format!("the input '{name}' (TYPE_STRING, dims [ 1 ])")).collect();
    let what = match form {
        Form::Vector(_) => "an embedding model",
        Form::Score => "a model that scores pairs of texts",
    };
    Err(Error::invalid_arg(format!(
        "{what} needs {} and the output '{}' (TYPE_FP32, dims [ {} ]), and no others",
        inputs.join(", "),
        form.output(),
        form.size()
    )))
}

/// An instance of an embedding model.
pub(crate) struct EmbeddingInstance<E> {
    pub(crate) embedder: E,
    pub(crate) vocabulary: Arc<dyn Vocabulary>,
    pub(crate) form: Form,
    /// Whether vectors get the length 1, and the only number of a class becomes one between 0 and 1.
    pub(crate) normalizes: bool,
    /// Whether tensors have a batch dimension.
    pub(crate) is_batched: bool,
    /// Longer texts have more tokens than the context.
    pub(crate) longest_text: usize,
}

impl<E: Embedder> EmbeddingInstance<E> {
    /// The texts or pairs of a request as tokens.
    fn texts(&self, request: &Request) -> Result<Vec<Vec<Token>>> {
        let contents = |name: &str| request.input(name)?.contiguous();
        match self.form.inputs() {
            [query, document] => {
                let (queries, documents) = (contents(query)?, contents(document)?);
                let (mut queries, mut documents) =
                    (BytesElements::new(&queries), BytesElements::new(&documents));
                let mut pairs = Vec::new();
                loop {
                    match (queries.next(), documents.next()) {
                        (None, None) => return Ok(pairs),
                        (Some(query), Some(document)) => pairs.push(self.pair(query?, document?)?),
                        _ => {
                            return Err(Error::invalid_arg(
                                "the request has not as many queries as documents",
                            ));
                        }
                    }
                }
            }
            _ => {
                let contents = contents(TEXT_INPUT)?;
                BytesElements::new(&contents).map(|text| self.text(text?)).collect()
            }
        }
    }

    fn text(&self, text: &[u8]) -> Result<Vec<Token>> {
        let text = self.checked(TEXT_INPUT, text)?;
        let tokens = self.vocabulary.tokenize(text, true);
        self.fitting(&format!("input '{TEXT_INPUT}'"), tokens)
    }

    fn pair(&self, query: &[u8], document: &[u8]) -> Result<Vec<Token>> {
        let (query, document) = (self.checked("query", query)?, self.checked("document", document)?);
        self.fitting("the pair of query and document", self.vocabulary.pair(query, document))
    }

    /// A text that is not longer than any that fits.
    fn checked<'t>(&self, input: &str, text: &'t [u8]) -> Result<&'t str> {
        let text = std::str::from_utf8(text)
            .map_err(|_| Error::invalid_arg(format!("input '{input}' is not valid UTF-8")))?;
        if text.len() > self.longest_text {
            let context = self.embedder.limits().context;
            return Err(Error::invalid_arg(format!(
                "input '{input}' has {} bytes, but the context holds {context} tokens",
                text.len()
            )));
        }
        Ok(text)
    }

    /// Tokens that fit into the context.
    fn fitting(&self, what: &str, tokens: std::result::Result<Vec<Token>, String>) -> Result<Vec<Token>> {
        let context = self.embedder.limits().context;
        let tokens = tokens.map_err(|reason| Error::invalid_arg(format!("{what} is refused: {reason}")))?;
        match tokens.len() {
            0 => Err(Error::invalid_arg(format!("{what} has no tokens"))),
            count if count > context => {
                Err(Error::invalid_arg(format!("{what} has {count} tokens, but the context holds {context}")))
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
        match self.form {
            Form::Vector(_) if self.normalizes => found.iter_mut().for_each(|vector| normalize(vector)),
            Form::Vector(_) => {}
            Form::Score => found.iter_mut().for_each(|classes| score(classes, self.normalizes)),
        }
        Ok(found)
    }

    fn response(&self, vectors: &[Vec<f32>]) -> Response {
        let size = vectors.first().map_or(0, Vec::len);
        let contents: Vec<u8> = vectors.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        let dim = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let shape = if self.is_batched { vec![dim(vectors.len()), dim(size)] } else { vec![dim(size)] };
        Response::new(vec![Tensor::new(self.form.output(), DataType::Fp32, shape.as_slice(), contents)])
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

/// Leaves the number of the first class, which is the score. The library makes probabilities of several classes, but not of one.
fn score(classes: &mut Vec<f32>, normalizes: bool) {
    if let ([only], true) = (classes.as_mut_slice(), normalizes) {
        #[expect(clippy::cast_possible_truncation, reason = "scores have single precision")]
        let probability = (1.0 / (1.0 + (-f64::from(*only)).exp())) as f32;
        *only = probability;
    }
    classes.truncate(1);
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
