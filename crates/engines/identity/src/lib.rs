//! The identity backend: returns its inputs as its outputs, without copying them. For tests and benchmarks, with the
//! options of Triton's backend of that name.
//!
//! Input `INPUT<suffix>` becomes output `OUTPUT<suffix>`. If a request omits an optional input, the output has the
//! configured shape, filled with zeros or empty strings. Parameters of the configuration:
//! - `execute_delay_ms`: delays each execution;
//! - `instance_wise_delay_multiplier`: if not 0, instance n waits n times this factor times the delay;
//! - `creation_delay_sec`: delays loading.
//!
//! Two more, which Triton's backend lacks, hold the model until a test releases it:
//! - `gate`: the path of a Unix socket. Each execution connects to it, writes the instance's name and the number of
//!   requests (`m_0_0 3`), and continues when the other side writes anything or closes the connection;
//! - `creation_gate`: the same for loading, which writes the model's name and version (`m 1`).
//!
//! A gate without a listener is open, so a configuration with a gate can be served anywhere. An execution waits at its
//! gate even if its clients cancel.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod gate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use nereid_backend_api::{
    Backend, Batch, DataType, Error, Instance, InstanceContext, Model, ModelCapabilities, ModelConfig,
    ModelContext, ParameterValue, Parameters, Request, Response, Result, Shape, SharedInputs, Tensor,
};

use crate::gate::Gate;

/// The identity backend.
#[derive(Debug, Default)]
pub struct IdentityBackend;

impl Backend for IdentityBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let config = &context.config;
        check_pairs(config)?;
        sleep(Duration::from_secs(number(config, "creation_delay_sec")?));
        if let Some(gate) = Gate::configured(config, "creation_gate") {
            gate.pass(&format!("{} {}", context.name, context.version));
        }
        let model = IdentityModel {
            execute_delay: Duration::from_millis(number(config, "execute_delay_ms")?),
            delay_multiplier: u32::try_from(number(config, "instance_wise_delay_multiplier")?)
                .unwrap_or(u32::MAX),
            gate: Gate::configured(config, "gate"),
            optional: optional_inputs(config),
            instances: AtomicU32::new(0),
        };
        Ok(Box::new(model))
    }
}

struct IdentityModel {
    execute_delay: Duration,
    delay_multiplier: u32,
    gate: Option<Gate>,
    optional: Arc<[OptionalInput]>,
    instances: AtomicU32,
}

impl Model for IdentityModel {
    fn capabilities(&self) -> ModelCapabilities {
        // No value is looked at.
        ModelCapabilities { shared_inputs: SharedInputs::InPlace, ..ModelCapabilities::default() }
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let number = self.instances.fetch_add(1, Ordering::Relaxed);
        let factor = self.delay_multiplier.saturating_mul(number).max(1);
        let delay = self.execute_delay.saturating_mul(factor);
        let (gate, optional) = (self.gate.clone(), Arc::clone(&self.optional));
        Ok(Box::new(IdentityInstance { name: context.name, delay, gate, optional }))
    }

    fn runs_at_once(&self, _request: &Request) -> bool {
        self.execute_delay.is_zero() && self.gate.is_none()
    }
}

struct IdentityInstance {
    name: String,
    delay: Duration,
    gate: Option<Gate>,
    optional: Arc<[OptionalInput]>,
}

impl Instance for IdentityInstance {
    fn execute(&mut self, mut batch: Batch) {
        batch.inputs_ready();
        if let Some(gate) = &self.gate {
            gate.pass(&format!("{} {}", self.name, batch.requests().len()));
        }
        if !self.delay.is_zero() {
            sleep(self.delay);
        }
        batch.outputs_ready();
        let responses: Vec<_> =
            batch.requests().iter().map(|request| Ok(respond(request, &self.optional))).collect();
        batch.complete(responses);
    }
}

/// An optional input.
struct OptionalInput {
    name: String,
    data_type: DataType,
    /// Without the batch dimension.
    dims: Vec<i64>,
    is_batched: bool,
}

