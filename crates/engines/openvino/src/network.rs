//! Reads a model's network, reshapes its inputs to the configured dimensions, and describes it.
//!
//! Knows nothing of how it is run.

use std::path::Path;

use nereid_backend_api::{DataType, Error, ModelConfig, Result};
use nereid_graph_executor::{Dims, GraphModel, Port, Signature};
use smallvec::SmallVec;

use crate::Dialect;
use crate::api::Bounds;
use crate::engine::Places;
use crate::library::OpenVino;
use crate::objects::{self, Core, Network};
use crate::options::{Batching, Options};

/// A dimension of any size.
const ANY: Bounds = Bounds { min: 0, max: -1 };

/// TensorFlow's suffix for the first output of an operation.
const FIRST_OUTPUT: &str = ":0";

type Shape = SmallVec<[Bounds; 4]>;

/// A network as the configuration wants it.
pub(crate) struct PreparedNetwork {
    pub(crate) network: Network,
    pub(crate) signature: Signature,
    /// The size of the batches that the network takes, if that is fixed.
    pub(crate) padded_to: Option<usize>,
}

impl PreparedNetwork {
    /// Reads the network and reshapes it.
    ///
    /// # Errors
    /// The library rejects the file or the dimensions.
    pub(crate) fn read(
        library: &OpenVino,
        core: &Core,
        path: &Path,
        config: &ModelConfig,
        options: &Options,
        dialect: Dialect,
    ) -> Result<Self> {
        let mut network = Network::read(core, path)
            .map_err(|why| Error::invalid_arg(format!("OpenVINO cannot load {}: {why}", path.display())))?;
        let shapes = shapes(&network).map_err(|why| broken(&why))?;
        let wanted = target_shapes(&network, &shapes, config, options).map_err(|why| broken(&why))?;
        let changed: Vec<_> = wanted
            .iter()
            .enumerate()
            .filter(|(at, dims)| shapes[*at] != **dims)
            .filter_map(|(at, dims)| Some((at, dims.as_ref()?.to_vec())))
            .collect();
        if !changed.is_empty() {
            network.reshape(&changed).map_err(|why| {
                let remedy =
                    if options.reshape { "" } else { "; SKIP_OV_DYNAMIC_BATCHSIZE keeps its dimensions" };
                Error::invalid_arg(format!("the model cannot be reshaped for batches{remedy}: {why}"))
            })?;
        }
        let mut signature = signature(library, &network, config, dialect)?;
        let padded_to = if config.max_batch_size > 0 && options.batching != Batching::Variable {
            fixed_batch(&mut signature, config.max_batch_size)?
        } else {
            None
        };
        Ok(Self { network, signature, padded_to })
    }

    /// Where the model's inputs and outputs are among the network's.
    ///
    /// # Errors
    /// The library failed.
    pub(crate) fn places(&self, model: &GraphModel) -> Result<Places> {
        let place = |ports: &[Port], name: &str| {
            let at = ports.iter().position(|port| port.name == name);
            at.ok_or_else(|| Error::internal(format!("the network has no '{name}'")))
        };
        let inputs = model.inputs.iter().map(|input| place(&self.signature.inputs, &input.port.name));
        let outputs = model.outputs.iter().map(|output| place(&self.signature.outputs, &output.port.name));
        Ok(Places { inputs: inputs.collect::<Result<_>>()?, outputs: outputs.collect::<Result<_>>()? })
    }
}

fn broken(why: &str) -> Error {
    Error::invalid_arg(format!("OpenVINO cannot describe the model: {why}"))
}

/// The dimensions of the inputs.
fn shapes(network: &Network) -> Result<Vec<Option<Shape>>, String> {
    (0..network.input_count()?).map(|at| network.input(at)?.dims()).collect()
}

/// The dimensions that the inputs are to have.
fn target_shapes(
    network: &Network,
    shapes: &[Option<Shape>],
    config: &ModelConfig,
    options: &Options,
) -> Result<Vec<Option<Shape>>, String> {
    let batch = match options.batching {
        _ if config.max_batch_size <= 0 => None,
        Batching::AsInFile => None,
        Batching::Variable => Some(ANY),
        Batching::Padded => Some(exactly(config.max_batch_size.into())),
    };
    let mut wanted = shapes.to_vec();
    if options.reshape {
        for input in &config.input {
            // An unknown name is reported when the configuration is checked.
            let Ok(port) = network.input_named(&input.name) else { continue };
            let Some(at) = index_of(network, &port)? else { continue };
            let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
            let own = shapes[at].as_ref().and_then(|dims| dims.first().copied());
            let front = (config.max_batch_size > 0).then(|| batch.or(own).unwrap_or(ANY));
            wanted[at] = Some(front.into_iter().chain(dims.iter().map(|&dim| dimension(dim))).collect());
        }
    }
    if let Some(batch) = batch {
        for first in wanted.iter_mut().flatten().filter_map(|dims| dims.first_mut()) {
            // Variable dimensions stay as they are, to avoid reshaping the network without need.
            if batch != ANY || first.min == first.max {
                *first = batch;
            }
        }
    }
    Ok(wanted)
}

