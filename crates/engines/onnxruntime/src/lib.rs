//! Runs ONNX models on ONNX Runtime, whose library is loaded at run time.
//!
//! [`find`] searches for the library, which [`OnnxRuntime::open`] loads and sets up, once in the life of the process. A
//! model's file is `model.onnx` in its version's folder, or the one that `default_model_filename` names; a folder of that name
//! may take its place, with `model.onnx` and its external data.
//!
//! Each instance has its own session, as in Triton. By default, the instances of a model share the processors evenly:
//! each session has its share as threads.
//!
//! Unsafe code is in three files: `library.rs`, which loads the library, `binding.rs`, which runs sessions on bound
//! memory, and `memory.rs`, which reads and writes tensors. The rest goes through the `ort` crate's safe calls.
//!
//! The crate knows nothing of the server: it only implements the traits of `nereid-backend-api`.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod accelerators;
mod binding;
mod declared;
mod engine;
mod external_data;
mod library;
mod memory;
mod onnx;
mod options;
mod short_runs;
mod signature;

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use nereid_backend_api::{
    Backend, BackendCapabilities, BackendSettings, DataType, Error, Instance, InstanceContext, InstanceKind,
    Model, ModelConfig, ModelContext, Request, Result, Tensor,
};
use nereid_dylib::{Framework, SearchPlaces};
use nereid_graph_executor::{Executor, GraphModel, optional_inputs};
use nereid_model_config::{complete_tensors, default_model_filename};
use nereid_model_files as model_files;

use crate::declared::DeclaredTensors;
use crate::engine::OrtEngine;
use crate::options::{OwnSession, SessionOptions};
use crate::short_runs::ShortRuns;

pub use crate::external_data::external_data;
pub use crate::library::{OnnxRuntime, OpenError, SETTINGS};
pub use nereid_dylib::{LibraryLocation, Place};

const DEFAULT_FILENAME: &str = "model.onnx";

const FRAMEWORK: Framework = Framework {
    library: "libonnxruntime",
    variable: Some("ORT_DYLIB_PATH"),
    backend: "onnxruntime",
    python_packages: &["onnxruntime/capi"],
    node_packages: &[],
};

/// Finds the library of ONNX Runtime: by the backend's setting `library`, by `ORT_DYLIB_PATH`, in the backend directory,
/// in the active Python environment or in the system's places.
pub fn find(setting: Option<PathBuf>, backends: Option<PathBuf>) -> LibraryLocation {
    FRAMEWORK.find(&SearchPlaces::of_process(&FRAMEWORK, setting, backends))
}

/// The backend over an open library.
pub struct OnnxRuntimeBackend {
    runtime: Arc<OnnxRuntime>,
    settings: BackendSettings,
    /// Processors that the threads of a model's instances may take.
    processors: NonZeroUsize,
}

impl OnnxRuntimeBackend {
    /// The backend with its settings, of which it knows `default-max-batch-size`.
    pub fn new(runtime: Arc<OnnxRuntime>, settings: BackendSettings) -> Self {
        let processors = available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { runtime, settings, processors }
    }
}

impl Backend for OnnxRuntimeBackend {
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities {
            completes_config: true,
            runs_on_gpus: self.runtime.has_cuda(),
            ..BackendCapabilities::default()
        }
    }

    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        self.load_from(&context, || model_file(&context).map(Source::File))
    }
}

impl OnnxRuntimeBackend {
    /// Loads a model that is in memory, as ONNX made of the file at `origin`.
    ///
    /// # Errors
    /// As [`Backend::load`].
    pub fn load_onnx(
        &self,
        context: &ModelContext,
        onnx: Vec<u8>,
        origin: PathBuf,
    ) -> Result<Box<dyn Model>> {
        self.load_from(context, || Ok(Source::Memory { onnx, origin }))
    }

    fn load_from(
        &self,
        context: &ModelContext,
        source: impl FnOnce() -> Result<Source>,
    ) -> Result<Box<dyn Model>> {
        let model = guarded(|| self.load_model(context, source()?))
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        tracing::info!(
            "model '{}' version {} is served by ONNX Runtime {} with {}",
            context.name,
            context.version,
            self.runtime.version(),
            model.options.describe_threads()
        );
        Ok(Box::new(model))
    }

