//! Runs batches: joins the requests' inputs along the batch dimension, or ragged ones element by element, adds the
//! inputs that the batch gives, has the engine run, and cuts the outputs apart again.
//!
//! Knows nothing of files and configurations; [`Served`] holds what was learnt from them.

use std::ops::Range;
use std::sync::Arc;

use nereid_backend_api::{
    Batch, BatchOutput, Buffer, Error, Instance, Memory, OutputBuffer, OutputSpec, Request, Response, Result,
    Shape, Tensor,
};
use smallvec::{SmallVec, smallvec};

use crate::contents::{Contents, impossible_size};
use crate::inputs::{Input, Source};
use crate::signature::Port;

/// The shapes of inputs; `None` for one that is left out.
pub type Shapes = SmallVec<[Option<Shape>; 2]>;

/// A loaded model, as its instances share it.
#[derive(Clone, Debug)]
pub struct Served {
    /// Name of the model, for messages.
    pub name: String,
    /// Whether the first dimension of every input and output is the batch.
    pub batching: bool,
    /// The graph's inputs, in the order in which the engine gets them.
    pub inputs: Vec<Input>,
    /// The outputs to give, in the order in which the engine gives them.
    pub outputs: Vec<Output>,
}

/// An output that the configuration lists, for clients or as a state.
#[derive(Clone, Debug)]
pub struct Output {
    /// What the graph gives.
    pub port: Port,
    /// The shape to answer with in place of the graph's: a scalar goes by the dimensions it is configured with.
    pub shape: Option<Shape>,
    /// How it is cut apart, if not along the batch dimension.
    pub scatter: Option<BatchOutput>,
    /// Whether clients get it.
    pub answered: bool,
    /// Whether it replaces a state of its request's sequence.
    pub is_state: bool,
}

/// An input of one run.
#[derive(Debug)]
pub struct Given<T> {
    /// Its shape, which the port accepts.
    pub shape: Shape,
    /// Its contents, which fit the shape.
    pub value: T,
}

/// Memory that the caller chose for an output: a shared-memory region, for example.
pub struct Target {
    /// The shape that the output will have, by what the model declares.
    pub shape: Shape,
    /// As many bytes as that shape takes, which the processor can write.
    pub memory: OutputBuffer,
}

/// What runs the graph.
pub trait Engine: Send {
    /// Whether it writes outputs to where callers want them.
    const WRITES_TARGETS: bool = false;

    /// The contents of an input, ready to be run on.
    type Value;
    /// An output as the engine gives it.
    type Raw;

    /// Checks what this engine asks of a request's tensor. Its type is the port's, and its contents fit its shape.
    ///
    /// # Errors
    /// `InvalidArg` for that request.
    fn check(&self, port: &Port, tensor: &Tensor) -> Result<()>;

    /// Joins the contents of `parts`, one after the other. Each of them passed [`check`](Self::check), or was made for
    /// the batch.
    ///
    /// # Errors
    /// For all requests that the parts belong to.
    fn gather(&self, port: &Port, shape: &Shape, parts: &[&Tensor]) -> Result<Self::Value>;

