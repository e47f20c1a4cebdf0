//! Where each input of the graph comes from: each request provides it (ragged or not, optional or not), or it is made for
//! the batch from the shapes of other inputs.
//!
//! Decided once, when the model is loaded. Knows nothing of how batches are run.

use nereid_backend_api::{BatchInput, Error, ModelConfig, Request, Result, Shape};

use crate::signature::Port;

/// An input of the graph.
#[derive(Clone, Debug)]
pub struct Input {
    /// The graph's input.
    pub port: Port,
    /// Where its contents come from.
    pub source: Source,
}

/// Where the contents of an input come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Each request provides it.
    Requests {
        /// Requests provide it in different shapes, and the graph takes the elements of all in one dimension.
        /// Otherwise the first dimensions of a batch add up and the others are the same.
        ragged: bool,
        /// A request may leave it out: the model has a value for it.
        optional: bool,
    },
    /// The executor makes the input for the batch.
    Batch(BatchInput),
}

/// The names of the optional inputs of a configuration. `has_value` returns whether the model has a value for an input.
///
/// # Errors
/// An input cannot be optional: the model has no value for it, or takes batches. And the errors of `has_value`.
pub fn optional_inputs(
    config: &ModelConfig,
    mut has_value: impl FnMut(&str) -> Result<bool>,
) -> Result<Vec<String>> {
    let optional = config.input.iter().filter(|input| input.optional);
    optional
        .map(|input| {
            let name = &input.name;
            let refused = |why| Err(Error::invalid_arg(format!("input '{name}' cannot be optional: {why}")));
            if config.max_batch_size > 0 {
                return refused("max_batch_size is above 0, and every item of a batch needs a value");
            }
            if input.allow_ragged_batch {
                return refused("it has allow_ragged_batch");
            }
            if !has_value(name)? {
                return refused("the model has no default value for it");
            }
            Ok(name.clone())
        })
        .collect()
}

/// The sources of the graph's inputs, all of which the configuration lists one way or another.
///
/// # Errors
/// Names the batch input that the graph does not take.
pub(crate) fn resolve(
    config: &ModelConfig,
    ports: Vec<Port>,
    mut batch_inputs: Vec<BatchInput>,
    optional: &[String],
) -> Result<Vec<Input>> {
    for batch_input in &batch_inputs {
        check_batch_input(batch_input, &ports)?;
    }
    let resolved = ports.into_iter().map(|port| {
        if let Some(at) = batch_inputs.iter().position(|made| made.target() == port.name) {
            return Input { port, source: Source::Batch(batch_inputs.swap_remove(at)) };
        }
        let ragged = config.input.iter().any(|input| input.name == port.name && input.allow_ragged_batch);
        let optional = optional.contains(&port.name);
        Input { port, source: Source::Requests { ragged, optional } }
    });
    Ok(resolved.collect())
}

fn check_batch_input(batch_input: &BatchInput, ports: &[Port]) -> Result<()> {
    let target = batch_input.target();
    let Some(port) = ports.iter().find(|port| port.name == target) else {
        let names: Vec<_> = ports.iter().map(|port| format!("'{}'", port.name)).collect();
        return Err(Error::invalid_arg(format!(
            "batch_input: unknown target_name '{target}' (the model's inputs: {})",
            names.join(", ")
        )));
    };
    if port.data_type != batch_input.data_type() {
        return Err(Error::invalid_arg(format!(
            "batch_input '{target}' is {} in the configuration, but {} in the model",
            batch_input.data_type(),
            port.data_type
        )));
    }
    if !port.accepts(&batch_input.dims()) {
        return Err(Error::invalid_arg(format!(
            "batch_input '{target}' has shape {}, but the model takes {}",
            batch_input.dims(),
            port.describe_dims()
        )));
    }
    Ok(())
}

impl Input {
    /// The input's shape in a run of this request alone; `None` if the request omits an optional input.
    ///
    /// # Errors
    /// `InvalidArg` if the request lacks an input that it needs.
    pub fn shape(&self, request: &Request) -> Result<Option<Shape>> {
        let (ragged, optional) = match &self.source {
            Source::Batch(made) => return made.shape(&[request]).map(Some),
            Source::Requests { ragged, optional } => (*ragged, *optional),
        };
        let tensor = match request.input(&self.port.name) {
            Ok(tensor) => tensor,
            Err(_) if optional => return Ok(None),
            Err(error) => return Err(error),
        };
        if ragged {
            let count = tensor.shape.element_count().and_then(|count| i64::try_from(count).ok());
            let too_large = || {
                let (name, shape) = (&self.port.name, &tensor.shape);
                Error::invalid_arg(format!("input '{name}': shape {shape} exceeds the address space"))
            };
            return Ok(Some([count.ok_or_else(too_large)?].into()));
        }
        // A configuration declares a scalar as [1].
        if self.port.is_scalar() && tensor.shape.element_count() == Some(1) {
            return Ok(Some(Shape::scalar()));
        }
        Ok(Some(tensor.shape.clone()))
    }

    /// The input's shape in a request of one item, if all requests have the same.
    pub(crate) fn fixed_shape(&self, batching: bool) -> Option<Shape> {
        if !matches!(self.source, Source::Requests { ragged: false, .. }) {
            return None;
        }
        let dims = self.port.dims.as_ref()?.iter().enumerate();
        dims.map(|(index, &dim)| if batching && index == 0 { Some(1) } else { dim }).collect()
    }
}
