//! The worker's side: a process that hosts an instance of a backend's model. It serves the calls of the server that
//! started it, one at a time.
//!
//! A backend here has no peers, and a single model. The host knows nothing of the server except its calls.

mod arguments;
mod execution;

use std::io;
use std::sync::Arc;

use nereid_backend_api::{
    Backend, Error, Instance, Model, ModelConfig, ModelContext, ReadinessReports, Result,
};
use nereid_model_config::to_json;
use nereid_worker_protocol::worker::{Connection, connect};
use nereid_worker_protocol::{Incoming, Malformed, Message, call};

use crate::convert;

pub use self::arguments::{instance_arguments, model_arguments};

/// Hosts an instance in this process, which a server started, until that closes the connection. `open` opens the backend when
/// the first call needs it; the question whether the process is ready is such a call.
///
/// Call it once, before other threads read standard input.
///
/// # Errors
/// The connection to the server broke.
pub fn host(description: &str, open: impl FnMut() -> Result<Arc<dyn Backend>>) -> io::Result<()> {
    Host { connection: connect(description)?, open, backend: None, loaded: None, instance: None }.serve()
}

struct Host<F> {
    connection: Connection,
    open: F,
    backend: Option<Arc<dyn Backend>>,
    loaded: Option<LoadedModel>,
    instance: Option<Box<dyn Instance>>,
}

struct LoadedModel {
    model: Box<dyn Model>,
    config: ModelConfig,
}

impl<F: FnMut() -> Result<Arc<dyn Backend>>> Host<F> {
    fn serve(mut self) -> io::Result<()> {
        while let Some(incoming) = self.connection.calls.receiver.receive()? {
            match incoming.kind() {
                call::EXECUTE => self.execute(&incoming)?,
                call::READY => {
                    let ready = self.ready();
                    self.reply(call::READINESS, ready, |message, ()| message.bool(true))?;
                }
                call::COMPLETE => {
                    let completed = self.complete(&incoming);
                    self.reply(call::COMPLETED, completed, |message, config| {
                        message.optional_text(config.as_deref());
                    })?;
                }
                call::INITIALIZE => {
                    let flags = self.initialize(&incoming);
                    self.reply(call::INITIALIZED, flags, |message, flags| message.u32(flags))?;
                }
                call::FINALIZE => {
                    (self.instance, self.loaded) = (None, None);
                    self.reply(call::FINALIZED, Ok(()), |_, ()| ())?;
                }
                _ => return Err(Malformed("an unknown call").into()),
            }
        }
        Ok(())
    }

    fn reply<T>(
        &mut self,
        kind: u16,
        outcome: Result<T>,
        write: impl FnOnce(&mut Message<'_>, T),
    ) -> io::Result<()> {
        let sender = &mut self.connection.calls.sender;
        match outcome {
            Ok(value) => {
                let mut message = sender.message(kind);
                write(&mut message, value);
                message.send()
            }
            Err(error) => {
                let mut message = sender.message(call::FAILED);
                message.failure(convert::failure(&error));
                message.u64(self.connection.side.sender.sent());
                message.send()
            }
        }
    }

    fn backend(&mut self) -> Result<Arc<dyn Backend>> {
        if let Some(backend) = &self.backend {
            return Ok(Arc::clone(backend));
        }
        let backend = (self.open)()?;
        Ok(Arc::clone(self.backend.insert(backend)))
    }

    fn ready(&mut self) -> Result<()> {
        self.backend()?;
        self.loaded.as_ref().map_or(Ok(()), |loaded| loaded.model.ready())
    }

    fn load(&mut self, context: ModelContext) -> Result<&LoadedModel> {
        let config = context.config.clone();
        // Only then does a reloaded model replace the previous one.
        let model = self.backend()?.load(context)?;
        let config = model.completed_config().cloned().unwrap_or(config);
        Ok(self.loaded.insert(LoadedModel { model, config }))
    }

    fn complete(&mut self, incoming: &Incoming) -> Result<Option<String>> {
        let context = arguments::model(&pairs(incoming)?)?;
        let loaded = self.load(context)?;
        Ok(loaded.model.completed_config().map(to_json))
    }

    fn initialize(&mut self, incoming: &Incoming) -> Result<u32> {
        let pairs = pairs(incoming)?;
        let (context, instance) = (arguments::model(&pairs)?, arguments::instance(&pairs)?);
        if self.loaded.is_none() {
            self.load(context)?;
        }
        let Some(loaded) = &self.loaded else { return Err(Error::internal("no model is loaded")) };
        self.instance = Some(loaded.model.create_instance(instance)?);
        let asks = loaded.model.capabilities().readiness != ReadinessReports::Never;
        Ok(if asks { call::REPORTS_READINESS } else { 0 })
    }

    fn execute(&mut self, incoming: &Incoming) -> io::Result<()> {
        let (Some(instance), Some(loaded)) = (&mut self.instance, &self.loaded) else {
            return self.reply(call::EXECUTED, Err(Error::internal("there is no instance")), |_, ()| ());
        };
        let sent = self.connection.side.sender.sent();
        let mut message = self.connection.calls.sender.message(call::EXECUTED);
        message.u64(sent);
        execution::execute(&loaded.config, &mut **instance, incoming, &mut message)?;
        message.send()
    }
}

fn pairs(incoming: &Incoming) -> Result<Vec<(&str, &str)>> {
    incoming.reader().pairs().map_err(|error| Error::internal(format!("the server's call: {error}")))
}
