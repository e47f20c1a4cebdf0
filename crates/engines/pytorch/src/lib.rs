//! Runs TorchScript models, and packages of AOTInductor, on libtorch, loaded at run time.
//!
//! [`find`] locates libtorch, [`Torch::open`] loads it. Its interface is C++ and changes with each release, so the
//! crate compiles a shim (`shim.cpp`) against the library's own headers, once, and caches it for the user. A model's
//! file is `model.pt` in its version's folder, `model.pt2` for a package, or the file that `default_model_filename` names.
//!
//! Without a compiler, the class in [`class_file`] runs the same models on PyTorch's own Python.
//!
//! Each instance has its own module, unless they share one (`ENABLE_WEIGHT_SHARING`).
//!
//! Unsafe code is in `shim.rs` and `shim/module.rs`, which call the shim, and in `engine.rs`, which hands memory to it.
//!
//! The crate knows nothing of the server: it only implements the traits of `nereid-backend-api`.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod compile;
mod device;
mod engine;
mod format;
mod naming;
mod options;
mod package;
mod python;
mod shim;
mod vision;

use std::ffi::CString;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use nereid_archives::{ArchiveLimits, verify_zip};
use nereid_backend_api::{
    Backend, BackendCapabilities, DataType, Error, Instance, InstanceContext, Model, ModelCapabilities,
    ModelConfig, ModelContext, Result, SharedInputs,
};
use nereid_dylib::{Framework, SearchPlaces};
use nereid_graph_executor::{Executor, GraphModel, Signature};
use nereid_model_config::default_model_filename;
use nereid_model_files as model_files;

use crate::device::Device;
use crate::engine::{Plan, TorchEngine};
use crate::naming::Argument;
use crate::options::Options;
use crate::shim::{Module, Stream};

pub use crate::compile::CompileError;
pub use crate::python::class_file;
pub use crate::shim::{OpenError, Torch};
pub use nereid_dylib::{LibraryLocation, Place};

const DEFAULT_FILENAME: &str = "model.pt";

/// The platform of packages of AOTInductor.
const PACKAGE_PLATFORM: &str = "torch_aoti";

const FRAMEWORK: Framework = Framework {
    library: "libtorch_cpu",
    variable: None,
    backend: "pytorch",
    python_packages: &["torch/lib"],
    node_packages: &[],
};

/// Finds libtorch: by the backend's setting `library`, in the backend directory, in the active Python environment, or
/// in the system's library folders.
pub fn find(setting: Option<PathBuf>, backends: Option<PathBuf>) -> LibraryLocation {
    FRAMEWORK.find(&SearchPlaces::of_process(&FRAMEWORK, setting, backends))
}

/// The backend over an open libtorch.
pub struct TorchBackend {
    torch: Arc<Torch>,
    /// CPU cores available to the threads of a model's instances.
    processors: NonZeroUsize,
}

impl TorchBackend {
    /// The backend.
    pub fn new(torch: Arc<Torch>) -> Self {
        Self { torch, processors: available_parallelism().unwrap_or(NonZeroUsize::MIN) }
    }

