//! Tensors that exist only for an entire batch: inputs computed from the shapes of all its requests (`batch_input` of
//! a configuration), and outputs split by the shapes of an input (`batch_output`).
//!
//! Both are for models whose requests differ in shape. The rules follow the schema: one count per request, regardless
//! of its number of items; only the kinds named after items count items. Does not know how a backend joins the
//! requests, or which tensors its model has.

use nereid_model_config::proto;
use nereid_model_config::proto::batch_input::Kind;
use nereid_model_config::proto::batch_output::Kind as OutputKind;

use crate::{DataType, Error, ModelConfig, Request, Result, Shape, Tensor};

/// Limit of the numbers that describe the items of a batch: a client may claim any number of empty items.
const MAX_ITEM_DIMS: usize = 1 << 24;

/// An input of a model that no request contains: the backend computes one for each batch.
#[derive(Clone, Debug)]
pub struct BatchInput {
    target: String,
    kind: Kind,
    number: Number,
    source: Source,
}

/// The element types that a batch input may have.
#[derive(Clone, Copy, Debug)]
enum Number {
    Int32,
    Fp32,
}

/// The input of the requests that supplies the shapes.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    /// Number of dimensions, including the batch dimension.
    rank: usize,
}

impl BatchInput {
    /// The batch inputs of a configuration: one for each `target_name`, in order.
    ///
    /// # Errors
    /// `InvalidArg`, with the entry: it has no target, a target that is provided otherwise, a type other than INT32
    /// and FP32, or not exactly one source that is an input of the requests.
    pub fn all(config: &ModelConfig) -> Result<Vec<Self>> {
        let mut inputs: Vec<Self> = Vec::new();
        for (index, entry) in config.batch_input.iter().enumerate() {
            let parsed = Self::of(entry, config);
            inputs.extend(parsed.map_err(|error| error.context(format_args!("batch_input[{index}]")))?);
        }
        let given = config.input.iter().map(|input| input.name.as_str());
        refuse_repeated(given.collect(), inputs.iter().map(Self::target), "input")?;
        Ok(inputs)
    }

    fn of(entry: &proto::BatchInput, config: &ModelConfig) -> Result<Vec<Self>> {
        let kind = Kind::try_from(entry.kind)
            .map_err(|_| Error::invalid_arg(format!("{} is not a kind of batch input", entry.kind)))?;
        let number = match entry.data_type() {
            proto::DataType::TypeInt32 => Number::Int32,
            proto::DataType::TypeFp32 => Number::Fp32,
            other => {
                return Err(Error::invalid_arg(format!(
                    "data_type is {}, expected TYPE_INT32 or TYPE_FP32",
                    other.as_str_name()
                )));
            }
        };
        let source = Source::of(&entry.source_input, config)?;
        if source.rank == 0 && matches!(kind, Kind::BatchItemShape | Kind::BatchItemShapeFlatten) {
            return Err(Error::invalid_arg(format!(
                "{} needs a source whose first dimension counts items, but input '{}' is a scalar",
                kind.as_str_name(),
                source.name
            )));
        }
        let targets = targets(&entry.target_name)?.iter();
        Ok(targets
            .map(|target| Self { target: target.clone(), kind, number, source: source.clone() })
            .collect())
    }

    /// The name of the model's input to fill.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The element type: INT32 or FP32.
    pub fn data_type(&self) -> DataType {
        match self.number {
            Number::Int32 => DataType::Int32,
            Number::Fp32 => DataType::Fp32,
        }
    }

    /// The input's shape; -1 for dimensions that depend on the batch.
    pub fn dims(&self) -> Shape {
        match self.kind {
            Kind::BatchItemShape => [-1, self.source.rank as i64 - 1].into(),
            _ => [-1].into(),
        }
    }

    /// The input's shape for a batch of these requests.
    ///
    /// # Errors
    /// `InvalidArg` if a request lacks the source input, or the source has a different rank than configured, more
    /// elements than can be counted, or too many items to describe.
    pub fn shape(&self, requests: &[&Request]) -> Result<Shape> {
        let requests_count = requests.len() as i64;
        Ok(match self.kind {
            Kind::BatchElementCount | Kind::BatchAccumulatedElementCount => [requests_count].into(),
            Kind::BatchAccumulatedElementCountWithZero => [requests_count + 1].into(),
            Kind::BatchMaxElementCountAsShape => [self.most_elements(requests)? as i64].into(),
            Kind::BatchItemShape => [self.item_count(requests)? as i64, self.source.rank as i64 - 1].into(),
            Kind::BatchItemShapeFlatten => {
                [(self.item_count(requests)? * (self.source.rank - 1)) as i64].into()
            }
        })
    }

