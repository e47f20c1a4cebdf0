//! Runs ONNX models with tract, an engine in pure Rust: no library has to be installed.
//!
//! It stands in for ONNX Runtime where that is not at hand, and says so in one line for each model it loads. It has
//! fewer operators and runs on the processor only, one thread to an instance.
//!
//! A model's file is `model.onnx` in its version's folder, or what `default_model_filename` says; external data lies
//! beside it. What its configuration leaves out of inputs, outputs and batches is completed from the file.
//!
//! Input shapes may vary: a plan optimised for each set of shapes is made when they are first seen, with weights laid
//! out for its kernels. The parameter `plan_cache_size` of a model's configuration says how many plans are kept: unless
//! told otherwise 32, or fewer (4 at least) where their weights would take more than 1 GiB.
//!
//! The crate knows nothing of the server: it implements the traits of `nereid-backend-api` and no more.

#![forbid(unsafe_code)]

mod check;
mod convert;
mod graph;
mod guard;
mod inputs;
mod instance;
mod plans;
mod signature;

use std::sync::Arc;

use nereid_backend_api::{
    Backend, BackendSettings, BatchInput, Error, Instance, InstanceContext, InstanceKind, Model, ModelConfig,
    ModelContext, Request, Result,
};
use nereid_model_config::{complete_tensors, default_model_filename};

use crate::graph::OnnxFile;
use crate::instance::{Served, TractInstance};
use crate::plans::{Plans, Shapes};

/// Name and version of the engine, as the log gives them.
pub const ENGINE: &str = "tract 0.23";

const DEFAULT_FILENAME: &str = "model.onnx";

/// The embedded ONNX engine.
pub struct TractBackend {
    settings: BackendSettings,
    reason: String,
}

impl TractBackend {
    /// The engine with its settings, of which it knows `default-max-batch-size`, and the reason why it serves the
    /// models it is given, for the log: whoever chose it knows.
    pub fn new(settings: BackendSettings, reason: impl Into<String>) -> Self {
        Self { settings, reason: reason.into() }
    }

    /// The engine as one that stands in for a missing ONNX Runtime.
    pub fn stand_in(settings: BackendSettings) -> Self {
        Self::new(settings, "no ONNX Runtime library is at hand")
    }
}

impl Backend for TractBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let model = load(&context, &self.settings)
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        tracing::info!(
            "model '{}' version {} is served by the embedded engine ({ENGINE}): {}",
            context.name,
            context.version,
            self.reason
        );
        Ok(Box::new(model))
    }

    fn completes(&self) -> bool {
        true
    }
}

struct TractModel {
    served: Arc<Served>,
    completed: Option<ModelConfig>,
}

impl Model for TractModel {
    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        if let InstanceKind::Gpu(_) = context.kind {
            return Err(Error::unsupported(format!(
                "instance '{}' is to run on {}, but the embedded engine runs on the CPU only",
                context.name, context.kind
            )));
        }
        Ok(Box::new(TractInstance { model: Arc::clone(&self.served) }))
    }

    fn runs_at_once(&self, request: &Request) -> bool {
        self.served.has_plan(request)
    }
}

fn load(context: &ModelContext, settings: &BackendSettings) -> Result<TractModel> {
    let default_max_batch_size = settings.default_max_batch_size()?;
    let mut config = context.config.clone();
    check::features(&config)?;
    let filename = default_model_filename(&config).unwrap_or(DEFAULT_FILENAME);
    let mut file = OnnxFile::read(context.version_directory().join(filename))?;
    if context.complete {
        complete_tensors(&mut config, &file.signature()?.tensors(), default_max_batch_size)
            .map_err(|error| Error::invalid_arg(error.to_string()))?;
    }
    let defaults = inputs::defaults(&config, &file)?;
    file.free_inputs(config.input.iter().map(|input| input.name.as_str()));
    let signature = file.signature()?;
    let batch_inputs = BatchInput::all(&config)?;
    check::inputs(&config, &batch_inputs, &signature)?;
    let mut outputs = check::outputs(&config, &signature)?;
    // ONNX Runtime's backend for Triton answers in the order of the names, whatever the configuration's is.
    outputs.sort_by(|one, other| one.port.name.cmp(&other.port.name));
    let names: Vec<_> = outputs.iter().map(|output| output.port.name.as_str()).collect();
    let plan_cache_size = check::plan_cache_size(&config, file.weights())?;
    let graph = file.into_graph(&names)?;

    let inputs = inputs::resolve(&config, signature.inputs, batch_inputs, defaults)?;
    let types = inputs.iter().map(|input| (input.port.name.clone(), input.port.datum_type)).collect();
    let plans = Plans::new(graph, types, plan_cache_size);
    let batching = config.max_batch_size > 0;
    // A graph that cannot run is found out now rather than by its first client, if its shapes are known now.
    if let Some(shapes) = inputs.iter().map(|input| input.only_shape(batching)).collect::<Option<Shapes>>() {
        plans.get(&shapes)?;
    }
    let served = Arc::new(Served { name: context.name.clone(), batching, inputs, outputs, plans });
    Ok(TractModel { served, completed: context.complete.then_some(config) })
}

#[cfg(test)]
mod tests;