fn exactly(size: i64) -> Bounds {
    Bounds { min: size, max: size }
}

fn dimension(dim: i64) -> Bounds {
    if dim < 0 { ANY } else { exactly(dim) }
}

/// The index of a port among the inputs, found by the name that the library prefers.
fn index_of(network: &Network, port: &objects::Port) -> Result<Option<usize>, String> {
    let Some(name) = port.name() else { return Ok(None) };
    for at in 0..network.input_count()? {
        if network.input(at)?.name().as_ref() == Some(&name) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The batch size of the network, if it is fixed. The signature then declares it variable, because smaller batches are
/// padded.
fn fixed_batch(signature: &mut Signature, max_batch_size: i32) -> Result<Option<usize>> {
    let ports = signature.inputs.iter_mut().chain(&mut signature.outputs);
    let firsts = ports.filter_map(|port| Some((&port.name, port.dims.as_mut()?.first_mut()?)));
    let mut fixed = None;
    for (name, first) in firsts {
        let Some(size) = *first else { continue };
        if size != i64::from(max_batch_size) {
            return Err(Error::invalid_arg(format!(
                "the model takes batches of {size} ('{name}'), but max_batch_size is {max_batch_size}"
            )));
        }
        fixed = usize::try_from(size).ok();
        *first = None;
    }
    Ok(fixed)
}

/// The inputs and outputs, by the names that the configuration uses where a tensor has several.
fn signature(
    library: &OpenVino,
    network: &Network,
    config: &ModelConfig,
    dialect: Dialect,
) -> Result<Signature> {
    let inputs =
        Names::new(config.input.iter().map(|input| &input.name), dialect, |name| network.input_named(name));
    let outputs = Names::new(config.output.iter().map(|output| &output.name), dialect, |name| {
        network.output_named(name)
    });
    let input = |at| {
        let found = network.input(at).map_err(|why| broken(&why))?;
        port(library, "input", inputs.of(&found, || format!("INPUT__{at}")), &found)
    };
    let output = |at| {
        let found = network.output(at).map_err(|why| broken(&why))?;
        port(library, "output", outputs.of(&found, || format!("OUTPUT__{at}")), &found)
    };
    let input_count = network.input_count().map_err(|why| broken(&why))?;
    let output_count = network.output_count().map_err(|why| broken(&why))?;
    Ok(Signature {
        inputs: (0..input_count).map(input).collect::<Result<_>>()?,
        outputs: (0..output_count).map(output).collect::<Result<_>>()?,
    })
}

/// The names of a network's tensors.
struct Names {
    /// The library's name of a tensor, and the configuration's.
    configured: Vec<(String, String)>,
    dialect: Dialect,
}

impl Names {
    /// With the names of the configuration, whose tensors `find` finds.
    fn new<'a>(
        configured: impl Iterator<Item = &'a String>,
        dialect: Dialect,
        find: impl Fn(&str) -> Result<objects::Port, String>,
    ) -> Self {
        let find = |name: &String| match dialect {
            Dialect::OpenVino => find(name),
            Dialect::TensorFlow => find(name).or_else(|_| find(&format!("{name}{FIRST_OUTPUT}"))),
        };
        let configured = configured.filter_map(|name| Some((find(name).ok()?.name()?, name.clone())));
        Self { configured: configured.collect(), dialect }
    }

    /// The name of a tensor. `default` is for one without.
    fn of(&self, port: &objects::Port, default: impl FnOnce() -> String) -> String {
        let Some(own) = port.name() else { return default() };
        if let Some((_, name)) = self.configured.iter().find(|(known, _)| *known == own) {
            return name.clone();
        }
        let operation = own.strip_suffix(FIRST_OUTPUT).filter(|_| self.dialect == Dialect::TensorFlow);
        operation.map_or_else(|| own.clone(), str::to_owned)
    }
}

fn port(library: &OpenVino, role: &str, name: String, port: &objects::Port) -> Result<Port> {
    let number = port.element_type().map_err(|why| broken(&why))?;
    let data_type: DataType = library.types.of_number(number).ok_or_else(|| {
        Error::unsupported(format!(
            "{role} '{name}' of the model has an element type that the protocol lacks"
        ))
    })?;
    let dims = port.dims().map_err(|why| broken(&why))?;
    let dims =
        dims.map(|dims| dims.iter().map(|dim| (dim.min == dim.max).then_some(dim.min)).collect::<Dims>());
    Ok(Port { name, data_type, dims })
}
