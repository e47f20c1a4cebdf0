//! How a model makes embeddings: by the request of Triton's vLLM backend, or from texts to a tensor of numbers.

use nereid_core::backend_api::{DataType, InferRequest, Response, Tensor};
use nereid_core::{InputSignature, Model, OutputSignature};
use nereid_text_encoder::{Mode, Pooling, normalize};

use crate::error::{Failure, Outcome};
use crate::tensors;

/// The names of outputs that hold an embedding, whatever the configuration says.
const OUTPUTS: [&str; 3] = ["embedding", "embeddings", "sentence_embedding"];

/// The contract of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EmbeddingContract {
    /// A JSON text in `embedding_request`, and a list of numbers as JSON in `text_output`.
    Vllm,
    /// Texts in, numbers out.
    Tensors(TensorContract),
}

/// The tensors of a model, and how they become embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorContract {
    input: String,
    output: String,
    /// How many texts a request may have.
    batch: usize,
    /// How the vectors of a text's tokens become one; `None` if the output is one vector for each text.
    pooling: Option<Pooling>,
    normalize: bool,
    /// Whether the beginning of a vector is an embedding, too.
    is_nested: bool,
}

impl EmbeddingContract {
    /// The contract of a model; `None` if the model makes no embeddings.
    ///
    /// # Errors
    /// A parameter of the configuration has an unknown value.
    pub(crate) fn of(model: &Model) -> Result<Option<Self>, String> {
        let signature = model.signature();
        let is_bytes = |input: &&InputSignature| input.data_type == DataType::Bytes;
        if signature.input("embedding_request").filter(is_bytes).is_some() {
            return Ok(signature.output("text_output").is_some().then_some(Self::Vllm));
        }
        let parameters = &model.config().parameters;
        let parameter = |name: &str| parameters.get(name).map(|value| value.string_value.as_str());
        let is_numbers =
            |output: &&OutputSignature| matches!(output.data_type, DataType::Fp32 | DataType::Fp16);
        let output = match parameter("embedding_output") {
            Some(name) => Some(signature.output(name).filter(is_numbers).ok_or_else(|| {
                format!("embedding_output: the model has no output '{name}' of FP32 or FP16")
            })?),
            None => OUTPUTS.iter().find_map(|name| signature.output(name).filter(is_numbers)),
        };
        let mut required = signature.inputs.iter().filter(|input| !input.optional);
        let (Some(output), Some(input), None) = (output, required.next().filter(is_bytes), required.next())
        else {
            return Ok(None);
        };
        let Some(batch) = tensors::batch_size(signature, input) else { return Ok(None) };
        let takes_many = batch == usize::MAX;
        let is_pooled = output.dims.len() == if takes_many { 3 } else { 2 };
        let pooling = Mode::parse(parameter("pooling").unwrap_or("mean"))?;
        let flag = |name: &str| match parameter(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(format!("{name}: must be true or false, not '{other}'")),
        };
        Ok(Some(Self::Tensors(TensorContract {
            input: input.name.clone(),
            output: output.name.clone(),
            batch,
            pooling: is_pooled.then(|| pooling.into()),
            normalize: flag("normalize")?,
            is_nested: flag("matryoshka")?,
        })))
    }

    /// The requests for the embeddings of texts, in order.
    ///
    /// # Errors
    /// The model does not support `dimensions`.
    pub(crate) fn requests(
        &self,
        model: &Model,
        texts: &[String],
        dimensions: Option<usize>,
    ) -> Outcome<Vec<InferRequest>> {
        match self {
            Self::Vllm => {
                let all =
                    texts.iter().map(|text| vllm(model, &serde_json::Value::from(text.as_str()), dimensions));
                all.collect()
            }
            Self::Tensors(contract) => contract.requests(model, texts, dimensions),
        }
    }

    /// The requests for the embeddings of lists of tokens, in order.
    ///
    /// # Errors
    /// The model takes texts only.
    pub(crate) fn token_requests(
        &self,
        model: &Model,
        all: &[Vec<u32>],
        dimensions: Option<usize>,
    ) -> Outcome<Vec<InferRequest>> {
        if all.is_empty() || all.iter().any(Vec::is_empty) {
            return Err(Failure::invalid_field("input", "'input' must not be empty"));
        }
        match self {
            Self::Vllm => {
                let all = all
                    .iter()
                    .map(|tokens| vllm(model, &serde_json::Value::from(tokens.as_slice()), dimensions));
                all.collect()
            }
            Self::Tensors(_) => {
                let message = format!("model '{}' takes texts, not token numbers", model.name());
                Err(Failure::unsupported("input", message))
            }
        }
    }

