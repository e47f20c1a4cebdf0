//! Runs models on OpenVINO, whose library is loaded at run time.
//!
//! [`find`] searches for the library, which [`OpenVino::open`] loads. A model's file is `model.xml` in its version's
//! folder, with its weights next to it in `model.bin`, or the file that `default_model_filename` names: an ONNX file, a
//! TensorFlow SavedModel or frozen graph, a TFLite file, or any other format of the library.
//!
//! The instances of a model share the compiled network, so that its weights are in memory once; each has a place of its
//! own to run in.
//!
//! Unsafe code is in four files: `api.rs` declares C's functions, `library.rs` opens the library, `objects.rs` and
//! `engine.rs` call it.
//!
//! The crate knows nothing of the server: it only implements the traits of `nereid-backend-api`.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod api;
mod engine;
mod library;
mod network;
mod objects;
mod options;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{
    Backend, BackendCapabilities, BackendSettings, Error, Instance, InstanceContext, InstanceKind, Model,
    ModelConfig, ModelContext, Result,
};
use nereid_dylib::{Framework, SearchPlaces};
use nereid_graph_executor::{Executor, GraphModel, Lanes, optional_inputs};
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::{complete_tensors, default_model_filename};
use nereid_model_files as model_files;

use crate::engine::{OvEngine, Places};
use crate::network::PreparedNetwork;
use crate::objects::{CompiledNetwork, Core};
use crate::options::{Options, PRECISION};

pub use crate::library::{OpenError, OpenVino};
pub use nereid_dylib::{LibraryLocation, Place};

const DEFAULT_FILENAME: &str = "model.xml";

/// The largest network description that is searched for variables.
const DESCRIPTION_LIMIT: u64 = 1 << 30;

/// The most runs that an instance has in flight.
const MAX_LANES: usize = 64;

const FRAMEWORK: Framework = Framework {
    library: "libopenvino_c",
    variable: None,
    backend: "openvino",
    python_packages: &["openvino/libs"],
    node_packages: &[],
};

/// Finds the library of OpenVINO: by the backend's setting `library`, in the backend directory, in the active Python
/// environment or in the system's places.
pub fn find(setting: Option<PathBuf>, backends: Option<PathBuf>) -> LibraryLocation {
    FRAMEWORK.find(&SearchPlaces::of_process(&FRAMEWORK, setting, backends))
}

/// The backend over an open library.
pub struct OpenVinoBackend {
    library: Arc<OpenVino>,
    settings: BackendSettings,
    core: Arc<Core>,
    dialect: Dialect,
}

/// Whose models the backend serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Models of backend `openvino`.
    OpenVino,
    /// Models of backend `tensorflow`: GraphDef and SavedModel. Their tensors have the names of their operations.
    TensorFlow,
}

/// Parameters for TensorFlow, each with the one value that OpenVINO serves.
const TENSORFLOW_PARAMETERS: [(&str, &str); 3] =
    [("TF_GRAPH_TAG", "serve"), ("TF_SIGNATURE_DEF", "serving_default"), ("TF_INIT_OPS_FILE", "")];

impl OpenVinoBackend {
    /// The backend with its settings, of which it knows `default-max-batch-size`.
    ///
    /// # Errors
    /// The library failed.
    pub fn new(library: Arc<OpenVino>, settings: BackendSettings, dialect: Dialect) -> Result<Self> {
        let core = Core::new(&library)
            .map_err(|why| Error::unavailable(format!("OpenVINO does not start: {why}")))?;
        Ok(Self { library, settings, core: Arc::new(core), dialect })
    }

    fn load_model(&self, context: &ModelContext) -> Result<OvModel> {
        let default_max_batch_size = self.settings.default_max_batch_size()?;
        let mut config = context.config.clone();
        if self.dialect == Dialect::TensorFlow {
            check_tensorflow(&config)?;
        }
        let path = model_path(context)?;
        let options = Options::of(&config, !is_own_format(&path))?;
        let core = self.core(&options)?;
        let keeps_values = keeps_values(&path)?;
        let prepared = PreparedNetwork::read(&self.library, &core, &path, &config, &options, self.dialect)?;
        if context.complete {
            complete_tensors(&mut config, &prepared.signature.tensors(), default_max_batch_size)
                .map_err(|error| Error::invalid_arg(error.to_string()))?;
        }
        let optional = optional_inputs(&config, |_| Ok(false))?;
        let mut graph = GraphModel::new(&context.name, &config, prepared.signature.clone(), &optional)?;
        graph.padded_to = prepared.padded_to;
        let model = OvModel {
            engine: format!("OpenVINO {}", self.library.version()),
            places: prepared.places(&graph)?,
            graph: Arc::new(graph),
            prepared: Mutex::new(prepared),
            core,
            options,
            keeps_values,
            is_sequential: matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))),
            compiled: Mutex::default(),
            completed: context.complete.then_some(config),
        };
        // A network that the device rejects fails the load, not the first instance.
        model.compiled(InstanceKind::of_first_instance(&context.config))?;
        Ok(model)
    }

    /// The backend's core, or one with the model's own operators.
    fn core(&self, options: &Options) -> Result<Arc<Core>> {
        let Some(extension) = &options.extension else { return Ok(Arc::clone(&self.core)) };
        let refused =
            |why: String| Error::invalid_arg(format!("cannot load the CPU extension '{extension}': {why}"));
        model_files::check(Path::new(extension)).map_err(|error| refused(error.to_string()))?;
        let core = Core::new(&self.library).map_err(refused)?;
        core.add_extension(extension).map_err(refused)?;
        Ok(Arc::new(core))
    }
}

