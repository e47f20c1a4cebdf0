//! Runs batches: joins the requests' inputs along the batch dimension, runs the plan for the shapes that makes, and
//! cuts the outputs apart again.
//!
//! Knows nothing of files and configurations; [`Served`] holds what was learnt from them.

use std::sync::Arc;

use nereid_backend_api::{Batch, Error, Instance, Request, Response, Result, Shape, Tensor};
use smallvec::{SmallVec, smallvec};
use tract_onnx::prelude::{TValue, TVec};

use crate::convert::{Contents, check, gather};
use crate::plans::{Plans, Shapes};
use crate::signature::Port;

/// A loaded model, as its instances share it.
pub(crate) struct Served {
    /// Name of the model, for messages.
    pub(crate) name: String,
    /// Whether the first dimension of every input and output is the batch.
    pub(crate) batching: bool,
    /// The graph's inputs, in the order of the plans' inputs.
    pub(crate) inputs: Vec<Port>,
    /// The outputs to give, in the order of the plans' outputs.
    pub(crate) outputs: Vec<Output>,
    pub(crate) plans: Plans,
}

/// An output that the configuration lists.
pub(crate) struct Output {
    pub(crate) port: Port,
    /// The shape to answer with in place of the graph's: a scalar goes by the dimensions it is configured with.
    pub(crate) shape: Option<Shape>,
}

/// Executes batches of one model.
pub(crate) struct TractInstance {
    pub(crate) model: Arc<Served>,
}

/// Requests that go through the graph together.
struct Group {
    /// Their places in the batch.
    members: SmallVec<[usize; 8]>,
    /// The shapes of the joined inputs.
    shapes: Shapes,
}

type Outcomes = Vec<Option<Result<Response>>>;

impl Instance for TractInstance {
    fn execute(&mut self, mut batch: Batch) {
        let model = &*self.model;
        let mut outcomes: Outcomes = batch.requests().iter().map(|_| None).collect();
        let groups = model.group(batch.requests(), &mut outcomes);
        let gathered: Vec<_> = groups.iter().map(|group| model.gather(batch.requests(), group)).collect();
        batch.inputs_ready();

        let run =
            |(group, inputs): (&Group, Result<TVec<TValue>>)| model.plans.get(&group.shapes)?.run(inputs?);
        let results: Vec<_> = groups.iter().zip(gathered).map(run).collect();
        batch.outputs_ready();

        for (group, result) in groups.iter().zip(results) {
            let scattered = result.and_then(|values| model.scatter(batch.requests(), group, values));
            match scattered {
                Ok(responses) => {
                    for (&member, response) in group.members.iter().zip(responses) {
                        outcomes[member] = Some(response);
                    }
                }
                Err(error) => {
                    for &member in &group.members {
                        outcomes[member] = Some(Err(error.clone()));
                    }
                }
            }
        }
        let outcomes = outcomes.into_iter().map(|outcome| {
            let outcome = outcome.unwrap_or_else(|| Err(Error::internal("the request was not executed")));
            outcome.map_err(|error| error.context(format_args!("model '{}'", model.name)))
        });
        batch.complete(outcomes);
    }
}

impl Served {
    /// Whether a plan for the request is there. Of a request that cannot be executed it does not matter.
    pub(crate) fn has_plan(&self, request: &Request) -> bool {
        let shape = |port: &Port| request.input(&port.name).map(|tensor| tensor.shape.clone());
        self.inputs.iter().map(shape).collect::<Result<_>>().is_ok_and(|shapes| self.plans.has(&shapes))
    }