    /// Runs the graph on all its inputs, in order, with `None` for an optional one that is left out. Gives all outputs,
    /// with `None` for one that was written to its target. There is a place in `targets` for each output, unless there
    /// are none at all. It may leave a target unused.
    ///
    /// # Errors
    /// For all requests of the run.
    fn run(
        &mut self,
        inputs: Vec<Option<Given<Self::Value>>>,
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<Self::Raw>>>;

    /// The shape and contents of an output.
    ///
    /// # Errors
    /// For all requests of the run.
    fn read(&self, port: &Port, output: Self::Raw) -> Result<(Shape, Contents)>;
}

/// Executes batches of one model: an instance.
pub struct Executor<E> {
    model: Arc<Served>,
    engine: E,
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
type Inputs<E> = Vec<Option<Given<<E as Engine>::Value>>>;
type Targets = SmallVec<[Option<Target>; 2]>;

impl<E: Engine> Executor<E> {
    /// An instance of the model.
    pub fn new(model: Arc<Served>, engine: E) -> Self {
        Self { model, engine }
    }
}

impl<E: Engine> Instance for Executor<E> {
    fn execute(&mut self, mut batch: Batch) {
        let Self { model, engine } = self;
        let mut outcomes: Outcomes = batch.requests().iter().map(|_| None).collect();
        let groups = model.group(engine, batch.requests(), &mut outcomes);
        let gathered: Vec<_> =
            groups.iter().map(|group| model.gather(engine, batch.requests(), group)).collect();
        batch.inputs_ready();

        let run = |(group, gathered): (&Group, Result<Inputs<E>>)| {
            let inputs = gathered?;
            let mut targets =
                if E::WRITES_TARGETS { model.targets(batch.requests(), group)? } else { Targets::new() };
            let values = engine.run(inputs, &mut targets)?;
            Ok((values, targets))
        };
        let results: Vec<_> = groups.iter().zip(gathered).map(run).collect();
        batch.outputs_ready();

        for (group, result) in groups.iter().zip(results) {
            let scattered = result.and_then(|(values, targets)| {
                model.scatter(engine, batch.requests(), group, values, targets)
            });
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
    /// The shapes of all inputs for a run of that request alone.
    ///
    /// # Errors
    /// `InvalidArg` if the request lacks an input.
    pub fn alone(&self, request: &Request) -> Result<Shapes> {
        self.inputs.iter().map(|input| input.shape(request)).collect()
    }

    /// Sorts the requests into groups whose inputs can be joined. What is wrong with a request is its own outcome.
    fn group<E: Engine>(&self, engine: &E, requests: &[Request], outcomes: &mut Outcomes) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (member, (request, outcome)) in requests.iter().zip(outcomes).enumerate() {
            let shapes = match self.shapes(engine, request) {
                Ok(shapes) => shapes,
                Err(error) => {
                    *outcome = Some(Err(error));
                    continue;
                }
            };
            match groups.iter_mut().find(|group| self.batching && joinable(&group.shapes, &shapes)) {
                Some(group) => {
                    for (total, shape) in group.shapes.iter_mut().flatten().zip(shapes.iter().flatten()) {
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
    fn shapes<E: Engine>(&self, engine: &E, request: &Request) -> Result<Shapes> {
        let shape = |input: &Input| {
            let port = &input.port;
            if let Ok(tensor) = request.input(&port.name) {
                check(engine, port, tensor)?;
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
            if let Some(shape) = &shape {
                accept(port, shape)?;
            }
            Ok(shape)
        };
        self.inputs.iter().filter(|input| !matches!(input.source, Source::Batch(_))).map(shape).collect()
    }

    /// The graph's inputs for a group.
    fn gather<E: Engine>(&self, engine: &E, requests: &[Request], group: &Group) -> Result<Inputs<E>> {
        let members: SmallVec<[_; 8]> = group.members.iter().map(|&member| &requests[member]).collect();
        let mut given = group.shapes.iter();
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for Input { port, source } in &self.inputs {
            inputs.push(match source {
                Source::Batch(made) => {
                    let tensor = made.tensor(&members)?;
                    accept(port, &tensor.shape)?;
                    let value = engine.gather(port, &tensor.shape, &[&tensor])?;
                    Some(Given { shape: tensor.shape, value })
                }
                Source::Requests { .. } => match given.next() {
                    Some(Some(shape)) => {
                        let parts = members.iter().map(|request| request.input(&port.name));
                        let parts = parts.collect::<Result<SmallVec<[_; 8]>>>()?;
                        Some(Given { shape: shape.clone(), value: engine.gather(port, shape, &parts)? })
                    }
                    _ => None,
                },
            });
        }
        Ok(inputs)
    }

    /// Where the one request of a group wants its outputs; nothing for a group of several, whose outputs are parts of
    /// larger ones. An output whose size shows only when the model has run has no target.
    ///
    /// # Errors
    /// What the request's allocator says.
    fn targets(&self, requests: &[Request], group: &Group) -> Result<Targets> {
        let [member] = group.members[..] else { return Ok(Targets::new()) };
        let request = &requests[member];
        let mut targets = Targets::new();
        if !request.responder().places_outputs() {
            return Ok(targets);
        }
        for (at, output) in self.outputs.iter().enumerate() {
            let Some((shape, byte_size)) = self.expected(output, request) else { continue };
            let spec = OutputSpec {
                name: &output.port.name,
                data_type: output.port.data_type,
                shape: output.shape.as_ref().unwrap_or(&shape),
                byte_size,
                preferred: Memory::HOST,
            };
            if targets.is_empty() {
                request.responder().begin_response()?;
                targets.resize_with(self.outputs.len(), || None);
            }
            let memory = request.responder().place(&spec)?;
            targets[at] = memory.and_then(|mut memory| {
                memory.as_mut_slice().is_some_and(|bytes| bytes.len() == byte_size).then_some(())?;
                Some(Target { shape, memory })
            });
        }
        Ok(targets)
    }

    /// The shape and size in bytes of an output that this request alone gets, where the model says so beforehand.
    fn expected(&self, output: &Output, request: &Request) -> Option<(Shape, usize)> {
        // What is kept of a sequence does not lie where a client can write to it.
        if output.scatter.is_some() || output.is_state || !output.is_wanted(request) {
            return None;
        }
        let batch = self.batching.then(|| request.batch_size() as i64);
        let dims = output.port.dims.as_ref()?.iter().enumerate();
        let shape: Shape = dims
            .map(|(axis, &dim)| match (axis, batch) {
                (0, Some(batch)) => dim.is_none_or(|dim| dim == batch).then_some(batch),
                _ => dim,
            })
            .collect::<Option<_>>()?;
        let byte_size = shape.element_count()?.checked_mul(output.port.data_type.byte_size()?)?;
        (byte_size > 0).then_some((shape, byte_size))
    }

    /// The response to each member of a group.
    fn scatter<E: Engine>(
        &self,
        engine: &E,
        requests: &[Request],
        group: &Group,
        values: Vec<Option<E::Raw>>,
        targets: Targets,
    ) -> Result<Vec<Result<Response>>> {
        let members: SmallVec<[_; 8]> = group.members.iter().map(|&member| &requests[member]).collect();
        let mut responses: Vec<Result<Response>> = members.iter().map(|_| Ok(Response::default())).collect();
        let mut targets = targets.into_iter();
        for (output, value) in self.outputs.iter().zip(values) {
            let name = &output.port.name;
            let target = targets.next().flatten();
            if !members.iter().any(|request| output.is_wanted(request) || output.is_kept(request)) {
                continue;
            }
            let (shape, contents) = match (value, target) {
                (Some(value), _) => engine.read(&output.port, value)?,
                (None, Some(target)) => (target.shape, Contents::Placed(target.memory.freeze()?)),
                (None, None) => return Err(Error::internal(format!("output '{name}' was not given"))),
            };
            let parts = self.parts(output, shape, &members)?;
            for ((request, response), part) in members.iter().zip(&mut responses).zip(parts) {
                if !output.is_wanted(request) && !output.is_kept(request) {
                    continue;
                }
                if let Ok(filled) = response {
                    let given = contents.part(part.range, part.of).map(|buffer| Tensor {
                        name: name.clone(),
                        data_type: output.port.data_type,
                        shape: part.shape,
                        buffers: SmallVec::from_buf([buffer]),
                    });
                    match given.and_then(|given| output.keep(request, given, members.len() > 1)) {
                        Ok(given) => filled.outputs.extend(output.is_wanted(request).then_some(given)),
                        Err(error) => *response = Err(error),
                    }
                }
            }
        }
        Ok(responses)
    }

    /// The part of an output that belongs to each member of a group.
    fn parts(&self, output: &Output, shape: Shape, members: &[&Request]) -> Result<Vec<Part>> {
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

impl Output {
    fn is_wanted(&self, request: &Request) -> bool {
        self.answered && request.wants(&self.port.name)
    }

    /// Whether it replaces a state of the request's sequence. Those of fillers are nobody's.
    fn is_kept(&self, request: &Request) -> bool {
        self.is_state && !request.is_filler() && request.states().is_some()
    }

    /// Keeps what was given for it, if it is a state. A part of an output of several requests would keep all of it.
    fn keep(&self, request: &Request, given: Tensor, is_part: bool) -> Result<Tensor> {
        if self.is_kept(request)
            && let Some(states) = request.states()
        {
            let kept = if is_part {
                [Buffer::host(given.contiguous()?.into_owned())].into_iter().collect()
            } else {
                given.buffers.clone()
            };
            states.update(&given.name, given.data_type, given.shape.clone(), kept)?;
        }
        Ok(given)
    }
}

/// What holds for every engine, and then what holds for this one.
fn check<E: Engine>(engine: &E, port: &Port, tensor: &Tensor) -> Result<()> {
    if tensor.data_type != port.data_type {
        return Err(Error::invalid_arg(format!(
            "input '{}' is of type {}, but the model takes {}",
            port.name, tensor.data_type, port.data_type
        )));
    }
    tensor.check_contents()?;
    // A string is at least its handle in memory.
    if impossible_size(tensor, port.data_type.byte_size().unwrap_or(size_of::<String>())) {
        return Err(Error::invalid_arg(format!(
            "input '{}' has the impossible shape {}",
            port.name, tensor.shape
        )));
    }
    engine.check(port, tensor)
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

/// Whether inputs of these shapes differ in their first dimension at most. Of a model that takes batches, no input may
/// be left out.
fn joinable(one: &Shapes, other: &Shapes) -> bool {
    one.iter().zip(other).all(|pair| match pair {
        (Some(one), Some(other)) => one.get(1..) == other.get(1..),
        _ => false,
    })
}

#[cfg(test)]
mod tests;
