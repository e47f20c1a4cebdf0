//! Runs batches: groups requests whose inputs fit together, gathers the inputs of each group along the batch dimension
//! (ragged ones element by element), adds the batch inputs, runs the engine, and scatters the outputs to the requests.
//!
//! Knows nothing of files and configurations; [`GraphModel`] holds what was learnt from them.

use std::ops::Range;
use std::sync::Arc;

use nereid_backend_api::{
    Batch, BatchOutput, Error, Instance, Memory, OutputSpec, Request, Response, Result, Shape, Tensor,
};
use smallvec::{SmallVec, smallvec};

use crate::contents::{Contents, exceeds_memory};
use crate::engine::{Engine, RunInput, Target};
use crate::inputs::{Input, Source};
use crate::model::{GraphModel, Output, Shapes};
use crate::signature::Port;

/// Executes batches of one model: an instance.
pub struct Executor<E> {
    model: Arc<GraphModel>,
    engine: E,
}

/// Requests that go through the graph together.
struct Group {
    /// Their indices in the batch.
    members: SmallVec<[usize; 8]>,
    /// The joint shapes of the inputs that requests provide, in the graph's order.
    shapes: Shapes,
}

/// A request's part of an output.
struct Part {
    /// The request's range among the output's units: batch items or elements.
    range: Range<usize>,
    /// The number of units that the whole output has.
    total: usize,
    shape: Shape,
}

type Outcomes = Vec<Option<Result<Response>>>;
type Inputs<E> = Vec<Option<RunInput<<E as Engine>::Value>>>;
type Targets = SmallVec<[Option<Target>; 2]>;

