//! Which requests of a model can share a batch.

use std::sync::Arc;

use nereid_backend_api::{BatchBuilder, CustomBatching, ModelConfig, Request, Tensor};

use super::Order;
use super::batcher::{BatchFormer, BatchItem};

/// Holds requests to the rules of a model's configuration and, if it has any, of its backend.
pub struct RequestFormer {
    /// Inputs that all requests of a batch have alike.
    alike: Vec<Alike>,
    /// Whether inputs are optional. All requests of a batch omit the same inputs.
    optional: bool,
    /// The number of leading dimensions that may differ: 1 with a batch dimension, otherwise 0.
    batch_dims: usize,
    custom: Option<Arc<dyn CustomBatching>>,
    building: Option<Box<dyn BatchBuilder>>,
    order: Option<Arc<Order>>,
}

struct Alike {
    input: String,
    /// Not the shapes alone, but what is in it as well.
    contents: bool,
}

impl RequestFormer {
    /// The rules of a checked configuration; `custom` holds the backend's rules. An order keeps answers in it.
    pub fn new(
        config: &ModelConfig,
        custom: Option<Arc<dyn CustomBatching>>,
        order: Option<Arc<Order>>,
    ) -> Self {
        let alike = config.input.iter().filter_map(|input| {
            let variable = input.dims.iter().any(|dim| *dim < 0);
            let compared = input.is_shape_tensor || (variable && !input.allow_ragged_batch);
            compared.then(|| Alike { input: input.name.clone(), contents: input.is_shape_tensor })
        });
        Self {
            alike: alike.collect(),
            optional: config.input.iter().any(|input| input.optional),
            batch_dims: usize::from(config.max_batch_size > 0),
            custom,
            building: None,
            order,
        }
    }

    /// Whether the configuration lets two requests be executed together.
    pub fn alike(&self, first: &Request, request: &Request) -> bool {
        if self.optional {
            let given = |input: &Tensor| first.inputs.iter().any(|other| other.name == input.name);
            if first.inputs.len() != request.inputs.len() || !request.inputs.iter().all(given) {
                return false;
            }
        }
        self.alike.iter().all(|alike| match (first.input(&alike.input), request.input(&alike.input)) {
            (Ok(one), Ok(other)) => {
                one.shape.get(self.batch_dims..) == other.shape.get(self.batch_dims..)
                    && (!alike.contents || same_contents(one, other))
            }
            // Both leave it out.
            (one, other) => one.is_err() && other.is_err(),
        })
    }
}

/// Unreadable contents count as different, and so does device memory: the queue does not wait for copies.
fn same_contents(one: &Tensor, other: &Tensor) -> bool {
    if one.is_on_device() || other.is_on_device() {
        return false;
    }
    match (one.contiguous(), other.contiguous()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

impl BatchFormer<Request> for RequestFormer {
    fn begin(&mut self, first: &Request) {
        self.building = self.custom.as_ref().map(|custom| custom.begin());
        if let Some(building) = &mut self.building {
            // A batch needs a first request, even if the backend refuses it.
            building.include(first);
        }
    }

    fn joins(&mut self, first: &Request, request: &Request) -> bool {
        self.alike(first, request) && self.building.as_mut().is_none_or(|building| building.include(request))
    }

    fn leave(&mut self, mut batch: Vec<Request>) -> Vec<Request> {
        self.building = None;
        if let Some(order) = &self.order {
            // One that comes again has its place in the line already.
            let new = batch.iter_mut().filter(|request| !request.is_repeated());
            new.for_each(|request| order.line_up(request));
        }
        batch
    }
}

impl BatchItem for Request {
    fn batch_size(&self) -> usize {
        Request::batch_size(self).max(1)
    }

    fn priority(&self) -> u64 {
        self.priority
    }
}
