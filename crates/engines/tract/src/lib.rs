//! Runs ONNX models with tract, an engine in pure Rust that needs no library.
//!
//! The engine replaces ONNX Runtime where that is not installed, and logs one line for each model it loads. It has fewer
//! operators and runs on the CPU only, with one thread per instance.
//!
//! A model's file is `model.onnx` in its version's folder, or the one that `default_model_filename` names; external data
//! is next to it. Inputs, outputs and batching that the configuration leaves out are completed from the file.
//!
//! Input shapes may vary: a plan is optimised for each set of shapes when it is first seen, with weights laid out for
//! its kernels. The parameter `plan_cache_size` of a model's configuration limits how many plans are kept: by default
//! 32, or fewer (at least 4) where their weights would take more than 1 GiB.
//!
//! A request cannot make the engine run without end, allocate without limit or read foreign memory: `operators` lists what
//! is served, `rules`, `analysis` and `verify` check attributes, shapes and sizes before a plan is made, `bounded` limits the
//! time for that, and `values` checks tensors while a plan runs. What the engine computes wrong is replaced: by `algebra`,
//! `clip`, `deconvolution`, `elementwise`, `empty`, `exact`, `indexing`, `one_hot`, `quantisation`, `repairs`, `slices` and `widening`.
//!
//! The crate knows nothing of the server: it only implements the traits of `nereid-backend-api`.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod algebra;
mod analysis;
mod bounded;
mod cache_size;
mod chain;
mod clip;
mod conditional;
mod conditions;
mod convert;
mod deconvolution;
mod elementwise;
mod empty;
mod engine;
mod exact;
mod external_data;
mod extremes;
mod functions;
mod graph;
mod guard;
mod indexing;
mod learning;
mod limits;
mod one_hot;
mod operators;
mod pairs;
mod plans;
mod pools;
mod quantisation;
mod quantised_lstm;
mod recurrence;
mod repairs;
mod rules;
mod scratch;
mod signature;
mod slices;
mod symbols;
mod values;
mod verify;
mod widening;
mod windows;

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{
    Backend, BackendCapabilities, BackendSettings, Error, Instance, InstanceContext, InstanceKind, Model,
    ModelCapabilities, ModelConfig, ModelContext, Request, Result, SharedInputs,
};
use nereid_graph_executor::{Executor, GraphModel, Port, optional_inputs};
use nereid_model_config::{complete_tensors, default_model_filename};
use tract_onnx::prelude::TValue;

use crate::bounded::{Bounded, Together};
use crate::engine::TractEngine;
use crate::graph::OnnxFile;
use crate::limits::Limits;
use crate::plans::Plans;
use crate::signature::datum_type;

/// Name and version of the engine, for people.
pub const ENGINE: &str = "tract 0.23";

const DEFAULT_FILENAME: &str = "model.onnx";

/// The embedded ONNX engine.
pub struct TractBackend {
    settings: BackendSettings,
    reason: String,
    abandoned: Together,
}

impl TractBackend {
    /// The engine with its settings, of which it knows `default-max-batch-size`, and the reason why it serves the
    /// models it is given, for the log: the caller that chose it knows.
    pub fn new(settings: BackendSettings, reason: impl Into<String>) -> Self {
        Self { settings, reason: reason.into(), abandoned: Together::default() }
    }

    /// Loads a model that is in memory, as ONNX made of the file at `origin`.
    ///
    /// # Errors
    /// As [`Backend::load`].
    pub fn load_onnx(&self, context: &ModelContext, onnx: &[u8], origin: PathBuf) -> Result<Box<dyn Model>> {
        self.load_file(context, OnnxFile::decode(onnx, origin))
    }

    fn load_file(&self, context: &ModelContext, file: Result<OnnxFile>) -> Result<Box<dyn Model>> {
        let model = file
            .and_then(|file| load(context, &self.settings, &self.abandoned, file))
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        tracing::info!(
            "model '{}' version {} is served by the embedded engine ({ENGINE}): {}",
            context.name,
            context.version,
            self.reason
        );
        Ok(Box::new(model))
    }
}

impl Backend for TractBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let filename = default_model_filename(&context.config).unwrap_or(DEFAULT_FILENAME);
        self.load_file(&context, OnnxFile::read(&context.version_directory(), filename))
    }

    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { completes_config: true, ..BackendCapabilities::default() }
    }
}