    fn load_model(&self, context: &ModelContext) -> Result<TorchModel> {
        let config = &context.config;
        check_config(config)?;
        check_file(context)?;
        let options = Options::of(config, self.processors)?;
        let name = &context.name;
        let without_effect = options::without_effect(config);
        if !without_effect.is_empty() {
            tracing::info!("model '{name}': without effect: {}", without_effect.join(", "));
        }
        if options.run.empties_cache != 0 && !self.torch.empties_cache() {
            tracing::info!("model '{name}': ENABLE_CACHE_CLEANING takes effect from PyTorch 2.9 on");
        }
        if let Some(threads) = options.inter_op_threads
            && let Err(why) = self.torch.set_inter_op_threads(threads)
        {
            tracing::warn!("model '{name}': INTER_OP_THREAD_COUNT has no effect: {why}");
        }
        let path = model_file(context)?;
        let source = if config.platform == PACKAGE_PLATFORM {
            // One loader's code serves all instances that share it, each on its own thread.
            let instances: i32 = config.instance_group.iter().map(|group| group.count.max(1)).sum();
            let threads = if options.shares_weights { usize::try_from(instances).unwrap_or(1) } else { 1 };
            Source::Package { path, threads: threads.max(1) }
        } else {
            Source::Script(path)
        };
        let devices = Device::of_groups(config);
        let first = self.torch.usable(source.inspected_on(&devices)).map_err(|why| source.broken(&why))?;
        let module = source.load(&self.torch, first)?;
        let (arguments, results) = source.call(&module)?;
        if let Some(&Device::Gpu(gpu)) = devices.first()
            && !module.is_on_gpu()
            && matches!(source, Source::Package { .. })
        {
            tracing::warn!("model '{name}' was compiled for the CPU, and runs there instead of on GPU {gpu}");
        }
        let is_on_gpus = devices.iter().all(|device| matches!(device, Device::Gpu(_)))
            && (module.is_on_gpu() || matches!(source, Source::Script(_)));
        let signature = Signature::of_config(config)?;
        let ports = signature.inputs.iter();
        let inputs: Vec<_> =
            ports.map(|port| (port.name.clone(), port.data_type == DataType::Bytes)).collect();
        let named: Vec<_> = inputs.iter().map(|(name, is_text)| (name.as_str(), *is_text)).collect();
        let call = naming::call(&named, &arguments)?;
        // Each item of a batch needs a value.
        let optional = config.input.iter().filter(|input| input.optional && config.max_batch_size == 0);
        let optional = optional.map(|input| input.name.clone()).filter(|name| {
            let input = inputs.iter().position(|(known, _)| known == name);
            input.is_some_and(|input| call.may_lack(input, &arguments))
        });
        let optional: Vec<_> = optional.collect();
        let model = GraphModel::new(&context.name, config, signature, &optional)?;
        let is_written = (0..inputs.len())
            .map(|input| call.argument(input, &arguments).is_none_or(|argument| argument.is_written));
        let is_written = is_written.collect();
        let keys = inputs.iter().map(|(name, _)| CString::new(name.as_str())).collect::<Result<_, _>>();
        let keys = keys.map_err(|_| Error::invalid_arg("an input's name contains a zero byte"))?;
        let outputs: Vec<_> = model.outputs.iter().map(|output| output.port.name.as_str()).collect();
        let results = match results {
            Some(names) => naming::named_results(&outputs, &names)?,
            None => naming::results(&outputs)?,
        };
        let plan = Plan { options: options.run, call, keys, is_written, results, model: Arc::new(model) };
        Ok(TorchModel {
            torch: Arc::clone(&self.torch),
            plan: Arc::new(plan),
            source,
            shares_weights: options.shares_weights,
            is_on_gpus,
            modules: Mutex::new(
                devices.contains(&first).then(|| (first, Arc::new(module))).into_iter().collect(),
            ),
        })
    }
}

/// A model's file.
enum Source {
    /// TorchScript.
    Script(PathBuf),
    /// A package of AOTInductor, which runs on this many threads at once.
    Package { path: PathBuf, threads: usize },
}

impl Source {
    /// Where the model is loaded to learn its arguments. Scripts can be anywhere: on the CPU they take no memory of a GPU from
    /// their instances, nor from other models while they are tried.
    fn inspected_on(&self, devices: &[Device]) -> Device {
        match self {
            Self::Script(_) => Device::Cpu,
            Self::Package { .. } => devices.first().copied().unwrap_or(Device::Cpu),
        }
    }

    fn load(&self, torch: &Arc<Torch>, device: Device) -> Result<Module> {
        let loaded = match self {
            Self::Script(path) => Module::load(torch, path, device),
            Self::Package { path, threads } => {
                // libtorch does not verify checksums, and would run damaged files.
                let file = File::open(path).map_err(|error| error.to_string());
                file.and_then(|file| verify_zip(file, ArchiveLimits::default()))
                    .and_then(|()| Module::load_package(torch, path, *threads, device))
            }
        };
        loaded.map_err(|why| self.broken(&why))
    }

    /// The module's arguments, and the names of its results, if declared.
    fn call(&self, module: &Module) -> Result<(Vec<Argument>, Option<Vec<String>>)> {
        let call = match self {
            Self::Script(_) => module.arguments().map(|arguments| (arguments, None)),
            Self::Package { .. } => module.call_spec().map(|spec| (spec.arguments, Some(spec.results))),
        };
        call.map_err(|why| self.broken(&why))
    }

    fn broken(&self, why: &str) -> Error {
        let (Self::Script(path) | Self::Package { path, .. }) = self;
        Error::invalid_arg(format!("PyTorch cannot load {}: {why}", path.display()))
    }
}