    /// The input for a batch of these requests.
    ///
    /// Elements whose values do not matter, as in `BATCH_MAX_ELEMENT_COUNT_AS_SHAPE`, are 0.
    ///
    /// # Errors
    /// As for [`shape`](Self::shape); `InvalidArg` also if a number is too large for INT32.
    pub fn tensor(&self, requests: &[&Request]) -> Result<Tensor> {
        let shape = self.shape(requests)?;
        let mut numbers = Numbers { number: self.number, contents: Vec::new() };
        let filled = match self.kind {
            Kind::BatchElementCount => self.push_counts(requests, &mut numbers),
            Kind::BatchAccumulatedElementCount => self.push_totals(requests, &mut numbers),
            Kind::BatchAccumulatedElementCountWithZero => {
                numbers.push(0).and_then(|()| self.push_totals(requests, &mut numbers))
            }
            Kind::BatchMaxElementCountAsShape => self.push_zeros(&shape, &mut numbers),
            Kind::BatchItemShape | Kind::BatchItemShapeFlatten => self.push_items(requests, &mut numbers),
        };
        filled.map_err(|error| error.context(format_args!("batch input '{}'", self.target)))?;
        Ok(Tensor::new(self.target.clone(), self.data_type(), shape, numbers.contents))
    }

    fn push_counts(&self, requests: &[&Request], numbers: &mut Numbers) -> Result<()> {
        requests.iter().try_for_each(|request| numbers.push(self.source.elements(request)?))
    }

    fn push_totals(&self, requests: &[&Request], numbers: &mut Numbers) -> Result<()> {
        let mut total = 0_usize;
        requests.iter().try_for_each(|request| {
            total = total.saturating_add(self.source.elements(request)?);
            numbers.push(total)
        })
    }

    fn push_zeros(&self, shape: &Shape, numbers: &mut Numbers) -> Result<()> {
        let size = shape.element_count().and_then(|count| count.checked_mul(size_of::<i32>()));
        let size = size.ok_or_else(|| Error::invalid_arg(format!("shape {shape} takes too much memory")))?;
        numbers.contents.resize(size, 0);
        Ok(())
    }

    fn push_items(&self, requests: &[&Request], numbers: &mut Numbers) -> Result<()> {
        for request in requests {
            let (items, dims) = self.source.items(request)?;
            for &dim in (0..items).flat_map(|_| dims) {
                numbers
                    .push(usize::try_from(dim).map_err(|_| Error::invalid_arg("a dimension is negative"))?)?;
            }
        }
        Ok(())
    }

    fn most_elements(&self, requests: &[&Request]) -> Result<usize> {
        requests.iter().try_fold(0, |most, request| Ok(self.source.elements(request)?.max(most)))
    }

    fn item_count(&self, requests: &[&Request]) -> Result<usize> {
        let count = requests.iter().try_fold(0_usize, |count, request| {
            Ok::<_, Error>(count.saturating_add(self.source.items(request)?.0))
        })?;
        if count.saturating_mul(self.source.rank) > MAX_ITEM_DIMS {
            return Err(Error::invalid_arg(format!(
                "batch input '{}' cannot describe {count} items of input '{}': that exceeds the limit of {MAX_ITEM_DIMS} numbers",
                self.target, self.source.name
            )));
        }
        Ok(count)
    }
}

impl Source {
    /// The only input in `names`.
    fn of(names: &[String], config: &ModelConfig) -> Result<Self> {
        let [name] = names else {
            return Err(Error::invalid_arg(format!(
                "expected exactly one source_input, found {}",
                names.len()
            )));
        };
        let Some(input) = config.input.iter().find(|input| input.name == *name) else {
            let known: Vec<_> = config.input.iter().map(|input| format!("'{}'", input.name)).collect();
            return Err(Error::invalid_arg(format!(
                "source_input '{name}' is not an input of the model (inputs: {})",
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            )));
        };
        let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        Ok(Self { name: name.clone(), rank: dims.len() + usize::from(config.max_batch_size > 0) })
    }

    fn shape<'a>(&self, request: &'a Request) -> Result<&'a Shape> {
        let shape = &request.input(&self.name)?.shape;
        if shape.len() == self.rank {
            return Ok(shape);
        }
        Err(Error::invalid_arg(format!(
            "input '{}' has shape {shape}, expected {} dimensions",
            self.name, self.rank
        )))
    }

    fn elements(&self, request: &Request) -> Result<usize> {
        let shape = self.shape(request)?;
        shape
            .element_count()
            .ok_or_else(|| Error::invalid_arg(format!("input '{}' has the invalid shape {shape}", self.name)))
    }

    /// The number of items in the input, and the shape of each.
    fn items<'a>(&self, request: &'a Request) -> Result<(usize, &'a [i64])> {
        let shape = self.shape(request)?;
        let (&items, dims) = shape.split_first().ok_or_else(|| {
            Error::invalid_arg(format!(
                "input '{}' is a scalar, expected a dimension that counts items",
                self.name
            ))
        })?;
        let items = usize::try_from(items).map_err(|_| {
            Error::invalid_arg(format!("input '{}' has the invalid shape {shape}", self.name))
        })?;
        Ok((items, dims))
    }
}