/// Checks that the engine has the operators of a model, without loading it. A file that cannot be read passes: the load
/// reports the reason.
///
/// # Errors
/// The operators and opsets that the engine lacks.
pub fn check_operators(context: &ModelContext) -> Result<()> {
    let filename = default_model_filename(&context.config).unwrap_or(DEFAULT_FILENAME);
    OnnxFile::read(&context.version_directory(), filename).map_or(Ok(()), |mut file| file.check_operators())
}

struct TractModel {
    graph: Arc<GraphModel>,
    engine: TractEngine,
    completed: Option<ModelConfig>,
}

impl Model for TractModel {
    fn engine(&self) -> Option<String> {
        Some(ENGINE.to_owned())
    }

    fn capabilities(&self) -> ModelCapabilities {
        // Each input is copied to the engine's own tensors once.
        ModelCapabilities { shared_inputs: SharedInputs::InPlace, ..ModelCapabilities::default() }
    }

    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        if let InstanceKind::Gpu(_) = context.kind {
            return Err(Error::unsupported(format!(
                "instance '{}' is configured to run on {}, but the embedded engine runs on the CPU only",
                context.name, context.kind
            )));
        }
        Ok(Box::new(Executor::new(Arc::clone(&self.graph), self.engine.clone())))
    }

    fn runs_at_once(&self, request: &Request) -> bool {
        self.engine.has_plan(&self.graph, request)
    }
}

fn load(
    context: &ModelContext,
    settings: &BackendSettings,
    abandoned: &Together,
    mut file: OnnxFile,
) -> Result<TractModel> {
    let default_max_batch_size = settings.default_max_batch_size()?;
    let mut config = context.config.clone();
    if context.complete {
        complete_tensors(&mut config, &file.signature()?.tensors(), default_max_batch_size)
            .map_err(|error| Error::invalid_arg(error.to_string()))?;
    }
    let mut defaults = Vec::new();
    let optional = optional_inputs(&config, |name| {
        let value = file.initial_value(name)?;
        let found = value.is_some();
        defaults.extend(value.map(|value| (name.to_owned(), TValue::from(value))));
        Ok(found)
    })?;
    file.free_inputs(config.input.iter().map(|input| input.name.as_str()));
    let signature = file.signature()?;
    let mut model = GraphModel::new(&context.name, &config, signature, &optional)?;
    // ONNX Runtime's backend for Triton answers in the order of the names, not of the configuration.
    model.outputs.sort_by(|one, other| one.port.name.cmp(&other.port.name));
    let names: Vec<_> = model.outputs.iter().map(|output| output.port.name.clone()).collect();
    let plan_cache_size = cache_size::plan_cache_size(&config, file.weights())?;
    let (limits, bounded) = (Limits::new(&config)?, Bounded::new(abandoned));
    let graph = bounded
        .run(limits.planning, move || Ok(file.into_graph(&names)))
        .map_err(|why| Error::invalid_arg(format!("the embedded engine cannot load it: {why}")))??;

    let defaults =
        model.inputs.iter().map(|input| default(&input.port, &mut defaults)).collect::<Result<_>>()?;
    let types = model.inputs.iter().map(|input| (input.port.name.clone(), datum_type(input.port.data_type)));
    let plans = Arc::new(Plans::new(graph, types.collect(), plan_cache_size, limits, bounded));
    // A graph that cannot run fails the load rather than its first request, if its shapes are known now.
    if let Some(shapes) = model.fixed_shapes() {
        plans.get(&shapes.into())?;
    }
    let engine = TractEngine { plans, defaults };
    Ok(TractModel { graph: Arc::new(model), engine, completed: context.complete.then_some(config) })
}

/// The value that the file has for an input, held against what the file declares of it.
fn default(port: &Port, values: &mut Vec<(String, TValue)>) -> Result<Option<TValue>> {
    let Some(at) = values.iter().position(|(name, _)| *name == port.name) else { return Ok(None) };
    let (_, value) = values.swap_remove(at);
    let shape = convert::shape_of(&value);
    if value.datum_type() == datum_type(port.data_type) && port.accepts(&shape) {
        return Ok(Some(value));
    }
    Err(Error::invalid_arg(format!(
        "the model's input '{}' is {} {}, but its value in the file is {:?} {shape}",
        port.name,
        port.data_type,
        port.describe_dims(),
        value.datum_type()
    )))
}

#[cfg(test)]
mod tests;