impl Backend for TorchBackend {
    fn capabilities(&self) -> BackendCapabilities {
        // Loads nothing: a server without GPUs need not have the libraries for them in memory.
        BackendCapabilities { runs_on_gpus: self.torch.has_cuda(), ..BackendCapabilities::default() }
    }

    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let model = self
            .load_model(&context)
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        let (name, version, threads) = (&context.name, context.version, model.plan.options.threads);
        tracing::info!(
            "model '{name}' version {version} is served by PyTorch with {threads} threads to an instance"
        );
        Ok(Box::new(model))
    }
}

struct TorchModel {
    torch: Arc<Torch>,
    plan: Arc<Plan>,
    source: Source,
    shares_weights: bool,
    /// Whether the model is on GPUs only.
    is_on_gpus: bool,
    /// Modules that the next instances on their devices take, or that all of them share.
    modules: Mutex<Vec<(Device, Arc<Module>)>>,
}

impl Model for TorchModel {
    fn capabilities(&self) -> ModelCapabilities {
        if !self.is_on_gpus {
            return ModelCapabilities::default();
        }
        // Numbers are read once, when they are copied to the GPU, or in its memory.
        ModelCapabilities {
            reads_device_memory: true,
            shared_inputs: SharedInputs::Numbers,
            ..ModelCapabilities::default()
        }
    }

    fn engine(&self) -> Option<String> {
        let kind = match self.source {
            Source::Script(_) => "",
            Source::Package { .. } => " (AOTInductor)",
        };
        Some(format!("PyTorch {}{kind}", self.torch.version()))
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let failed = |error: Error| error.context(format_args!("instance '{}'", context.name));
        let device = self.torch.usable(Device::of(context.kind)).map_err(|why| {
            Error::unsupported(format!(
                "instance '{}' is configured to run on {}, but {why}",
                context.name, context.kind
            ))
        })?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = modules.iter().position(|(on, _)| *on == device);
        let kept = kept.map(|at| {
            if self.shares_weights { Arc::clone(&modules[at].1) } else { modules.swap_remove(at).1 }
        });
        let module = match kept {
            Some(module) => module,
            None => {
                let module = Arc::new(self.source.load(&self.torch, device).map_err(failed)?);
                if self.shares_weights {
                    modules.push((device, Arc::clone(&module)));
                }
                module
            }
        };
        drop(modules);
        let stream = match device {
            Device::Gpu(gpu) if module.is_on_gpu() => Some(Stream::new(&self.torch, gpu)),
            _ => None,
        };
        let stream =
            stream.transpose().map_err(|why| failed(Error::internal(format!("PyTorch failed: {why}"))))?;
        let engine = TorchEngine { module, stream, plan: Arc::clone(&self.plan) };
        Ok(Box::new(Executor::new(Arc::clone(&self.plan.model), engine)))
    }
}

/// Checks that a configuration lists tensors, which files of PyTorch do not declare.
///
/// # Errors
/// The configuration lists no tensor.
pub fn check_config(config: &ModelConfig) -> Result<()> {
    if config.input.is_empty() && config.output.is_empty() {
        return Err(Error::invalid_arg(
            "TorchScript and packages of AOTInductor do not declare the types and dimensions of their tensors: list all inputs \
             and outputs in config.pbtxt",
        ));
    }
    Ok(())
}

/// Checks that a model's file has the format of its platform, as far as that is known without libtorch.
///
/// # Errors
/// The file's format, and what to do about it.
pub fn check_file(context: &ModelContext) -> Result<()> {
    let path = model_file(context)?;
    match format::mismatch(&path, &context.config.platform) {
        Some(reason) => Err(Error::invalid_arg(format!("PyTorch cannot load {}: {reason}", path.display()))),
        None => Ok(()),
    }
}

/// The path of the model's file.
fn model_file(context: &ModelContext) -> Result<PathBuf> {
    let filename = default_model_filename(&context.config).unwrap_or(DEFAULT_FILENAME);
    let version = context.version_directory();
    let path = version.join(filename);
    let found = model_files::inside(&version, filename).and_then(|path| {
        model_files::check(&path)?;
        Ok(path)
    });
    found.map_err(|error| {
        let message = format!("cannot read {}: {error}", path.display());
        if error.is_missing() {
            Error::not_found(format!("{message}{}", model_files::hint_at_missing(&path)))
        } else {
            Error::invalid_arg(message)
        }
    })
}
