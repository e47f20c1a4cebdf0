//! Loads each model in a process first, and into the server if that went well.

use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, Error, Model, ModelContext, NoPeers, Result};
use nereid_worker::{Launch, Limits, Process, model_arguments};
use nereid_worker_protocol::call;

use crate::patience;
use crate::settings::Settings;

/// A backend in the server whose models are tried in processes.
pub struct Trial {
    backend: Arc<dyn Backend>,
    launch: Launch,
    settings: Settings,
}

impl Trial {
    /// Tries the models of a backend in processes that `launch` starts, which [host](nereid_worker::host) the same backend.
    pub fn new(backend: Arc<dyn Backend>, launch: Launch, settings: Settings) -> Self {
        Self { backend, launch, settings }
    }

    /// Loads the model in a process.
    fn try_out(&self, context: &ModelContext) -> Result<()> {
        let load = self.settings.load;
        let load = load.unwrap_or_else(|| Some(patience::for_files(&context.version_directory())));
        let limits = Limits { load, ..Limits::default() };
        let name = format!("{} (trial)", context.name);
        let process = Process::start(&self.launch, &name, Arc::new(NoPeers), limits, Box::new(|_| ()));
        let process = match process {
            Ok(process) => process,
            // Only what nobody asked for may be left out.
            Err(error) if self.settings.isolation.is_none() => {
                tracing::warn!("model '{}' is loaded without a trial in a process: {error}", context.name);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let arguments = model_arguments(context);
        let outcome = process.call(call::COMPLETE, call::COMPLETED, |message| {
            message.pairs(arguments.iter().map(|(name, value)| (*name, value.as_str())));
        });
        let Err(error) = outcome else { return Ok(()) };
        Err(match process.ended() {
            // The backend's own reason.
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
