//! A model whose instances run in processes: its configuration, completed by one of them, and its instances.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nereid_backend_api::{
    Error, Instance, InstanceContext, Metric, MetricKind, Model, ModelCapabilities, ModelConfig,
    ModelContext, ReadinessAnnouncer, ReadinessReports, Result, SharedInputs,
};
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::{adopt_completed, adopt_parameters, from_json};
use nereid_worker_protocol::call;

use crate::instance::WorkerInstance;
use crate::launch::Launch;
use crate::process::{Limits, Process};
use crate::worker::{Worker, WorkerEvents, Workers};

/// Characters of an engine's name that are kept.
const MAX_ENGINE: usize = 200;

/// The metric that counts restarted processes.
const RESTARTS: &str = "nereid_worker_restarts_total";

/// Names and values passed to a process.
pub type Arguments = Vec<(&'static str, String)>;

/// The arguments and the behaviour of a model's processes.
pub trait Program: Send + Sync {
    /// Describes the model, without an instance.
    fn of_model(&self, context: &ModelContext) -> Arguments;

    /// Describes an instance of the model, with its configuration completed.
    fn of_instance(
        &self,
        context: &ModelContext,
        config: &ModelConfig,
        instance: &InstanceContext,
    ) -> Arguments;

    /// Whether a process inspects the model at load, even if its configuration need not be completed.
    fn checks_complete_models(&self) -> bool {
        false
    }

    /// Whether parameters of completed configurations are adopted.
    fn completes_parameters(&self) -> bool {
        false
    }

    /// Whether responses have the states of their sequences among their outputs.
    fn returns_states(&self) -> bool {
        false
    }

    /// Whether processes open inputs that are in memory of a device, where they can.
    fn reads_device_memory(&self) -> bool {
        false
    }
}

/// A loaded model.
pub struct WorkerModel {
    shared: Arc<Shared>,
    completed: Option<ModelConfig>,
    /// The process that inspected the model. The first instance takes it.
    spare: Mutex<Option<Spare>>,
    workers: Workers,
}

struct Shared {
    context: ModelContext,
    launch: Launch,
    limits: Limits,
    program: Box<dyn Program>,
    /// Completed, and with the current instances.
    config: Mutex<ModelConfig>,
    restarts: Option<Metric>,
    /// Whether instances report their readiness.
    reports_readiness: AtomicBool,
    /// How many requests an instance holds, if instances execute continuously; otherwise 0.
    capacity: AtomicUsize,
    /// See [`Model::engine`].
    engine: Mutex<Option<String>>,
    /// Hears of processes that end and start.
    announcer: OnceLock<ReadinessAnnouncer>,
}

/// Called when a process ends; its owner sets it.
type ExitHook = Arc<Mutex<Option<Box<dyn FnOnce(&str) + Send>>>>;

/// A process without an instance.
struct Spare {
    process: Arc<Process>,
    ended: ExitHook,
}

impl WorkerModel {
    /// Loads a model: has a process complete the configuration, if it may.
    ///
    /// # Errors
    /// The process does not start, or refuses the model.
    pub fn load(
        context: ModelContext,
        launch: Launch,
        limits: Limits,
        program: Box<dyn Program>,
    ) -> Result<Self> {
        let restarts = restarts(&context);
        let looks = context.complete || program.checks_complete_models();
        let shared = Arc::new(Shared {
            config: Mutex::new(context.config.clone()),
            context,
            launch,
            limits,
            program,
            restarts,
            reports_readiness: AtomicBool::new(false),
            capacity: AtomicUsize::new(0),
            engine: Mutex::default(),
            announcer: OnceLock::new(),
        });
        let mut model =
            Self { completed: None, spare: Mutex::default(), workers: Workers::default(), shared };
        if looks {
            let spare = model.shared.spare()?;
            model.completed = model.shared.complete(&spare.process)?;
            model.spare = Mutex::new(Some(spare));
        }
        Ok(model)
    }
}

impl Shared {
    fn name(&self) -> &str {
        &self.context.name
    }

    fn process(&self, name: &str, ended: Box<dyn FnOnce(&str) + Send>) -> Result<Arc<Process>> {
        Process::start(&self.launch, name, Arc::clone(&self.context.peers), self.limits, ended)
    }

    fn spare(&self) -> Result<Spare> {
        let ended = ExitHook::default();
        let slot = Arc::clone(&ended);
        let report = move |end: &str| {
            if let Some(ended) = lock(&slot).take() {
                ended(end);
            }
        };
        let process = self.process(self.name(), Box::new(report))?;
        Ok(Spare { process, ended })
    }

    /// An error of a process, which names the model: a backend's own names it already, a program's does not.
    fn named(&self, error: Error) -> Error {
        let model = format!("model '{}'", self.name());
        if error.message().starts_with(&model) { error } else { error.context(model) }
    }

    /// Has a process complete the configuration.
    fn complete(&self, process: &Process) -> Result<Option<ModelConfig>> {
        let arguments = self.program.of_model(&self.context);
        let answer = process.call(call::COMPLETE, call::COMPLETED, |message| put(message, &arguments));
        let answer = answer.map_err(|error| self.named(error))?;
        let malformed = |error| Error::internal(format!("model '{}': {error}", self.name()));
        let Some(json) = answer.reader().optional_text().map_err(malformed)? else { return Ok(None) };
        let completed = from_json(json).map_err(|error| {
            Error::invalid_arg(format!("model '{}': the completed configuration: {error}", self.name()))
        })?;
        let mut config = self.context.config.clone();
        if self.program.completes_parameters() {
            adopt_parameters(&mut config, &completed);
        }
        adopt_completed(&mut config, completed)
            .map_err(|error| Error::invalid_arg(format!("model '{}': {error}", self.name())))?;
        lock(&self.config).clone_from(&config);
        Ok(Some(config))
    }

    fn initialize(&self, process: &Process, instance: &InstanceContext) -> Result<()> {
        let config = lock(&self.config).clone();
        let arguments = self.program.of_instance(&self.context, &config, instance);
        let answer = process.call(call::INITIALIZE, call::INITIALIZED, |message| put(message, &arguments));
        let answer = answer.map_err(|error| self.named(error))?;
        let mut reader = answer.reader();
        let malformed = |error| Error::internal(format!("model '{}': {error}", self.name()));
        let flags = reader.u32().map_err(malformed)?;
        if flags & call::EXECUTES_CONTINUOUSLY != 0 {
            let capacity = reader.u32().map_err(malformed)?;
            self.capacity.store(usize::try_from(capacity).unwrap_or(1).max(1), Ordering::Relaxed);
            if let Some(limit) = self.limits.step {
                process.requests.limit_steps(limit);
            }
        }
        if flags & call::NAMES_ENGINE != 0 {
            let engine = reader.text().map_err(malformed)?;
            *lock(&self.engine) = Some(engine.chars().take(MAX_ENGINE).collect());
        }
        self.reports_readiness.fetch_or(flags & call::REPORTS_READINESS != 0, Ordering::Relaxed);
        Ok(())
    }
}

fn put(message: &mut nereid_worker_protocol::Message<'_>, arguments: &Arguments) {
    message.pairs(arguments.iter().map(|(key, value)| (*key, value.as_str())));
}

impl Model for WorkerModel {
    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn instances_changed(&self, groups: &[ModelInstanceGroup]) {
        lock(&self.shared.config).instance_group = groups.to_vec();
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let spare = Mutex::new(lock(&self.spare).take());
        let name = context.name.clone();
        let events = Starts { shared: Arc::clone(&self.shared), instance: context, spare };
        let worker = Worker::start(&name, Box::new(events))?;
        self.workers.add(&worker);
        let config = lock(&self.shared.config);
        let outputs = config.output.iter().map(|output| output.name.clone()).collect();
        let mut instance = WorkerInstance::new(worker, outputs);
        if self.shared.program.returns_states() {
            instance = instance.taking_states();
        }
        if self.shared.program.reads_device_memory() {
            instance = instance.reading_device_memory();
        }
        let capacity = self.shared.capacity.load(Ordering::Relaxed);
        if capacity > 0 {
            return Ok(Box::new(instance.executing_continuously(capacity)));
        }
        // Requests of a sequence belong to one instance, which may hold state for them.
        let is_bound = matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)));
        Ok(Box::new(if is_bound { instance } else { instance.helped_by(self.workers.clone()) }))
    }

    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities {
            // Copied to the process once.
            shared_inputs: SharedInputs::InPlace,
            creates_instances_in_parallel: true,
            reads_device_memory: self.shared.program.reads_device_memory(),
            // The server's side sees processes end and start. A model's own readiness has to be polled.
            readiness: match self.shared.reports_readiness.load(Ordering::Relaxed) {
                true => ReadinessReports::WhenAsked,
                false => ReadinessReports::Announced,
            },
        }
    }

    fn engine(&self) -> Option<String> {
        lock(&self.shared.engine).clone()
    }

    fn announce_readiness(&self, announcer: ReadinessAnnouncer) {
        // Of several, which do the same, the first one stays.
        let _ = self.shared.announcer.set(announcer);
    }

    fn processes(&self) -> Vec<u32> {
        self.workers.all().iter().filter_map(|worker| worker.running_now()?.id()).collect()
    }

    fn ready(&self) -> Result<()> {
        let asks = self.shared.reports_readiness.load(Ordering::Relaxed);
        self.workers.all().iter().try_for_each(|worker| worker.ready(asks))
    }
}