impl<E: Engine> Executor<E> {
    /// An instance of the model.
    pub fn new(model: Arc<GraphModel>, engine: E) -> Self {
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
                if E::WRITES_TARGETS { model.targets::<E>(batch.requests(), group)? } else { Targets::new() };
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

impl GraphModel {
    /// Sorts the requests into groups whose inputs can be joined. A request with an error gets it as its outcome.
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

    /// The shapes of the inputs that a request provides, in the graph's order.
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
                    Some(RunInput { shape: tensor.shape, value })
                }
                Source::Requests { .. } => match given.next() {
                    Some(Some(shape)) => {
                        let parts = members.iter().map(|request| request.input(&port.name));
                        let mut shape = shape.clone();
                        let padding = self.padding(port, &mut shape)?;
                        let mut parts = parts.collect::<Result<SmallVec<[_; 8]>>>()?;
                        parts.extend(&padding);
                        let value = engine.gather(port, &shape, &parts)?;
                        Some(RunInput { shape, value })
                    }
                    _ => None,
                },
            });
        }
        Ok(inputs)
    }

    /// Zeros that fill an input up to the size of the graph's batches. `shape` becomes the shape of both.
    fn padding(&self, port: &Port, shape: &mut Shape) -> Result<Option<Tensor>> {
        let Some(size) = self.padded_to.map(|size| size as i64) else { return Ok(None) };
        let Some(first) = shape.first_mut().filter(|first| **first < size) else { return Ok(None) };
        let missing = size - *first;
        *first = size;
        let mut padding = shape.clone();
        padding[0] = missing;
        // The length of an empty string takes four bytes.
        let element = port.data_type.byte_size().unwrap_or(size_of::<u32>());
        let byte_size = padding.element_count().and_then(|count| count.checked_mul(element));
        let byte_size = byte_size.filter(|&size| size <= isize::MAX as usize).ok_or_else(|| {
            Error::invalid_arg(format!("input '{}': shape {shape} exceeds the address space", port.name))
        })?;
        Ok(Some(Tensor::new(port.name.clone(), port.data_type, padding, vec![0; byte_size])))
    }

    /// The memory that the client chose for each output, for a group of one request: the outputs of a larger group are
    /// parts of one buffer. An output of unknown size has no target.
    ///
    /// # Errors
    /// The error of the request's allocator.
    fn targets<E: Engine>(&self, requests: &[Request], group: &Group) -> Result<Targets> {
        let [member] = group.members[..] else { return Ok(Targets::new()) };
        let request = &requests[member];
        let mut targets = Targets::new();
        if !request.responder().places_outputs() {
            return Ok(targets);
        }
        for (at, output) in self.outputs.iter().enumerate() {
            let Some((shape, byte_size)) = output.expected(request, self.batching) else { continue };
            let spec = OutputSpec {
                name: &output.port.name,
                data_type: output.port.data_type,
                shape: output.shape.as_ref().unwrap_or(&shape),
                byte_size,
                preferred: Memory::HOST,
                is_read_back: E::READS_TARGETS,
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
            if !members.iter().any(|request| output.is_requested(request) || output.updates_state(request)) {
                continue;
            }
            let (shape, contents) = match (value, target) {
                (Some(value), _) => engine.read(&output.port, value)?,
                (None, Some(target)) => (target.shape, Contents::Placed(target.memory.freeze()?)),
                (None, None) => {
                    return Err(Error::internal(format!("the engine did not return output '{name}'")));
                }
            };
            let parts = self.parts(output, shape, &members)?;
            for ((request, response), part) in members.iter().zip(&mut responses).zip(parts) {
                if !output.is_requested(request) && !output.updates_state(request) {
                    continue;
                }
                if let Ok(filled) = response {
                    let tensor = contents.part(part.range, part.total).map(|buffer| Tensor {
                        name: name.clone(),
                        data_type: output.port.data_type,
                        shape: part.shape,
                        buffers: SmallVec::from_buf([buffer]),
                    });
                    match tensor.and_then(|tensor| output.store_state(request, tensor, members.len() > 1)) {
                        Ok(tensor) => filled.outputs.extend(output.is_requested(request).then_some(tensor)),
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
            return scatter_elements(scatter, &shape, members);
        }
        if !self.batching {
            let shape = output.shape.clone().unwrap_or(shape);
            return Ok(members
                .iter()
                .map(|_| Part { range: 0..1, total: 1, shape: shape.clone() })
                .collect());
        }
        let total: usize = members.iter().map(|request| request.batch_size()).sum();
        let total = self.padded_to.map_or(total, |size| size.max(total));
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
            Part { range, total, shape }
        };
        Ok(members.iter().map(part).collect())
    }
}

/// Checks a tensor against the rules of all engines, then the rules of this one.
fn check<E: Engine>(engine: &E, port: &Port, tensor: &Tensor) -> Result<()> {
    if tensor.data_type != port.data_type {
        return Err(Error::invalid_arg(format!(
            "input '{}' has datatype {}, but the model takes {}",
            port.name, tensor.data_type, port.data_type
        )));
    }
    tensor.check_contents()?;
    // A string takes at least its handle in memory.
    if exceeds_memory(tensor, port.data_type.byte_size().unwrap_or(size_of::<String>())) {
        return Err(Error::invalid_arg(format!(
            "input '{}': shape {} exceeds the address space",
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

/// The parts of an output in which the requests' elements follow one another. Elements behind the last part are dropped.
fn scatter_elements(scatter: &BatchOutput, whole: &Shape, members: &[&Request]) -> Result<Vec<Part>> {
    let total = whole.element_count().unwrap_or(0);
    let mut start = 0_usize;
    let part = |request: &&Request| {
        let shape = scatter.shape(request)?;
        let end =
            shape.element_count().and_then(|count| start.checked_add(count)).filter(|&end| end <= total);
        let Some(end) = end else {
            return Err(Error::internal(format!(
                "output '{}' has shape {whole}, fewer elements than the batch_output's source inputs have",
                scatter.target()
            )));
        };
        let range = start..end;
        start = end;
        Ok(Part { range, total, shape })
    };
    members.iter().map(part).collect()
}

/// Whether inputs of these shapes can be joined: all of them are present and differ in the first dimension only.
fn joinable(one: &Shapes, other: &Shapes) -> bool {
    one.iter().zip(other).all(|pair| match pair {
        (Some(one), Some(other)) => one.get(1..) == other.get(1..),
        _ => false,
    })
}

#[cfg(test)]
mod tests;