impl Backend for OpenVinoBackend {
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { completes_config: true, ..BackendCapabilities::default() }
    }

    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let model = self
            .load_model(&context)
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        let instead = match self.dialect {
            Dialect::OpenVino => "",
            Dialect::TensorFlow => " in place of TensorFlow",
        };
        tracing::info!(
            "model '{}' version {} is served by OpenVINO {}{instead}{}",
            context.name,
            context.version,
            self.library.version(),
            model.describe(),
        );
        Ok(Box::new(model))
    }
}

struct OvModel {
    /// See [`Model::engine`].
    engine: String,
    graph: Arc<GraphModel>,
    places: Places,
    /// Read by one thread at a time: compiling may take long, but what it reads is not documented to be shared.
    prepared: Mutex<PreparedNetwork>,
    core: Arc<Core>,
    options: Options,
    keeps_values: bool,
    is_sequential: bool,
    /// By device.
    compiled: Mutex<HashMap<String, Arc<CompiledNetwork>>>,
    completed: Option<ModelConfig>,
}

impl OvModel {
    /// The network for instances of this kind, compiled once for each device.
    fn compiled(&self, kind: InstanceKind) -> Result<Arc<CompiledNetwork>> {
        let device = self.options.device(kind);
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = compiled.get(&device) {
            return Ok(Arc::clone(known));
        }
        let fresh =
            prepared.network.compile(&self.core, &device, &self.options.properties).map_err(|why| {
                Error::invalid_arg(format!("OpenVINO cannot compile the model for {device}: {why}"))
            })?;
        let fresh = Arc::new(fresh);
        compiled.insert(device, Arc::clone(&fresh));
        Ok(fresh)
    }

    /// How many runs an instance has in flight: its share of the runs that keep the device busy, which `PERFORMANCE_HINT` and
    /// `NUM_STREAMS` raise above one. The requests of a sequence depend on each other, so they run one by one.
    fn lanes(&self, compiled: &CompiledNetwork) -> usize {
        if self.is_sequential {
            return 1;
        }
        let optimal = compiled.property("OPTIMAL_NUMBER_OF_INFER_REQUESTS");
        let optimal: usize = optimal.and_then(|count| count.parse().ok()).unwrap_or(1);
        (optimal / self.options.instances).clamp(1, MAX_LANES)
    }

    /// For the log.
    fn describe(&self) -> String {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let describe = |(device, compiled): (&String, &Arc<CompiledNetwork>)| {
            let property = |key| compiled.property(key).unwrap_or_else(|| "?".to_owned());
            let (threads, streams) = (property("INFERENCE_NUM_THREADS"), property("NUM_STREAMS"));
            let (precision, lanes) = (property(PRECISION), self.lanes(compiled));
            format!(
                " on {device} (precision: {precision}, threads: {threads}, streams: {streams}, \
                 in flight: {lanes} to an instance)"
            )
        };
        compiled.iter().map(describe).collect()
    }
}

impl Model for OvModel {
    fn engine(&self) -> Option<String> {
        Some(self.engine.clone())
    }

    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let refused = |error: Error| error.context(format_args!("instance '{}'", context.name));
        let compiled = self.compiled(context.kind).map_err(refused)?;
        let executor = || -> Result<Box<dyn Instance>> {
            let engine = OvEngine::new(&compiled, &self.graph, self.places.clone(), self.keeps_values)?;
            Ok(Box::new(Executor::new(Arc::clone(&self.graph), engine)))
        };
        match self.lanes(&compiled) {
            1 => executor().map_err(refused),
            lanes => {
                let executors = (0..lanes).map(|_| executor()).collect::<Result<_>>().map_err(refused)?;
                Ok(Box::new(Lanes::new(&context.name, executors).map_err(refused)?))
            }
        }
    }
}

/// Refuses what only TensorFlow itself can do.
fn check_tensorflow(config: &ModelConfig) -> Result<()> {
    for (key, served) in TENSORFLOW_PARAMETERS {
        let value = config.parameters.get(key).map_or("", |value| value.string_value.as_str());
        if !value.is_empty() && value != served {
            return Err(Error::unsupported(format!(
                "parameter '{key}' is '{value}', which OpenVINO, by which TensorFlow models are served, does not know"
            )));
        }
    }
    Ok(())
}

/// The path of the model's file, or of its folder.
fn model_path(context: &ModelContext) -> Result<PathBuf> {
    let filename = default_model_filename(&context.config).unwrap_or(DEFAULT_FILENAME);
    let version = context.version_directory();
    let path = version.join(filename);
    let found = model_files::inside(&version, filename).and_then(|path| {
        if path.is_dir() {
            let inner = path.join(DEFAULT_FILENAME);
            return Ok(if inner.exists() { inner } else { path });
        }
        model_files::check(&path)?;
        Ok(path)
    });
    let found = found.map_err(|error| Error::cannot_read(&path, &error))?;
    // The library reads weights next to the file by itself.
    let weights = found.with_extension("bin");
    if found.is_file() && found != weights && weights.exists() {
        model_files::check(&weights).map_err(|error| Error::cannot_read(&weights, &error))?;
    }
    Ok(found)
}

/// Whether the file is in the library's own format.
fn is_own_format(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "xml")
}

/// Whether the network has variables, which keep their values from one run to the next. C's interface does not
/// report them, but in the library's own format the file names the operator.
fn keeps_values(path: &Path) -> Result<bool> {
    if !is_own_format(path) {
        return Ok(false);
    }
    let description =
        model_files::read(path, DESCRIPTION_LIMIT).map_err(|error| Error::cannot_read(path, &error))?;
    const OPERATOR: &[u8] = b"\"ReadValue\"";
    Ok(description.windows(OPERATOR.len()).any(|word| word == OPERATOR))
}
