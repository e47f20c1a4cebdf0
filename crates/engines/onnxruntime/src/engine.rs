//! Runs a session on a batch's inputs.
//!
//! Knows nothing of how requests make a batch.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use nereid_backend_api::{Error, Result, Shape, Tensor};
use nereid_graph_executor::{
    Contents, Elements, Engine, GraphModel, Port, RunInput, Target, Words, fits_address,
};
use ort::session::RunOptions;

use crate::binding::{Binding, OutputMemory};
use crate::memory::{Raw, Value};
use crate::one_line;
use crate::options::{OwnSession, SessionOptions};
use crate::short_runs::ShortRuns;

/// One instance's session.
pub(crate) struct OrtEngine {
    binding: Binding,
    model: Arc<GraphModel>,
    options: RunOptions,
    /// An operator of the model that ends the process where an input has no elements.
    fatal_on_empty: Option<&'static str>,
    /// Whether outputs had the shapes that the model declares, as far as was seen.
    declares_truly: bool,
    /// Where runs are counted, if the model may have short ones.
    short_runs: Option<Arc<ShortRuns>>,
    /// Memory of earlier copies, for the next. No more than a run has inputs.
    spare: RefCell<Vec<Words>>,
}

impl OrtEngine {
    pub(crate) fn new(
        session: OwnSession,
        model: &Arc<GraphModel>,
        options: &SessionOptions,
        fatal_on_empty: Option<&'static str>,
        short_runs: Option<Arc<ShortRuns>>,
    ) -> Result<Self> {
        let inputs = model.inputs.iter().map(|input| input.port.name.as_str());
        let outputs = model.outputs.iter().map(|output| output.port.name.as_str());
        let binding = Binding::new(session, inputs, outputs).map_err(failed)?;
        let (model, options) = (Arc::clone(model), options.run_options()?);
        let spare = RefCell::default();
        Ok(Self { binding, model, options, fatal_on_empty, declares_truly: true, short_runs, spare })
    }

    fn outputs(
        &mut self,
        inputs: &[(usize, RunInput<Value>)],
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<Raw>>> {
        let model = &self.model;
        let mut feeds = Vec::with_capacity(inputs.len());
        for (at, given) in inputs {
            let data_type = model.inputs[*at].port.data_type;
            feeds.push((*at, given.value.feed(data_type, &given.shape).map_err(failed)?));
        }
        let mut written: Vec<_> = if self.declares_truly {
            targets
                .iter_mut()
                .zip(&model.outputs)
                .map(|(target, output)| written(target, &output.port))
                .collect()
        } else {
            Vec::new()
        };
        let mut outputs = self.binding.run(&self.options, &feeds, &mut written);
        if outputs.is_err() && written.iter().any(Option::is_some) {
            // A model may declare other shapes than it returns, which the library accepts if it chooses the memory.
            outputs = self.binding.run(&self.options, &feeds, &mut []);
            self.declares_truly &= outputs.is_err();
        }
        let addresses: Vec<_> = inputs.iter().map(|(_, given)| given.value.addresses()).collect();
        let taken = outputs.map_err(failed)?.into_iter().zip(&model.outputs).map(|(value, output)| {
            let raw = value.map(|value| Raw::of(value, &addresses)).transpose();
            raw.map_err(|error| error.context(named(&output.port.name)))
        });
        taken.collect()
    }
}

impl Engine for OrtEngine {
    const WRITES_TARGETS: bool = true;

    type Value = Value;
    type Raw = Raw;

    fn check(&self, port: &Port, tensor: &Tensor) -> Result<()> {
        match self.fatal_on_empty {
            Some(operator) if tensor.shape.contains(&0) => Err(Error::invalid_arg(format!(
                "input '{}' has no elements (shape {}), on which ONNX Runtime ends the process in the model's operator \
                 {operator}",
                port.name, tensor.shape
            ))),
            _ => Ok(()),
        }
    }

    fn gather(&self, port: &Port, shape: &Shape, parts: &[&Tensor]) -> Result<Value> {
        Value::gather(port.data_type, shape, parts, || self.spare.borrow_mut().pop().unwrap_or_default())
    }

    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<Value>>>,
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<Raw>>> {
        if self.model.outputs.is_empty() {
            // Nothing of it would be seen, and the library refuses to run for nothing.
            return Ok(Vec::new());
        }
        let inputs = inputs.into_iter().enumerate();
        let inputs: Vec<_> = inputs.filter_map(|(at, given)| Some((at, given?))).collect();
        let elements = inputs.iter().map(|(_, given)| given.shape.element_count()).sum::<Option<usize>>();
        let start = Instant::now();
        let outcome = self.outputs(&inputs, targets);
        if let Some((runs, elements)) = self.short_runs.as_ref().zip(elements) {
            runs.add(elements, start.elapsed());
        }
        let mut spare = self.spare.borrow_mut();
        for (_, given) in inputs {
            if let Value::Fixed(Elements::Copied(words, _)) = given.value
                && spare.len() < self.model.inputs.len()
            {
                spare.push(words);
            }
        }
        outcome
    }

    fn read(&self, port: &Port, output: Raw) -> Result<(Shape, Contents)> {
        output.read(port.data_type).map_err(|error| error.context(named(&port.name)))
    }
}

/// The target as memory to write to, if elements of that type can be written where it lies.
fn written<'a>(target: &'a mut Option<Target>, port: &Port) -> Option<OutputMemory<'a>> {
    let Target { shape, memory } = target.as_mut()?;
    let bytes = memory.as_mut_slice()?;
    let data_type = port.data_type;
    fits_address(data_type, bytes).then_some(OutputMemory { data_type, shape, bytes })
}

fn failed(error: ort::Error) -> Error {
    Error::internal(format!("ONNX Runtime failed: {}", one_line(error.message())))
}

fn named(output: &str) -> String {
    format!("output '{output}'")
}