/// Starts the processes of one instance.
struct Starts {
    shared: Arc<Shared>,
    instance: InstanceContext,
    spare: Mutex<Option<Spare>>,
}

impl WorkerEvents for Starts {
    fn start(&self, ended: Box<dyn FnOnce(&str) + Send>) -> Result<Arc<Process>> {
        let spare = lock(&self.spare).take().filter(|spare| spare.process.ended().is_none());
        let process = match spare {
            Some(spare) => {
                *lock(&spare.ended) = Some(ended);
                spare.process.rename(&self.instance.name);
                spare.process
            }
            None => self.shared.process(&self.instance.name, ended)?,
        };
        self.shared.initialize(&process, &self.instance)?;
        Ok(process)
    }

    fn readiness_changed(&self) {
        if let Some(announcer) = self.shared.announcer.get() {
            announcer.changed();
        }
    }

    fn restarted(&self) {
        if let Some(restarts) = &self.shared.restarts {
            // A counter takes any positive number.
            let _ = restarts.increment(1.0);
        }
    }
}

/// Counts the model's restarted processes; `None` without a server to count them.
fn restarts(context: &ModelContext) -> Option<Metric> {
    let registry = context.peers.metrics().ok()?;
    let help = "Processes of model instances that were started again after they died";
    let family = registry.family(MetricKind::Counter, RESTARTS, help).ok()?;
    let labels = [("model", context.name.clone()), ("version", context.version.to_string())];
    family.metric(labels.map(|(key, value)| (key.to_owned(), value)).into(), None).ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
