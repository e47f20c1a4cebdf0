//! Runs a session on a batch's inputs.
//!
//! Knows nothing of how requests make a batch.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use nereid_backend_api::{Error, Result, Shape, Tensor};
use nereid_onnx::{Contents, Engine, Given, Port, Served};
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions};

use crate::memory::{Raw, Value, Words};
use crate::one_line;
use crate::options::{OwnSession, SessionOptions};

/// One instance's session.
pub(crate) struct OrtEngine {
    session: OwnSession,
    model: Arc<Served>,
    options: RunOptions<HasSelectedOutputs>,
    /// Memory of earlier copies, for the next. No more than a run has inputs.
    spare: RefCell<Vec<Words>>,
}

impl OrtEngine {
    pub(crate) fn new(session: OwnSession, model: &Arc<Served>, options: &SessionOptions) -> Result<Self> {
        let names = model.outputs.iter().map(|output| output.port.name.as_str());
        let outputs = names.fold(OutputSelector::no_default(), OutputSelector::with);
        let options = options.run_options()?.with_outputs(outputs);
        Ok(Self { session, model: Arc::clone(model), options, spare: RefCell::default() })
    }

    fn outputs(&mut self, inputs: &[(&str, &Port, Given<Value>)]) -> Result<Vec<Raw>> {
        let failed = |error: ort::Error| {
            Error::internal(format!("ONNX Runtime failed: {}", one_line(error.message())))
        };
        let mut feeds = Vec::with_capacity(inputs.len());
        for (name, port, given) in inputs {
            let value = given.value.feed(port.data_type, &given.shape).map_err(failed)?;
            feeds.push((Cow::Borrowed(*name), value));
        }
        let mut outputs = self.session.run_with_options(feeds, &self.options).map_err(failed)?;
        let addresses: Vec<_> = inputs.iter().map(|(.., given)| given.value.addresses()).collect();
        let taken = self.model.outputs.iter().map(|output| {
            let name = &output.port.name;
            let value = outputs.remove(name).ok_or_else(|| Error::internal("the graph did not give it"));
            value.and_then(|value| Raw::of(value, &addresses)).map_err(|error| error.context(named(name)))
        });
        taken.collect()
    }
}

impl Engine for OrtEngine {
    type Value = Value;
    type Raw = Raw;

    fn check(&self, _port: &Port, _tensor: &Tensor) -> Result<()> {
        Ok(())
    }

    fn gather(&self, port: &Port, shape: &Shape, parts: &[&Tensor]) -> Result<Value> {
        Value::gather(port.data_type, shape, parts, || self.spare.borrow_mut().pop().unwrap_or_default())
    }

    fn run(&mut self, inputs: Vec<Option<Given<Value>>>) -> Result<Vec<Raw>> {
        if self.model.outputs.is_empty() {
            // Nothing of it would be seen, and the library refuses to run for nothing.
            return Ok(Vec::new());
        }
        let model = Arc::clone(&self.model);
        let named = model.inputs.iter().zip(inputs);
        let inputs: Vec<_> =
            named.filter_map(|(input, given)| Some((&*input.port.name, &input.port, given?))).collect();
        let outcome = self.outputs(&inputs);
        let mut spare = self.spare.borrow_mut();
        for (.., given) in inputs {
            if let Value::Copied(words, _) = given.value
                && spare.len() < model.inputs.len()
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

fn named(output: &str) -> String {
    format!("output '{output}'")
}
