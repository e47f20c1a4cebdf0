//! Loads each model in a process first, and in the server if that succeeded.

use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, Error, Model, ModelContext, NoPeers, Result};
use nereid_worker::{Launch, Limits, Process, model_arguments};
use nereid_worker_protocol::call;

use crate::idle::Idle;
use crate::patience;
use crate::settings::Settings;

/// A backend in the server whose models are tried in processes first.
pub struct Trial {
    backend: Arc<dyn Backend>,
    launch: Launch,
    settings: Settings,
    /// Processes that have tried a model with success: opening a framework takes longer than loading most models.
    idle: Arc<Idle>,
}

impl Trial {
    /// Tries models in processes that `launch` starts. They [host](nereid_worker::host) the same backend.
    pub fn new(backend: Arc<dyn Backend>, launch: Launch, settings: Settings) -> Self {
        Self { backend, launch, settings, idle: Arc::default() }
    }

    /// Tries to load the model in a process.
    fn try_out(&self, context: &ModelContext) -> Result<()> {
        let name = format!("{} (trial)", context.name);
        if let Some(process) = self.idle.take() {
            process.rename(&name);
            let outcome = self.load_in(&process, context);
            if process.ended().is_none() {
                return outcome.map(|()| self.idle.put(process));
            }
            // The failure may be due to an earlier model in this process: try again in a new one.
        }
        let process =
            Process::start(&self.launch, &name, Arc::new(NoPeers), Limits::default(), Box::new(|_| ()));
        let process = match process {
            Ok(process) => process,
            // The trial may be skipped only if it is the default and not a setting.
            Err(error) if self.settings.isolation.is_none() => {
                tracing::warn!("model '{}' is loaded without a trial in a process: {error}", context.name);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.load_in(&process, context).map(|()| self.idle.put(process))
    }

    fn load_in(&self, process: &Process, context: &ModelContext) -> Result<()> {
        let limit = self.settings.load;
        let limit = limit.unwrap_or_else(|| Some(patience::for_files(&context.version_directory())));
        let arguments = model_arguments(context);
        let outcome = process.call_within(limit, call::COMPLETE, call::COMPLETED, |message| {
            message.pairs(arguments.iter().map(|(name, value)| (*name, value.as_str())));
        });
        let Err(error) = outcome else { return Ok(()) };
        Err(match process.ended() {
            // The backend refused the model.
            None => error,
            Some(end) => Error::invalid_arg(format!(
                "model '{}': the process that tried to load it {end}; it is not loaded into the server",
                context.name
            )),
        })
    }
}

impl Backend for Trial {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        self.try_out(&context)?;
        self.backend.load(context)
    }

    fn capabilities(&self) -> BackendCapabilities {
        self.backend.capabilities()
    }
}
