//! Runs batches: joins the requests' inputs along the batch dimension, or ragged ones element by element, adds the
//! inputs that the batch gives, runs the plan for the shapes that makes, and cuts the outputs apart again.
//!
//! Knows nothing of files and configurations; [`Served`] holds what was learnt from them.

use std::ops::Range;
use std::sync::Arc;

use nereid_backend_api::{
    Batch, BatchInput, BatchOutput, Error, Instance, Request, Response, Result, Shape, Tensor,
};
use smallvec::{SmallVec, smallvec};
use tract_onnx::prelude::{TValue, TVec};

use crate::convert::{Contents, check, gather};
use crate::inputs::{Input, Source};
use crate::plans::{Plans, Shapes};
use crate::signature::Port;

/// A loaded model, as its instances share it.
pub(crate) struct Served {
    /// Name of the model, for messages.
    pub(crate) name: String,
    /// Whether the first dimension of every input and output is the batch.
    pub(crate) batching: bool,
    /// The graph's inputs, in the order of the plans' inputs.
    pub(crate) inputs: Vec<Input>,
    /// The outputs to give, in the order of the plans' outputs.
    pub(crate) outputs: Vec<Output>,
    pub(crate) plans: Plans,
}

/// An output that the configuration lists.
pub(crate) struct Output {
    pub(crate) port: Port,
    /// The shape to answer with in place of the graph's: a scalar goes by the dimensions it is configured with.
    pub(crate) shape: Option<Shape>,
    /// How it is cut apart, if not along the batch dimension.
    pub(crate) scatter: Option<BatchOutput>,
}

/// Executes batches of one model.
pub(crate) struct TractInstance {
    pub(crate) model: Arc<Served>,
}

/// Requests that go through the graph together.
struct Group {
    /// Their places in the batch.
    members: SmallVec<[usize; 8]>,
    /// The joined shapes of the inputs that requests give, in the graph's order.
    shapes: Shapes,
}

/// A part of an output: where it lies, in units of which there are so many, and its shape.
struct Part {
    range: Range<usize>,
    of: usize,
    shape: Shape,
}

type Outcomes = Vec<Option<Result<Response>>>;