    /// The embeddings in a response.
    ///
    /// # Errors
    /// The response does not have the form of its contract.
    pub(crate) fn read(&self, response: &Response, dimensions: Option<usize>) -> Outcome<Vec<Vec<f32>>> {
        let name = match self {
            Self::Vllm => "text_output",
            Self::Tensors(contract) => &contract.output,
        };
        let Some(output) = response.outputs.iter().find(|output| output.name == name) else {
            return Ok(Vec::new());
        };
        match self {
            Self::Vllm => serde_json::from_slice(&tensors::first_text(output)?)
                .map(|vector| vec![vector])
                .map_err(|error| {
                    Failure::broken_model(format!("the model's output '{name}' is no embedding: {error}"))
                }),
            Self::Tensors(contract) => contract.read(output, dimensions),
        }
    }

    /// The number of tokens that a response reports.
    pub(crate) fn tokens(&self, response: &Response) -> Option<u64> {
        let output = response.outputs.iter().find(|output| output.name == "num_input_tokens")?;
        tensors::first_count(output)
    }
}

/// A request in the form of the vLLM backend.
fn vllm(model: &Model, input: &serde_json::Value, dimensions: Option<usize>) -> Outcome<InferRequest> {
    let signature = model.signature();
    let pooling = dimensions
        .map_or_else(String::new, |count| format!(",\"pooling_params\":{{\"dimensions\":[{count}]}}"));
    let json = format!("{{\"input\":{input}{pooling}}}");
    let mut request = InferRequest::default();
    if let Some(input) = signature.input("embedding_request") {
        request.inputs.push(tensors::text(signature, input, &json)?);
    }
    // Triton's vLLM backend ignores the prompt of such a request, but its configuration requires one.
    if let Some(input) = signature.input("text_input").filter(|input| !input.optional) {
        request.inputs.push(tensors::text(signature, input, "")?);
    }
    for (name, value) in [("stream", false), ("return_num_input_tokens", true)] {
        if let Some(input) = signature.input(name).filter(|input| input.data_type == DataType::Bool) {
            request.inputs.push(tensors::scalar(signature, input, vec![u8::from(value)]));
        }
    }
    Ok(request)
}

impl TensorContract {
    fn requests(
        &self,
        model: &Model,
        texts: &[String],
        dimensions: Option<usize>,
    ) -> Outcome<Vec<InferRequest>> {
        if dimensions.is_some() && !self.is_nested {
            let message = format!(
                "'dimensions' is not supported by model '{}', unless the parameter matryoshka of its configuration is true",
                model.name()
            );
            return Err(Failure::unsupported("dimensions", message));
        }
        let signature = model.signature();
        let Some(input) = signature.input(&self.input) else { return Ok(Vec::new()) };
        let requests = texts.chunks(self.batch.min(texts.len()).max(1)).map(|texts| {
            let tensor = tensors::batch(signature, input, texts)?;
            Ok(InferRequest { inputs: vec![tensor], ..InferRequest::default() })
        });
        requests.collect()
    }

    fn read(&self, output: &Tensor, dimensions: Option<usize>) -> Outcome<Vec<Vec<f32>>> {
        let unexpected = || {
            let message =
                format!("the model's output '{}' of shape {} is no embedding", output.name, output.shape);
            Failure::broken_model(message)
        };
        let numbers = tensors::floats(output)?.ok_or_else(unexpected)?;
        let size = output.shape.last().and_then(|size| usize::try_from(*size).ok()).filter(|size| *size > 0);
        let size = size.ok_or_else(unexpected)?;
        let rows: Vec<&[f32]> = numbers.chunks_exact(size).collect();
        let mut vectors: Vec<Vec<f32>> = match &self.pooling {
            None => rows.into_iter().map(<[f32]>::to_vec).collect(),
            Some(pooling) => {
                let (_, leading) = output.shape.split_last().ok_or_else(unexpected)?;
                let tokens =
                    leading.last().and_then(|count| usize::try_from(*count).ok()).filter(|count| *count > 0);
                let tokens = tokens.ok_or_else(unexpected)?;
                rows.chunks_exact(tokens).map(|rows| pooling.pool(rows, 0)).collect()
            }
        };
        for vector in &mut vectors {
            match dimensions {
                Some(count) => shorten(vector, count)?,
                None if self.normalize => normalize(vector),
                None => {}
            }
        }
        Ok(vectors)
    }
}

/// The beginning of a vector, scaled to the length 1.
///
/// # Errors
/// The vector is too short.
pub(crate) fn shorten(vector: &mut Vec<f32>, count: usize) -> Outcome<()> {
    if count > vector.len() {
        let message = format!("'dimensions' is {count}, but the model's embeddings have {}", vector.len());
        return Err(Failure::invalid_field("dimensions", message));
    }
    vector.truncate(count);
    normalize(vector);
    Ok(())
}
