//! A loaded model as its instances share it: where each input of the graph comes from, and where each output goes.

use nereid_backend_api::{BatchInput, BatchOutput, Buffer, ModelConfig, Request, Result, Shape, Tensor};
use smallvec::SmallVec;

use crate::check;
use crate::inputs::{self, Input};
use crate::signature::{Port, Signature};

/// The shapes of inputs; `None` for one that is left out.
pub type Shapes = SmallVec<[Option<Shape>; 2]>;

/// A loaded model, as its instances share it.
#[derive(Clone, Debug)]
pub struct GraphModel {
    /// The model's name, for messages.
    pub name: String,
    /// Whether the first dimension of every input and output is the batch.
    pub batching: bool,
    /// The graph's inputs, in the order in which the engine gets them.
    pub inputs: Vec<Input>,
    /// The outputs that the engine computes, in the order in which it returns them.
    pub outputs: Vec<Output>,
    /// The size of the batches that the graph takes, if it takes no others: smaller ones are filled up with zeros, and
    /// the graph's results for these are dropped. The ports declare the size as variable.
    pub padded_to: Option<usize>,
}

/// An output that the configuration lists, for clients or as a state.
#[derive(Clone, Debug)]
pub struct Output {
    /// The graph's output.
    pub port: Port,
    /// The shape of responses instead of the graph's: a scalar has the dimensions of the configuration.
    pub shape: Option<Shape>,
    /// How it is scattered to the requests, if not along the batch dimension.
    pub scatter: Option<BatchOutput>,
    /// Whether responses contain it.
    pub in_response: bool,
    /// Whether the output replaces a state of its request's sequence.
    pub is_state: bool,
}

impl GraphModel {
    /// The model of a configuration and a graph. `optional` are the inputs that requests may leave out, as
    /// [`optional_inputs`](crate::optional_inputs) lists them. The outputs are in the configuration's order.
    ///
    /// # Errors
    /// `InvalidArg` that names what does not fit, and what would be right.
    pub fn new(name: &str, config: &ModelConfig, signature: Signature, optional: &[String]) -> Result<Self> {
        let batch_inputs = BatchInput::all(config)?;
        check::inputs(config, &batch_inputs, &signature)?;
        let outputs = check::outputs(config, &signature)?;
        let inputs = inputs::resolve(config, signature.inputs, batch_inputs, optional)?;
        Ok(Self {
            name: name.to_owned(),
            batching: config.max_batch_size > 0,
            inputs,
            outputs,
            padded_to: None,
        })
    }

    /// The shapes of all inputs in a run of one request.
    ///
    /// # Errors
    /// `InvalidArg` if the request lacks an input.
    pub fn input_shapes(&self, request: &Request) -> Result<Shapes> {
        self.inputs.iter().map(|input| input.shape(request)).collect()
    }

    /// The shapes of all inputs in a run of one request of one item, if they are the same for all requests.
    pub fn fixed_shapes(&self) -> Option<SmallVec<[Shape; 2]>> {
        self.inputs.iter().map(|input| input.fixed_shape(self.batching)).collect()
    }
}

impl Output {
    /// The shape and byte size of the output of this request alone, if the graph fixes them before the run.
    pub(crate) fn expected(&self, request: &Request, batching: bool) -> Option<(Shape, usize)> {
        // States do not live in memory that a client can write to.
        if self.scatter.is_some() || self.is_state || !self.is_requested(request) {
            return None;
        }
        let batch = batching.then(|| request.batch_size() as i64);
        let dims = self.port.dims.as_ref()?.iter().enumerate();
        let shape: Shape = dims
            .map(|(axis, &dim)| match (axis, batch) {
                (0, Some(batch)) => dim.is_none_or(|dim| dim == batch).then_some(batch),
                _ => dim,
            })
            .collect::<Option<_>>()?;
        let byte_size = shape.element_count()?.checked_mul(self.port.data_type.byte_size()?)?;
        (byte_size > 0).then_some((shape, byte_size))
    }

    pub(crate) fn is_requested(&self, request: &Request) -> bool {
        self.in_response && request.wants(&self.port.name)
    }

    /// Whether the output replaces a state of the request's sequence. Fillers have no sequence.
    pub(crate) fn updates_state(&self, request: &Request) -> bool {
        self.is_state && !request.is_filler() && request.states().is_some()
    }

    /// Stores the tensor if it is a state. A part of a larger output is copied, lest the state keep all of it alive.
    pub(crate) fn store_state(&self, request: &Request, tensor: Tensor, is_part: bool) -> Result<Tensor> {
        if self.updates_state(request)
            && let Some(states) = request.states()
        {
            let stored = if is_part {
                [Buffer::host(tensor.contiguous()?.into_owned())].into_iter().collect()
            } else {
                tensor.buffers.clone()
            };
            states.update(&tensor.name, tensor.data_type, tensor.shape.clone(), stored)?;
        }
        Ok(tensor)
    }
}