/// The contents of a batch input under construction.
struct Numbers {
    number: Number,
    contents: Vec<u8>,
}

impl Numbers {
    fn push(&mut self, value: usize) -> Result<()> {
        let bytes = match self.number {
            Number::Int32 => {
                let value = i32::try_from(value).map_err(|_| {
                    Error::invalid_arg(format!("{value} exceeds the range of INT32 (at most {})", i32::MAX))
                })?;
                value.to_le_bytes()
            }
            Number::Fp32 => (value as f32).to_le_bytes(),
        };
        self.contents.extend_from_slice(&bytes);
        Ok(())
    }
}

/// An output of a model that is one tensor for the entire batch: the concatenated parts of the requests, each with a
/// shape that follows from the request's own input.
#[derive(Clone, Debug)]
pub struct BatchOutput {
    target: String,
    source: Source,
    /// The shape of a request's part, with the batch dimension; -1 stands for the source's dimension at that index.
    dims: Shape,
}

impl BatchOutput {
    /// The batch outputs of a configuration: one for each `target_name`, in order.
    ///
    /// # Errors
    /// `InvalidArg`, with the entry: it has no target, a target that is not an output or has several entries, or not
    /// exactly one source with the dimensions to copy.
    pub fn all(config: &ModelConfig) -> Result<Vec<Self>> {
        let mut outputs: Vec<Self> = Vec::new();
        for (index, entry) in config.batch_output.iter().enumerate() {
            let parsed = Self::of(entry, config);
            outputs.extend(parsed.map_err(|error| error.context(format_args!("batch_output[{index}]")))?);
        }
        refuse_repeated(Vec::new(), outputs.iter().map(Self::target), "output")?;
        Ok(outputs)
    }

    fn of(entry: &proto::BatchOutput, config: &ModelConfig) -> Result<Vec<Self>> {
        let Ok(OutputKind::BatchScatterWithInputShape) = OutputKind::try_from(entry.kind) else {
            return Err(Error::invalid_arg(format!("{} is not a kind of batch output", entry.kind)));
        };
        let source = Source::of(&entry.source_input, config)?;
        let target = |target: &String| {
            let output = config.output.iter().find(|output| output.name == *target).ok_or_else(|| {
                Error::invalid_arg(format!("target_name '{target}' is not an output of the model"))
            })?;
            let mut dims = Shape::from(
                output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape).as_slice(),
            );
            if config.max_batch_size > 0 {
                dims.push_front(-1);
            }
            if dims.iter().skip(source.rank).any(|&dim| dim < 0) {
                return Err(Error::invalid_arg(format!(
                    "output '{target}' of shape {dims} takes its variable dimensions from input '{}', which has only {}",
                    source.name, source.rank
                )));
            }
            Ok(Self { target: target.clone(), source: source.clone(), dims })
        };
        targets(&entry.target_name)?.iter().map(target).collect()
    }

    /// The name of the model's output to split.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The shape of a request's part, with the batch dimension.
    ///
    /// # Errors
    /// `InvalidArg` if the request lacks the source input, or the source has a different rank than configured.
    pub fn shape(&self, request: &Request) -> Result<Shape> {
        let source = self.source.shape(request)?;
        // The source has a dimension for each variable one, as checked with the configuration.
        let dim = |(index, &dim): (usize, &i64)| if dim < 0 { source.get(index).copied() } else { Some(dim) };
        Ok(self.dims.iter().enumerate().filter_map(dim).collect())
    }
}

fn targets(names: &[String]) -> Result<&[String]> {
    if names.is_empty() {
        return Err(Error::invalid_arg("target_name is missing; it names the model's tensor"));
    }
    Ok(names)
}

/// Refuses targets that are `taken` or repeated.
fn refuse_repeated<'a>(
    mut taken: Vec<&'a str>,
    targets: impl Iterator<Item = &'a str>,
    role: &str,
) -> Result<()> {
    for target in targets {
        if taken.contains(&target) {
            return Err(Error::invalid_arg(format!(
                "target_name '{target}' of a batch_{role} is already provided by another entry"
            )));
        }
        taken.push(target);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