    fn load_model(&self, context: &ModelContext, source: Source) -> Result<OrtModel> {
        let default_max_batch_size = self.settings.default_max_batch_size()?;
        let mut config = context.config.clone();
        let declared = source.declared(&config)?;
        let options = SessionOptions::of(&config, &self.runtime, self.processors)?;
        let session = options.session(&source, InstanceKind::of_first_instance(&config))?;
        let mut signature = signature::of_session(&session, &declared)?;
        if context.complete {
            complete_tensors(&mut config, &signature.tensors(), default_max_batch_size)
                .map_err(|error| Error::invalid_arg(error.to_string()))?;
        }
        let initializers = signature::initializers(&session, &declared)?;
        let optional =
            optional_inputs(&config, |name| Ok(initializers.iter().any(|port| port.name == name)))?;
        // Only what the configuration lists can be given; the others keep the file's value.
        signature.inputs.extend(
            initializers.into_iter().filter(|port| config.input.iter().any(|input| input.name == port.name)),
        );
        let mut graph = GraphModel::new(&context.name, &config, signature, &optional)?;
        // ONNX Runtime's backend for Triton sorts the outputs by name, and ignores the order of the configuration.
        graph.outputs.sort_by(|one, other| one.port.name.cmp(&other.port.name));
        let accelerators = options.describe_accelerators(&config);
        let is_bounded = declared.work_follows_sizes() && accelerators.is_empty();
        Ok(OrtModel {
            graph: Arc::new(graph),
            engine: format!("ONNX Runtime {}{accelerators}", self.runtime.version()),
            short_runs: is_bounded.then(Arc::default),
            options,
            source,
            fatal_on_empty: declared.fatal_on_empty(),
            first: Mutex::new(Some((InstanceKind::of_first_instance(&config), session))),
            completed: context.complete.then_some(config),
        })
    }
}

struct OrtModel {
    graph: Arc<GraphModel>,
    options: SessionOptions,
    source: Source,
    /// See [`DeclaredTensors::fatal_on_empty`].
    fatal_on_empty: Option<&'static str>,
    /// The session by which the model was looked at, for the first instance of that kind.
    first: Mutex<Option<(InstanceKind, OwnSession)>>,
    completed: Option<ModelConfig>,
    /// If the sizes of inputs bound the model's work, and processors do it.
    short_runs: Option<Arc<ShortRuns>>,
    /// See [`Model::engine`].
    engine: String,
}

impl Model for OrtModel {
    fn engine(&self) -> Option<String> {
        Some(self.engine.clone())
    }

    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn runs_at_once(&self, request: &Request) -> bool {
        // Texts are of any length.
        let elements = |input: &Tensor| {
            (input.data_type != DataType::Bytes).then(|| input.shape.element_count()).flatten()
        };
        let elements = request.inputs.iter().map(elements).sum::<Option<usize>>();
        elements.zip(self.short_runs.as_ref()).is_some_and(|(elements, runs)| runs.cover(elements))
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let session = match first {
            Some((kind, session)) if kind == context.kind => session,
            _ => guarded(|| self.options.session(&self.source, context.kind))
                .map_err(|error| error.context(format_args!("instance '{}'", context.name)))?,
        };
        let engine = OrtEngine::new(
            session,
            &self.graph,
            &self.options,
            self.fatal_on_empty,
            self.short_runs.clone(),
        )?;
        Ok(Box::new(Executor::new(Arc::clone(&self.graph), engine)))
    }
}

/// Where the sessions of a model read it.
enum Source {
    File(PathBuf),
    Memory {
        onnx: Vec<u8>,
        /// The file that it was made of.
        origin: PathBuf,
    },
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Memory { origin: path, .. } => path,
        }
    }

    /// Checks the model before the library loads it. Of one in the library's own format, nothing is known.
    fn declared(&self, config: &ModelConfig) -> Result<DeclaredTensors> {
        let decoded = match self {
            Self::File(path) => onnx::read(path, config)?,
            Self::Memory { onnx, origin } => Some(onnx::decode(onnx.as_slice(), origin)?),
        };
        let Some(model) = decoded else { return Ok(DeclaredTensors::default()) };
        external_data::check(&model, self.path().parent().unwrap_or(Path::new("")))?;
        DeclaredTensors::of(model)
    }
}

/// The path of the ONNX file itself.
fn model_file(context: &ModelContext) -> Result<PathBuf> {
    let filename = default_model_filename(&context.config).unwrap_or(DEFAULT_FILENAME);
    let version = context.version_directory();
    model_files::model_file(&version, filename, DEFAULT_FILENAME)
        .map_err(|error| Error::cannot_read(&version.join(filename), &error))
}

/// Runs work that calls the library. A panic on the way there or back costs this load, nothing more.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|panic| {
        Err(Error::internal(format!("the ONNX Runtime backend panicked: {}", panic_message(&*panic))))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// An error message of ONNX Runtime, on one line.
fn with_path(path: &Path, error: &ort::Error<impl Sized>) -> Error {
    Error::invalid_arg(format!("ONNX Runtime cannot load {}: {}", path.display(), one_line(error.message())))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
