//! Runs forests of decision trees: models of XGBoost, LightGBM, scikit-learn and cuML, as backend `fil`.
//!
//! Triton's backend of that name, the Forest Inference Library, has the same configurations, files and results. This engine is
//! pure Rust and runs on the CPU. A model's file is one of these in its version's folder:
//!
//! | file | `model_type` | of |
//! |---|---|---|
//! | `xgboost.json` | `xgboost_json` | XGBoost |
//! | `xgboost.ubj` | `xgboost_ubj` | XGBoost |
//! | `xgboost.model` | `xgboost` | XGBoost before 3.1, in its binary form |
//! | `model.txt` | `lightgbm` | LightGBM |
//! | `checkpoint.tl` | `treelite_checkpoint` | Treelite 2.4, 3 and 4: scikit-learn, cuML and others |
//!
//! The output `treeshap_output`, if the configuration has it, explains each result: by how much each feature moved it.
//!
//! A file is read by `xgboost`, `lightgbm` or `treelite` into trees, which `nereid-trees` checks and lays out.
//!
//! The crate knows nothing of the server: it only implements the traits of `nereid-backend-api`.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod engine;
mod format;
mod lightgbm;
mod lists;
mod options;
mod ports;
mod precision;
mod treelite;
mod xgboost;

use std::sync::Arc;

use nereid_backend_api::{
    Backend, BackendCapabilities, BackendSettings, DataType, Error, Instance, InstanceContext, InstanceKind,
    Model, ModelCapabilities, ModelConfig, ModelContext, Request, Result, SharedInputs,
};
use nereid_graph_executor::{Executor, GraphModel};
use nereid_model_config::complete_tensors;

use crate::engine::{ForestEngine, Served};
use crate::format::FoundFormat;
use crate::options::Options;
use crate::ports::{Ports, Types};
use crate::precision::AnyForest;

/// The `max_batch_size` of models that configure none: rows are small, and large batches are usual.
const MAX_BATCH_SIZE: i32 = 32_768;

/// The most ways through trees that a request takes on its caller's thread: some microseconds.
const SMALL: usize = 1 << 10;

/// The backend of forests.
#[derive(Debug, Default)]
pub struct ForestBackend {
    settings: BackendSettings,
}

impl ForestBackend {
    /// The backend with its settings, of which it knows `default-max-batch-size`.
    pub fn new(settings: BackendSettings) -> Self {
        Self { settings }
    }

    fn load_model(&self, context: &ModelContext) -> Result<ForestModel> {
        let mut config = context.config.clone();
        let (forest, ports, options, format) = read(context)?;
        if context.complete {
            complete_tensors(
                &mut config,
                &ports.signature.tensors(),
                self.settings.default_max_batch_size_or(MAX_BATCH_SIZE)?,
            )
            .map_err(|error| Error::invalid_arg(error.to_string()))?;
        }
        let graph = GraphModel::new(&context.name, &config, ports.signature, &[])?;
        let what = match forest.depth() {
            1 if forest.description().linear => "a linear model".to_owned(),
            depth => format!("a forest of {} trees, at most {depth} deep,", forest.trees()),
        };
        tracing::info!(
            "model '{}' version {} is {what} for {} features ({format})",
            context.name,
            context.version,
            forest.description().features,
        );
        Ok(ForestModel {
            served: Arc::new(Served::new(forest, ports.results, options.threads)),
            graph: Arc::new(graph),
            completed: context.complete.then_some(config),
        })
    }
}

impl Backend for ForestBackend {
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { completes_config: true, ..BackendCapabilities::default() }
    }

    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let model = self.load_model(&context);
        Ok(Box::new(model.map_err(|error| error.context(format_args!("model '{}'", context.name)))?))
    }
}

/// Checks that the file of a version is a forest that fits the configuration.
///
/// # Errors
/// The reason why it would not be loaded.
pub fn check_file(model: &ModelContext) -> Result<()> {
    read(model).map(|_| ())
}

/// The forest of a version, its inputs and outputs, and where it was read from.
fn read(context: &ModelContext) -> Result<(AnyForest, Ports, Options, FoundFormat)> {
    let options = Options::of(&context.config)?;
    let (path, format) = format::find(&context.version_directory(), &context.config, options.model_type)?;
    let types = Types::of(&context.config)?;
    let forest = format::read(&path, format, types.input == DataType::Fp64)?;
    let ports = Ports::new(&forest, &options, types, &context.config)?;
    Ok((forest, ports, options, format))
}

struct ForestModel {
    graph: Arc<GraphModel>,
    served: Arc<Served>,
    completed: Option<ModelConfig>,
}

impl Model for ForestModel {
    fn capabilities(&self) -> ModelCapabilities {
        // A value decides which way a row takes, and nothing else.
        ModelCapabilities { shared_inputs: SharedInputs::InPlace, ..ModelCapabilities::default() }
    }

    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        if let InstanceKind::Gpu(_) = context.kind {
            return Err(Error::unsupported(format!(
                "instance '{}' is configured to run on {}, but forests run on the CPU only: use KIND_CPU or KIND_AUTO",
                context.name, context.kind
            )));
        }
        let engine = ForestEngine::new(Arc::clone(&self.served), Arc::clone(&self.graph));
        Ok(Box::new(Executor::new(Arc::clone(&self.graph), engine)))
    }

    fn runs_at_once(&self, request: &Request) -> bool {
        self.served.ways(request.batch_size()) <= SMALL
    }
}

#[cfg(test)]
mod tests;
