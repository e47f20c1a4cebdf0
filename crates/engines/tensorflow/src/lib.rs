//! Runs TensorFlow models on TensorFlow's library, loaded at run time through its C interface.
//!
//! [`find`] locates the library, [`TensorFlow::open`] loads it. A model is a GraphDef (`model.graphdef`) or the folder
//! of a SavedModel (`model.savedmodel`) in its version's folder, or the path that `default_model_filename` names.
//!
//! Each instance has a session of its own, with its own weights, unless `MAX_SESSION_SHARE_COUNT` lets several share one.
//!
//! Unsafe code is in four files: `api.rs` declares C's functions, `library.rs` opens the library, `session.rs` and `engine.rs`
//! call it.
//!
//! The crate knows nothing of the server: it only implements the traits of `nereid-backend-api`.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod api;
mod engine;
mod library;
mod messages;
mod options;
mod session;
mod source;
mod types;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{
    Backend, BackendCapabilities, BackendSettings, Error, Instance, InstanceContext, InstanceKind, Model,
    ModelConfig, ModelContext, Result,
};
use nereid_dylib::{Framework, SearchPlaces};
use nereid_graph_executor::{Executor, GraphModel, optional_inputs};
use nereid_model_config::complete_tensors;

use crate::engine::{Places, TfEngine};
use crate::options::Options;
use crate::session::Session;
use crate::source::Source;

pub use crate::library::{OpenError, TensorFlow};
pub use crate::options::SETTINGS;
pub use nereid_dylib::{LibraryLocation, Place};

/// The library in Python's packages.
const FRAMEWORK: Framework = Framework {
    library: "libtensorflow_cc",
    variable: None,
    backend: "tensorflow",
    python_packages: &["tensorflow"],
    node_packages: &[],
};

/// The library in packages of TensorFlow for C.
const FOR_C: Framework = Framework { library: "libtensorflow", python_packages: &[], ..FRAMEWORK };

/// Finds TensorFlow's library: by the backend's setting `library`, in the backend directory, in the active Python
/// environment, or in the system's library folders.
pub fn find(setting: Option<PathBuf>, backends: Option<PathBuf>) -> LibraryLocation {
    let places = SearchPlaces::of_process(&FRAMEWORK, setting, backends);
    let found = FRAMEWORK.find(&places);
    // A folder with one of the two may lack the other.
    if found.place == Place::System || found.path.is_dir() { FOR_C.find(&places) } else { found }
}

/// The backend over an open library.
pub struct TensorFlowBackend {
    library: Arc<TensorFlow>,
    settings: BackendSettings,
}

impl TensorFlowBackend {
    /// The backend with its settings. It reads `allow-soft-placement` and `default-max-batch-size`.
    pub fn new(library: Arc<TensorFlow>, settings: BackendSettings) -> Self {
        Self { library, settings }
    }

    fn load_model(&self, context: &ModelContext) -> Result<TfModel> {
        let default_max_batch_size = self.settings.default_max_batch_size()?;
        let mut config = context.config.clone();
        let options = Options::of(&config, &self.settings)?;
        let shares = options.shares;
        let source = Source::of(&self.library, context, options)?;
        let opened = source.open()?;
        let signature = opened.signature(&config)?;
        if context.complete {
            complete_tensors(&mut config, &signature.tensors(), default_max_batch_size)
                .map_err(|error| Error::invalid_arg(error.to_string()))?;
        }
        let optional = optional_inputs(&config, |_| Ok(false))?;
        let graph = Arc::new(GraphModel::new(&context.name, &config, signature, &optional)?);
        let places = places(&opened, &graph)?;
        Ok(TfModel {
            engine: format!("TensorFlow {}", self.library.version()),
            graph,
            source,
            shares,
            session: Mutex::new(Shared { session: Arc::new(opened.session), places, left: shares }),
            completed: context.complete.then_some(config),
        })
    }
}

fn places(opened: &source::OpenedModel, graph: &GraphModel) -> Result<Places> {
    let inputs: Vec<_> = graph.inputs.iter().map(|input| input.port.name.as_str()).collect();
    let outputs: Vec<_> = graph.outputs.iter().map(|output| output.port.name.as_str()).collect();
    opened.places(&inputs, &outputs)
}

impl Backend for TensorFlowBackend {
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { completes_config: true, ..BackendCapabilities::default() }
    }

    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let model = self
            .load_model(&context)
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        let (name, version) = (&context.name, context.version);
        tracing::info!("model '{name}' version {version} is served by TensorFlow {}", self.library.version());
        Ok(Box::new(model))
    }
}

struct TfModel {
    /// See [`Model::engine`].
    engine: String,
    graph: Arc<GraphModel>,
    source: Source,
    /// How many instances share one session.
    shares: usize,
    /// The latest session.
    session: Mutex<Shared>,
    completed: Option<ModelConfig>,
}

/// A session, and how many more instances may share it.
struct Shared {
    session: Arc<Session>,
    places: Places,
    left: usize,
}

impl Model for TfModel {
    fn engine(&self) -> Option<String> {
        Some(self.engine.clone())
    }

    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        if let InstanceKind::Gpu(_) = context.kind {
            let (name, kind) = (&context.name, context.kind);
            return Err(Error::unsupported(format!(
                "instance '{name}' is configured to run on {kind}, but TensorFlow models run on the CPU only"
            )));
        }
        let mut shared = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.left == 0 {
            let opened = self
                .source
                .open()
                .map_err(|error| error.context(format_args!("instance '{}'", context.name)))?;
            let places = places(&opened, &self.graph)?;
            *shared = Shared { session: Arc::new(opened.session), places, left: self.shares };
        }
        shared.left -= 1;
        let engine = TfEngine {
            session: Arc::clone(&shared.session),
            model: Arc::clone(&self.graph),
            places: shared.places.clone(),
            addresses: RefCell::default(),
        };
        Ok(Box::new(Executor::new(Arc::clone(&self.graph), engine)))
    }
}