impl Instance for TractInstance {
    fn execute(&mut self, mut batch: Batch) {
        let model = &*self.model;
        let mut outcomes: Outcomes = batch.requests().iter().map(|_| None).collect();
        let groups = model.group(batch.requests(), &mut outcomes);
        let gathered: Vec<_> = groups.iter().map(|group| model.gather(batch.requests(), group)).collect();
        batch.inputs_ready();

        let run = |gathered: Result<(Shapes, TVec<TValue>)>| {
            let (shapes, inputs) = gathered?;
            model.plans.get(&shapes)?.run(inputs)
        };
        let results: Vec<_> = gathered.into_iter().map(run).collect();
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
        let shapes = self.inputs.iter().map(|input| input.shape(request));
        shapes.collect::<Result<_>>().is_ok_and(|shapes| self.plans.has(&shapes))
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

    /// The shapes of what a request gives, in the graph's order.
    fn shapes(&self, request: &Request) -> Result<Shapes> {
        let shape = |input: &Input| {
            let port = &input.port;
            if let Ok(tensor) = request.input(&port.name) {
                check(port, tensor)?;
                if self.batching
                    && tensor.shape.first().is_none_or(|&size| size != request.batch_size() as i64)
                {
                    return Err(Error::invalid_arg(format!(
                        "input '{}' has shape {} in a request of batch size {}",
                        port.name,
                        tensor.shape,
                        request.batch_size()
                    )));
                }
            }
            let shape = input.shape(request)?;
            accept(port, &shape)?;
            Ok(shape)
        };
        self.inputs.iter().filter(|input| !matches!(input.source, Source::Batch(_))).map(shape).collect()
    }

    /// The graph's inputs for a group, and their shapes.
    fn gather(&self, requests: &[Request], group: &Group) -> Result<(Shapes, TVec<TValue>)> {
        let members: SmallVec<[_; 8]> = group.members.iter().map(|&member| &requests[member]).collect();
        let mut given = group.shapes.iter();
        let (mut shapes, mut values) = (Shapes::new(), TVec::new());
        for Input { port, source } in &self.inputs {
            let (shape, value) = match source {
                Source::Batch(made) => gather_made(port, made, &members)?,
                Source::Requests { default, .. } => {
                    let shape = given.next().cloned().unwrap_or_default();
                    let parts = members.iter().map(|request| request.input(&port.name));
                    let value = match (parts.collect::<Result<SmallVec<[_; 8]>>>(), default) {
                        (Ok(parts), _) => gather(port, &shape, &parts)?,
                        (Err(_), Some(value)) => value.clone(),
                        (Err(error), None) => return Err(error),
                    };
                    (shape, value)
                }
            };
            shapes.push(shape);
            values.push(value);
        }
        Ok((shapes, values))
    }

    /// The response to each member of a group.
    fn scatter(
        &self,
        requests: &[Request],
        group: &Group,
        values: TVec<TValue>,
    ) -> Result<Vec<Result<Response>>> {
        let members: SmallVec<[_; 8]> = group.members.iter().map(|&member| &requests[member]).collect();
        let mut responses: Vec<Result<Response>> = members.iter().map(|_| Ok(Response::default())).collect();
        for (output, value) in self.outputs.iter().zip(values) {
            let name = &output.port.name;
            if !members.iter().any(|request| request.wants(name)) {
                continue;
            }
            let parts = self.parts(output, value.shape(), &members)?;
            let contents = Contents::of(&output.port, value)?;
            for ((request, response), part) in members.iter().zip(&mut responses).zip(parts) {
                if !request.wants(name) {
                    continue;
                }
                if let Ok(filled) = response {
                    match contents.part(part.range, part.of) {
                        Ok(buffer) => filled.outputs.push(Tensor {
                            name: name.clone(),
                            data_type: output.port.data_type,
                            shape: part.shape,
                            buffers: SmallVec::from_buf([buffer]),
                        }),
                        Err(error) => *response = Err(error),
                    }
                }
            }
        }
        Ok(responses)
    }

    /// The part of an output that belongs to each member of a group.
    fn parts(&self, output: &Output, dims: &[usize], members: &[&Request]) -> Result<Vec<Part>> {
        let shape: Shape = dims.iter().map(|&dim| dim as i64).collect();
        if let Some(scatter) = &output.scatter {
            return scattered(scatter, &shape, members);
        }
        if !self.batching {
            let shape = output.shape.clone().unwrap_or(shape);
            return Ok(members.iter().map(|_| Part { range: 0..1, of: 1, shape: shape.clone() }).collect());
        }
        let total: usize = members.iter().map(|request| request.batch_size()).sum();
        if shape.first() != Some(&(total as i64)) {
            return Err(Error::internal(format!(
                "output '{}' has shape {shape}, whose first dimension is not the batch size {total}",
                output.port.name
            )));
        }
        let mut start = 0;
        let part = |request: &&Request| {
            let range = start..start + request.batch_size();
            start = range.end;
            let mut shape = shape.clone();
            shape[0] = request.batch_size() as i64;
            Part { range, of: total, shape }
        };
        Ok(members.iter().map(part).collect())
    }
}

/// An input that the batch gives, and its shape.
fn gather_made(port: &Port, made: &BatchInput, members: &[&Request]) -> Result<(Shape, TValue)> {
    let tensor = made.tensor(members)?;
    accept(port, &tensor.shape)?;
    let value = gather(port, &tensor.shape, &[&tensor])?;
    Ok((tensor.shape, value))
}

fn accept(port: &Port, shape: &Shape) -> Result<()> {
    if port.accepts(shape) {
        return Ok(());
    }
    Err(Error::invalid_arg(format!(
        "input '{}' has shape {shape}, but the model takes {}",
        port.name,
        port.describe_dims()
    )))
}

/// The parts of an output of that shape in which the requests' elements lie one behind the other. What the model gives
/// beyond the last one's belongs to nobody.
fn scattered(scatter: &BatchOutput, whole: &Shape, members: &[&Request]) -> Result<Vec<Part>> {
    let of = whole.element_count().unwrap_or(0);
    let mut start = 0_usize;
    let part = |request: &&Request| {
        let shape = scatter.shape(request)?;
        let end = shape.element_count().and_then(|count| start.checked_add(count)).filter(|&end| end <= of);
        let Some(end) = end else {
            return Err(Error::internal(format!(
                "output '{}' has shape {whole}, but the shapes of the requests ask for more elements",
                scatter.target()
            )));
        };
        let range = start..end;
        start = end;
        Ok(Part { range, of, shape })
    };
    members.iter().map(part).collect()
}

/// Whether inputs of these shapes differ in their first dimension at most.
fn joinable(one: &Shapes, other: &Shapes) -> bool {
    one.iter().zip(other).all(|(one, other)| one.get(1..) == other.get(1..))
}
