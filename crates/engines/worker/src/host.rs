//! The worker's side: a process that hosts an instance of a backend's model. It serves the calls of the server that
//! started it, one at a time.
//!
//! A backend here has a registry for its metrics, no other peers, and a single model. The host knows nothing of the server except its
//! calls.

mod arguments;
mod continuous;
mod execution;
mod peers;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{
    Backend, Error, Instance, MetricRegistry, Model, ModelConfig, ModelContext, ReadinessReports, Result,
};
use nereid_model_config::to_json;
use nereid_worker_protocol::worker::{Connection, connect};
use nereid_worker_protocol::{Channel, Incoming, Malformed, Message, Receiver, Sender, call};

use self::continuous::ContinuousInstance;
use self::peers::HostPeers;
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
    let Connection { calls, side } = connect(description)?;
    let side = Side { sender: Arc::new(Mutex::new(side.sender)), receiver: Some(side.receiver) };
    let metrics = MetricRegistry::default();
    Host { calls, side, open, metrics, backend: None, loaded: None, instance: None }.serve()
}

/// The side channel.
struct Side {
    sender: Arc<Mutex<Sender>>,
    /// `None` once a thread reads it.
    receiver: Option<Receiver>,
}

impl Side {
    /// How many messages were sent.
    fn sent(&self) -> u64 {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).sent()
    }
}

struct Host<F> {
    calls: Channel,
    side: Side,
    open: F,
    metrics: MetricRegistry,
    backend: Option<Arc<dyn Backend>>,
    loaded: Option<LoadedModel>,
    instance: Option<HostedInstance>,
}

/// An instance, by the way it executes.
enum HostedInstance {
    /// Batch by batch, on the thread that serves calls.
    Batches(Box<dyn Instance>),
    /// On a thread of its own, while it takes further requests.
    Continuous(ContinuousInstance),
}

/// The values of [`call::INITIALIZED`].
struct Initialized {
    flags: u32,
    capacity: Option<u32>,
    engine: Option<String>,
}

struct LoadedModel {
    model: Box<dyn Model>,
    config: ModelConfig,
}

impl<F: FnMut() -> Result<Arc<dyn Backend>>> Host<F> {
    fn serve(mut self) -> io::Result<()> {
        while let Some(incoming) = self.calls.receiver.receive()? {
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
                    let initialized = self.initialize(&incoming);
                    self.reply(
                        call::INITIALIZED,
                        initialized,
                        |message, Initialized { flags, capacity, engine }| {
                            message.u32(flags);
                            capacity.into_iter().for_each(|capacity| message.u32(capacity));
                            engine.into_iter().for_each(|engine| message.text(&engine));
                        },
                    )?;
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
        let sent = self.side.sent();
        let sender = &mut self.calls.sender;
        match outcome {
            Ok(value) => {
                let mut message = sender.message(kind);
                write(&mut message, value);
                message.send()
            }
            Err(error) => {
                let mut message = sender.message(call::FAILED);
                message.failure(convert::failure(&error));
                message.u64(sent);
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

    fn load(&mut self, mut context: ModelContext) -> Result<&LoadedModel> {
        context.peers = Arc::new(HostPeers(self.metrics.clone()));
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

    fn initialize(&mut self, incoming: &Incoming) -> Result<Initialized> {
        let pairs = pairs(incoming)?;
        let (context, instance) = (arguments::model(&pairs)?, arguments::instance(&pairs)?);
        if self.loaded.is_none() {
            self.load(context)?;
        }
        let Some(loaded) = &self.loaded else { return Err(Error::internal("no model is loaded")) };
        let instance = loaded.model.create_instance(instance)?;
        let asks = loaded.model.capabilities().readiness != ReadinessReports::Never;
        let engine = loaded.model.engine();
        let mut flags = if asks { call::REPORTS_READINESS } else { 0 };
        if engine.is_some() {
            flags |= call::NAMES_ENGINE;
        }
        if !instance.executes_continuously() {
            self.instance = Some(HostedInstance::Batches(instance));
            return Ok(Initialized { flags, capacity: None, engine });
        }
        let capacity = u32::try_from(instance.capacity()).unwrap_or(u32::MAX);
        let instance = ContinuousInstance::start(
            instance,
            Arc::clone(&self.side.sender),
            self.side.receiver.take(),
            self.metrics.clone(),
        )
        .map_err(|error| Error::unavailable(format!("cannot start the instance's thread: {error}")))?;
        self.instance = Some(HostedInstance::Continuous(instance));
        Ok(Initialized { flags: flags | call::EXECUTES_CONTINUOUSLY, capacity: Some(capacity), engine })
    }

    fn execute(&mut self, incoming: &Incoming) -> io::Result<()> {
        let (Some(instance), Some(loaded)) = (&mut self.instance, &self.loaded) else {
            return self.reply(call::EXECUTED, Err(Error::internal("there is no instance")), |_, ()| ());
        };
        let sent = self.side.sent();
        let mut message = self.calls.sender.message(call::EXECUTED);
        match instance {
            HostedInstance::Batches(instance) => {
                message.u64(sent);
                execution::execute(&loaded.config, &mut **instance, incoming, &mut message)?;
            }
            HostedInstance::Continuous(instance) => {
                // No earlier message concerns these requests.
                message.u64(0);
                instance.take(incoming, &mut message)?;
            }
        }
        message.send()
    }
}

fn pairs(incoming: &Incoming) -> Result<Vec<(&str, &str)>> {
    incoming.reader().pairs().map_err(|error| Error::internal(format!("the server's call: {error}")))
}