    /// Sorts the requests into groups whose inputs can be joined. What is wrong with a request is its own outcome.
    fn group(&self, requests: &[Request], outcomes: &mut Outcomes) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (member, (request, outcome)) in requests.iter().zip(outcomes).enumerate() {
            let shapes = match self.shapes(request) {
                Ok(shapes) => shapes,
                Err(error) => {
                    *outcome = Some(Err(error));
                    continue;
                }
            };
            match groups.iter_mut().find(|group| self.batching && joinable(&group.shapes, &shapes)) {
                Some(group) => {
                    for (total, shape) in group.shapes.iter_mut().zip(&shapes) {
                        total[0] += shape[0];
                    }
                    group.members.push(member);
                }
                None => groups.push(Group { members: smallvec![member], shapes }),
            }
        }
        groups
    }

    /// The shapes of a request's inputs in the graph's order.
    fn shapes(&self, request: &Request) -> Result<Shapes> {
        let shape = |port: &Port| {
            let tensor = request.input(&port.name)?;
            check(port, tensor)?;
            // A scalar cannot be configured as such: its configuration says [1].
            let scalar = port.is_scalar() && tensor.shape.element_count() == Some(1);
            let shape = if scalar { Shape::scalar() } else { tensor.shape.clone() };
            if !port.accepts(&shape) {
                return Err(Error::invalid_arg(format!(
                    "input '{}' has shape {shape}, but the model takes {}",
                    port.name,
                    port.describe_dims()
                )));
            }
            if self.batching && shape.first().is_none_or(|&size| size != request.batch_size() as i64) {
                return Err(Error::invalid_arg(format!(
                    "input '{}' has shape {shape} in a request of batch size {}",
                    port.name,
                    request.batch_size()
                )));
            }
            Ok(shape)
        };
        self.inputs.iter().map(shape).collect()
    }

    fn gather(&self, requests: &[Request], group: &Group) -> Result<TVec<TValue>> {
        let ports = self.inputs.iter().zip(&group.shapes);
        ports
            .map(|(port, shape)| {
                let parts = group.members.iter().map(|&member| requests[member].input(&port.name));
                gather(port, shape, &parts.collect::<Result<SmallVec<[_; 8]>>>()?)
            })
            .collect()
    }

    /// The response to each member of a group.
    fn scatter(
        &self,
        requests: &[Request],
        group: &Group,
        values: TVec<TValue>,
    ) -> Result<Vec<Result<Response>>> {
        let members = || group.members.iter().map(|&member| &requests[member]);
        let total: usize = members().map(Request::batch_size).sum();
        let mut responses: Vec<Result<Response>> = members().map(|_| Ok(Response::default())).collect();
        for (output, value) in self.outputs.iter().zip(values) {
            let name = &output.port.name;
            if !members().any(|request| request.wants(name)) {
                continue;
            }
            let shape: Shape = value.shape().iter().map(|&dim| dim as i64).collect();
            if self.batching && shape.first() != Some(&(total as i64)) {
                return Err(Error::internal(format!(
                    "output '{name}' has shape {shape}, whose first dimension is not the batch size {total}"
                )));
            }
            let contents = Contents::of(&output.port, value)?;
            let mut start = 0;
            for (request, response) in members().zip(&mut responses) {
                let (range, total, shape) = if self.batching {
                    let mut shape = shape.clone();
                    shape[0] = request.batch_size() as i64;
                    (start..start + request.batch_size(), total, shape)
                } else {
                    (0..1, 1, output.shape.clone().unwrap_or_else(|| shape.clone()))
                };
                start = range.end;
                if !request.wants(name) {
                    continue;
                }
                if let Ok(filled) = response {
                    match contents.part(range, total) {
                        Ok(buffer) => filled.outputs.push(Tensor {
                            name: name.clone(),
                            data_type: output.port.data_type,
                            shape,
                            buffers: SmallVec::from_buf([buffer]),
                        }),
                        Err(error) => *response = Err(error),
                    }
                }
            }
        }
        Ok(responses)
    }
}

/// Whether inputs of these shapes differ in their first dimension at most.
fn joinable(one: &Shapes, other: &Shapes) -> bool {
    one.iter().zip(other).all(|(one, other)| one.get(1..) == other.get(1..))
}