fn optional_inputs(config: &ModelConfig) -> Arc<[OptionalInput]> {
    let optional = config.input.iter().filter(|input| input.optional);
    let described = optional.filter_map(|input| {
        let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        Some(OptionalInput {
            name: input.name.clone(),
            data_type: input.data_type().element_type()?,
            // Variable dimensions become 1.
            dims: dims.iter().map(|&dim| if dim < 0 { 1 } else { dim }).collect(),
            is_batched: config.max_batch_size > 0,
        })
    });
    described.collect()
}

impl OptionalInput {
    /// The output for a request that omits the input; `None` if it is too large for this machine.
    fn blank(&self, name: String, batch_size: usize) -> Option<Tensor> {
        let batch = self.is_batched.then(|| i64::try_from(batch_size)).transpose().ok()?;
        let shape: Shape = batch.into_iter().chain(self.dims.iter().copied()).collect();
        // An empty string takes the four bytes of its length.
        let element = self.data_type.byte_size().unwrap_or(4);
        let mut contents = Vec::new();
        let size = shape.element_count()?.checked_mul(element)?;
        contents.try_reserve_exact(size).ok()?;
        contents.resize(size, 0);
        Some(Tensor::new(name, self.data_type, shape, contents))
    }
}

fn respond(request: &Request, optional: &[OptionalInput]) -> Response {
    let left_out = optional.iter().filter(|it| request.inputs.iter().all(|input| input.name != it.name));
    let blanks = left_out.filter_map(|it| {
        let name = output_name(&it.name)?;
        if request.wants(&name) { it.blank(name, request.batch_size()) } else { None }
    });
    let outputs = request.inputs.iter().filter_map(|input| {
        let name = output_name(&input.name)?;
        request.wants(&name).then(|| Tensor { name, ..input.clone() })
    });
    Response { outputs: outputs.chain(blanks).collect(), parameters: response_parameters() }
}

/// One parameter of each type, as Triton's backend sends them.
fn response_parameters() -> Parameters {
    let mut parameters = Parameters::default();
    parameters.set("param0", ParameterValue::String("an example string parameter".into()));
    parameters.set("param1", ParameterValue::Int(42));
    parameters.set("param2", ParameterValue::Bool(false));
    parameters.set("param3", ParameterValue::Double(123.123));
    parameters
}

fn output_name(input: &str) -> Option<String> {
    input.strip_prefix("INPUT").map(|suffix| ["OUTPUT", suffix].concat())
}

fn check_pairs(config: &ModelConfig) -> Result<()> {
    if config.input.len() != config.output.len() {
        return Err(Error::invalid_arg(format!(
            "the identity backend needs one output for each input, but the configuration has {} outputs and {} inputs",
            config.output.len(),
            config.input.len()
        )));
    }
    for input in &config.input {
        let name = output_name(&input.name).ok_or_else(|| {
            Error::invalid_arg(format!("input '{}' is not named INPUT<suffix>", input.name))
        })?;
        let output =
            config.output.iter().find(|output| output.name == name).ok_or_else(|| {
                Error::invalid_arg(format!("input '{}' has no output '{name}'", input.name))
            })?;
        if output.data_type != input.data_type {
            return Err(Error::invalid_arg(format!("'{}' and '{name}' differ in data_type", input.name)));
        }
        let input_dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        let output_dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
        if input_dims != output_dims {
            return Err(Error::invalid_arg(format!(
                "'{}' has shape {input_dims:?}, but '{name}' has {output_dims:?}",
                input.name
            )));
        }
    }
    Ok(())
}

/// A parameter that is a non-negative integer; 0 by default.
fn number(config: &ModelConfig, name: &str) -> Result<u64> {
    let Some(parameter) = config.parameters.get(name) else { return Ok(0) };
    parameter.string_value.trim().parse().map_err(|_| {
        Error::invalid_arg(format!(
            "parameter '{name}' is '{}', but takes a non-negative integer",
            parameter.string_value
        ))
    })
}

#[cfg(test)]
mod tests;
