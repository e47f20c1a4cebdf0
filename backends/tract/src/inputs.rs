//! Where each input of the graph comes from: a request gives it, all requests of a batch give it in a row, the file
//! has a value for it, or it is made from the shapes of other inputs.
//!
//! Decided once, when the model is loaded. Knows nothing of how batches are run.

use nereid_backend_api::{BatchInput, Error, ModelConfig, Request, Result, Shape};
use tract_onnx::prelude::TValue;

use crate::graph::OnnxFile;
use crate::signature::Port;

/// An input of the graph.
pub(crate) struct Input {
    pub(crate) port: Port,
    pub(crate) source: Source,
}

/// Where the contents of an input come from.
pub(crate) enum Source {
    /// Each request gives it.
    Requests {
        /// Requests give it in shapes of their own, and the graph takes the elements of all in one dimension.
        /// Otherwise the first dimensions of a batch add up and the others are the same.
        ragged: bool,
        /// What it is for a request that does not give it.
        default: Option<TValue>,
    },
    /// The batch gives it.
    Batch(BatchInput),
}

/// The values that the file has for the optional inputs of a configuration.
///
/// # Errors
/// Says which input cannot be optional: the model has no value for it, or takes batches.
pub(crate) fn defaults(config: &ModelConfig, file: &OnnxFile) -> Result<Vec<(String, TValue)>> {
    let optional = config.input.iter().filter(|input| input.optional);
    optional
        .map(|input| {
            let name = &input.name;
            let refused = |why| Err(Error::invalid_arg(format!("input '{name}' cannot be optional: {why}")));
            if config.max_batch_size > 0 {
                return refused(
                    "max_batch_size is over 0, and a batch has one value of each input for every item",
                );
            }
            if input.allow_ragged_batch {
                return refused("allow_ragged_batch is set for it too");
            }
            match file.initial_value(name)? {
                Some(value) => Ok((name.clone(), value.into())),
                None => refused(
                    "the model has no value of its own for it, which an initializer of that name would be",
                ),
            }
        })
        .collect()
}

/// Where the graph's inputs come from. They have been checked to be configured, one way or another.
///
/// # Errors
/// Says which batch input, or which value for an optional one, the graph does not take.
pub(crate) fn resolve(
    config: &ModelConfig,
    ports: Vec<Port>,
    mut batch_inputs: Vec<BatchInput>,
    mut defaults: Vec<(String, TValue)>,
) -> Result<Vec<Input>> {
    for batch_input in &batch_inputs {
        check_batch_input(batch_input, &ports)?;
    }
    let resolved = ports.into_iter().map(|port| {
        if let Some(at) = batch_inputs.iter().position(|made| made.target() == port.name) {
            return Ok(Input { port, source: Source::Batch(batch_inputs.swap_remove(at)) });
        }
        let default = defaults.iter().position(|(name, _)| *name == port.name);
        let default = default.map(|at| defaults.swap_remove(at).1);
        if let Some(value) = &default {
            check_default(&port, value)?;
        }
        let ragged = config.input.iter().any(|input| input.name == port.name && input.allow_ragged_batch);
        Ok(Input { port, source: Source::Requests { ragged, default } })
    });
    resolved.collect()
}

fn check_batch_input(batch_input: &BatchInput, ports: &[Port]) -> Result<()> {
    let target = batch_input.target();
    let Some(port) = ports.iter().find(|port| port.name == target) else {
        let names: Vec<_> = ports.iter().map(|port| format!("'{}'", port.name)).collect();
        return Err(Error::invalid_arg(format!(
            "a batch_input has the target_name '{target}', but the model's inputs are {}",
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
            "batch_input '{target}' has the shape {}, but the model takes {}",
            batch_input.dims(),
            port.describe_dims()
        )));
    }
    Ok(())
}

fn check_default(port: &Port, value: &TValue) -> Result<()> {
    let shape = shape_of(value);
    if value.datum_type() == port.datum_type && port.accepts(&shape) {
        return Ok(());
    }
    Err(Error::invalid_arg(format!(
        "the model's input '{}' is {} {}, but its value in the file is {:?} {shape}",
        port.name,
        port.data_type,
        port.describe_dims(),
        value.datum_type()
    )))
}

fn shape_of(value: &TValue) -> Shape {
    value.shape().iter().map(|&dim| dim as i64).collect()
}

impl Input {
    /// The shape in which the graph takes it for that request alone.
    ///
    /// # Errors
    /// `InvalidArg` if the request lacks what it takes.
    pub(crate) fn shape(&self, request: &Request) -> Result<Shape> {
        let (ragged, default) = match &self.source {
            Source::Batch(made) => return made.shape(&[request]),
            Source::Requests { ragged, default } => (*ragged, default),
        };
        match (request.input(&self.port.name), default) {
            (Ok(tensor), _) if ragged => {
                let count = tensor.shape.element_count().and_then(|count| i64::try_from(count).ok());
                let impossible = || {
                    let (name, shape) = (&self.port.name, &tensor.shape);
                    Error::invalid_arg(format!("input '{name}' has the impossible shape {shape}"))
                };
                Ok([count.ok_or_else(impossible)?].into())
            }
            // A scalar cannot be configured as such: its configuration says [1].
            (Ok(tensor), _) if self.port.is_scalar() && tensor.shape.element_count() == Some(1) => {
                Ok(Shape::scalar())
            }
            (Ok(tensor), _) => Ok(tensor.shape.clone()),
            (Err(_), Some(value)) => Ok(shape_of(value)),
            (Err(error), None) => Err(error),
        }
    }

    /// Its shape for a request of one item, if that does not depend on the request.
    pub(crate) fn only_shape(&self, batching: bool) -> Option<Shape> {
        if !matches!(self.source, Source::Requests { ragged: false, .. }) {
            return None;
        }
        let dims = self.port.dims.as_ref()?.iter().enumerate();
        dims.map(|(index, &dim)| if batching && index == 0 { Some(1) } else { dim }).collect()
    }
}
