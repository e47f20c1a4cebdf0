//! Checks a model's configuration against its graph.
//!
//! The configuration may fix a dimension that is variable in the graph, but not the other way round.

use nereid_backend_api::{BatchInput, BatchOutput, DataType, Error, ModelConfig, Result, Shape};
use nereid_model_config::proto::ModelSequenceBatching;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::model_sequence_batching::State;

use crate::model::Output;
use crate::signature::{Port, Signature};

/// An input or output in the configuration.
struct ConfiguredTensor<'a> {
    role: &'static str,
    name: &'a str,
    data_type: Option<DataType>,
    dims: Dims<'a>,
}

/// The configuration's requirements for the graph's dimensions.
enum Dims<'a> {
    /// These behind the batch dimension; where they have -1, so must the graph.
    Exactly(&'a [i64]),
    /// A single dimension, over the elements of all requests.
    Ragged,
    /// These behind the batch dimension, where -1 matches any size.
    Matching(&'a [i64]),
    /// Nothing: only the slices that requests get have the configured dimensions.
    Any,
}

impl Signature {
    /// Takes the configured inputs and outputs, for models whose files declare neither types nor dimensions. They all
    /// match, and the model's results are checked against them.
    ///
    /// # Errors
    /// `InvalidArg` that names an input or output without a type.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        let batching = config.max_batch_size > 0;
        let port = |role: &str, name: &str, data_type: Option<DataType>, dims: &[i64]| {
            let missing =
                || Error::invalid_arg(format!("{role} '{name}' has no data_type in the configuration"));
            let own = dims.iter().map(|&dim| (dim >= 0).then_some(dim));
            let dims = batching.then_some(None).into_iter().chain(own).collect();
            Ok(Port { name: name.to_owned(), data_type: data_type.ok_or_else(missing)?, dims: Some(dims) })
        };
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        for input in &config.input {
            let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
            let mut input_port = port("input", &input.name, input.data_type().element_type(), dims)?;
            if input.allow_ragged_batch {
                input_port.dims = Some([None].into_iter().collect());
            }
            inputs.push(input_port);
        }
        for (name, data_type) in controls(config) {
            inputs.push(port("input", name, data_type, &[1])?);
        }
        for batch_input in BatchInput::all(config)? {
            let name = batch_input.target().to_owned();
            let dims = batch_input.dims().iter().map(|&dim| (dim >= 0).then_some(dim)).collect();
            inputs.push(Port { name, data_type: batch_input.data_type(), dims: Some(dims) });
        }
        for output in &config.output {
            let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
            outputs.push(port("output", &output.name, output.data_type().element_type(), dims)?);
        }
        for state in states(config) {
            let data_type = state.data_type().element_type();
            inputs.push(port("input", &state.input_name, data_type, &state.dims)?);
            if !config.output.iter().any(|output| output.name == state.output_name) {
                outputs.push(port("output", &state.output_name, data_type, &state.dims)?);
            }
        }
        Ok(Self { inputs, outputs })
    }
}

/// Checks that each configured input exists and fits, and that each input that the graph needs is configured.
///
/// # Errors
/// `InvalidArg` that names the input and what it should be.
pub(crate) fn inputs(config: &ModelConfig, batch_inputs: &[BatchInput], signature: &Signature) -> Result<()> {
    let batching = config.max_batch_size > 0;
    for input in &config.input {
        let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        let dims = if input.allow_ragged_batch { Dims::Ragged } else { Dims::Exactly(dims) };
        let data_type = input.data_type().element_type();
        find(
            &signature.inputs,
            ConfiguredTensor { role: "input", name: &input.name, data_type, dims },
            batching,
        )?;
    }
    for (name, data_type) in controls(config) {
        let dims = Dims::Exactly(&[1]);
        find(&signature.inputs, ConfiguredTensor { role: "input", name, data_type, dims }, batching)?;
    }
    for state in states(config) {
        let (name, data_type) = (&state.input_name, state.data_type().element_type());
        let dims = Dims::Matching(&state.dims);
        find(&signature.inputs, ConfiguredTensor { role: "input", name, data_type, dims }, batching)?;
    }
    let listed = |port: &&Port| {
        config.input.iter().any(|input| input.name == port.name)
            || controls(config).any(|(name, _)| name == port.name)
            || states(config).any(|state| state.input_name == port.name)
            || batch_inputs.iter().any(|made| made.target() == port.name)
    };
    let missing = signature.inputs.iter().filter(|port| !listed(port));
    let missing: Vec<_> = missing
        .map(|port| format!("'{}' ({} {})", port.name, port.data_type, port.describe_dims()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let inputs = if missing.len() == 1 { "input" } else { "inputs" };
    let missing = missing.join(", ");
    Err(Error::invalid_arg(if config.input.is_empty() {
        format!(
            "the model needs the {inputs} {missing}, but the configuration has no field 'input': list all inputs, or \
             let the server complete the configuration"
        )
    } else {
        format!("the model needs the {inputs} {missing}, which the configuration does not list")
    }))
}

/// Checks the configured outputs and returns them in order, followed by those that only update states. The
/// configuration may list only some of the graph's outputs, or none: responses then have no outputs.
///
/// # Errors
/// `InvalidArg` that names the output and what it should be.
pub(crate) fn outputs(config: &ModelConfig, signature: &Signature) -> Result<Vec<Output>> {
    let batching = config.max_batch_size > 0;
    let batch_outputs = BatchOutput::all(config)?;
    let is_state = |name: &str| states(config).any(|state| state.output_name == name);
    let configured = config.output.iter().map(|output| {
        let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
        let data_type = output.data_type().element_type();
        let scatter = batch_outputs.iter().find(|cut| cut.target() == output.name).cloned();
        let required = if scatter.is_some() { Dims::Any } else { Dims::Exactly(dims) };
        let configured = ConfiguredTensor { role: "output", name: &output.name, data_type, dims: required };
        let port = find(&signature.outputs, configured, batching)?.clone();
        let shape = port.is_scalar().then(|| Shape::from(dims.as_slice()));
        Ok(Output { port, shape, scatter, in_response: true, is_state: is_state(&output.name) })
    });
    let mut outputs = configured.collect::<Result<Vec<_>>>()?;
    for state in states(config) {
        let (name, data_type) = (&state.output_name, state.data_type().element_type());
        let dims = Dims::Matching(&state.dims);
        let port =
            find(&signature.outputs, ConfiguredTensor { role: "output", name, data_type, dims }, batching)?;
        if !outputs.iter().any(|output| output.port.name == port.name) {
            let shape = port.is_scalar().then(|| Shape::from(state.dims.as_slice()));
            outputs.push(Output {
                port: port.clone(),
                shape,
                scatter: None,
                in_response: false,
                is_state: true,
            });
        }
    }
    Ok(outputs)
}

fn find<'a>(ports: &'a [Port], configured: ConfiguredTensor<'_>, batching: bool) -> Result<&'a Port> {
    let ConfiguredTensor { role, name, data_type, dims } = configured;
    let Some(port) = ports.iter().find(|port| port.name == name) else {
        return Err(Error::invalid_arg(format!(
            "unknown {role} '{name}' in the configuration (the model's {role}s: {})",
            names(ports)
        )));
    };
    match data_type {
        Some(data_type) if data_type == port.data_type => {}
        Some(data_type) => {
            return Err(Error::invalid_arg(format!(
                "{role} '{name}' is {data_type} in the configuration, but {} in the model",
                port.data_type
            )));
        }
        None => {
            return Err(Error::invalid_arg(format!(
                "{role} '{name}' has no data_type in the configuration (it is {} in the model): complete each {role}, \
                 or remove all {role}s to have them completed",
                port.data_type
            )));
        }
    }
    let (dims, exactly) = match dims {
        Dims::Exactly(dims) => (dims, true),
        Dims::Matching(dims) => (dims, false),
        Dims::Ragged => return ragged(port),
        Dims::Any => return Ok(port),
    };
    let mut shape = Shape::from(dims);
    if batching {
        shape.push_front(-1);
        if port.dims.as_ref().is_some_and(|dims| dims.first().is_some_and(Option::is_some)) {
            return Err(Error::invalid_arg(format!(
                "max_batch_size is above 0, so the first dimension of {role} '{name}' must be variable, but the model \
                 has {}; set max_batch_size to 0 and list all dimensions",
                port.describe_dims()
            )));
        }
    }
    let scalar = port.is_scalar() && !batching && shape.element_count() == Some(1);
    if scalar || if exactly { port.accepts_all(&shape) } else { port.accepts(&shape) } {
        return Ok(port);
    }
    let batch = if batching { " with the batch dimension" } else { "" };
    Err(Error::invalid_arg(format!(
        "{role} '{name}' has shape {shape}{batch} in the configuration, but {} in the model",
        port.describe_dims()
    )))
}

fn ragged(port: &Port) -> Result<&Port> {
    if port.dims.as_deref() == Some(&[None]) {
        return Ok(port);
    }
    Err(Error::invalid_arg(format!(
        "input '{}' has allow_ragged_batch, so the model must take the elements of a batch in one variable dimension, \
         [-1], but it takes {}",
        port.name,
        port.describe_dims()
    )))
}

fn names(ports: &[Port]) -> String {
    let names: Vec<_> = ports.iter().map(|port| format!("'{}'", port.name)).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn sequence_batching(config: &ModelConfig) -> Option<&ModelSequenceBatching> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => Some(sequence),
        _ => None,
    }
}

/// The control inputs with their types. They inform the model about the sequence and are not listed as inputs.
fn controls(config: &ModelConfig) -> impl Iterator<Item = (&str, Option<DataType>)> {
    let inputs = sequence_batching(config).into_iter().flat_map(|sequence| &sequence.control_input);
    inputs.flat_map(|input| {
        input.control.iter().map(|control| {
            let data_type = if !control.int32_false_true.is_empty() {
                Some(DataType::Int32)
            } else if !control.fp32_false_true.is_empty() {
                Some(DataType::Fp32)
            } else if !control.bool_false_true.is_empty() {
                Some(DataType::Bool)
            } else {
                control.data_type().element_type()
            };
            (input.name.as_str(), data_type)
        })
    })
}

fn states(config: &ModelConfig) -> impl Iterator<Item = &State> {
    sequence_batching(config).into_iter().flat_map(|sequence| &sequence.state)
}
