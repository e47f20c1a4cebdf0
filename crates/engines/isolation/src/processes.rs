//! Runs the instances of a backend's models in separate processes.

use std::sync::Arc;
use std::time::Duration;

use nereid_backend_api::{
    Backend, BackendCapabilities, InstanceContext, Model, ModelConfig, ModelContext, NoPeers, Result,
};
use nereid_worker::{
    Arguments, Launch, Limits, Process, Program, SandboxSettings, WorkerModel, instance_arguments,
    model_arguments,
};
use nereid_worker_protocol::call;

use crate::patience;
use crate::settings::Settings;
use crate::threads::{ThreadBudget, ThreadLease};

/// Time limit for opening the backend, which may have to compile code first.
const OPENING: Duration = Duration::from_secs(600);

/// Time limit for one step of an instance that executes continuously: even large models take less on slow processors.
const STEP: Duration = Duration::from_secs(300);

/// The shortest limit for such a step. Processes report their progress several times in this time.
const SHORTEST_STEP: Duration = Duration::from_secs(1);

/// The environment variable that lets a process log at level info while it opens the backend. Only the first process
/// does.
pub const INFORMS: &str = "NEREID_HOST_INFORMS";

/// A backend whose instances run in separate processes.
pub struct Processes {
    launch: Launch,
    settings: Settings,
    sandbox: SandboxSettings,
    capabilities: BackendCapabilities,
    /// `None` if models may have any number of threads.
    threads: Option<Arc<ThreadBudget>>,
}

impl Processes {
    /// Runs models in processes that `launch` starts, which read what its policy names, beside the model. They [host](nereid_worker::host) a backend of these capabilities.
    ///
    /// # Errors
    /// The process does not start, or cannot open the backend.
    pub fn new(
        launch: Launch,
        settings: Settings,
        sandbox: SandboxSettings,
        capabilities: BackendCapabilities,
    ) -> Result<Self> {
        let limits = Limits { load: Some(OPENING), ..Limits::default() };
        let mut first = launch.clone();
        first.variables.push((INFORMS.into(), Some("1".into())));
        first.policy = sandbox.without_model()?;
        let process = Process::start(&first, "backend", Arc::new(NoPeers), limits, Box::new(|_| ()))?;
        process.call(call::READY, call::READINESS, |_| ())?;
        Ok(Self { launch, settings, sandbox, capabilities, threads: None })
    }

    /// Limits the threads of all models together to the number of processors. `parameter` is a model's, with the threads of each of its
    /// instances.
    #[must_use]
    pub fn limiting_threads(self, parameter: &'static str) -> Self {
        Self { threads: Some(Arc::new(ThreadBudget::new(parameter))), ..self }
    }
}

impl Backend for Processes {
    fn load(&self, mut context: ModelContext) -> Result<Box<dyn Model>> {
        let threads = self.threads.as_ref().map(|budget| budget.lease(&context.name, &mut context.config));
        let load = self.settings.load;
        let load = load.unwrap_or_else(|| Some(patience::for_files(&context.version_directory())));
        let step = self.settings.execute.unwrap_or(Some(STEP)).map(|limit| limit.max(SHORTEST_STEP));
        let limits = Limits { load, execute: self.settings.execute.flatten(), step, ..Limits::default() };
        tracing::info!(
            "model '{}' version {} is served by processes of their own, one for each instance",
            context.name,
            context.version
        );
        let mut launch = self.launch.clone();
        launch.policy = self.sandbox.of_model(&context, launch.policy.readable)?;
        Ok(Box::new(WorkerModel::load(
            context,
            launch,
            limits,
            Box::new(HostArguments { _threads: threads }),
        )?))
    }

    fn capabilities(&self) -> BackendCapabilities {
        // Processes cannot receive device memory.
        BackendCapabilities { runs_on_gpus: false, is_isolated: true, ..self.capabilities }
    }
}

/// The arguments of a model's processes.
struct HostArguments {
    _threads: Option<ThreadLease>,
}

impl Program for HostArguments {
    fn of_model(&self, context: &ModelContext) -> Arguments {
        model_arguments(context)
    }

    fn of_instance(
        &self,
        context: &ModelContext,
        config: &ModelConfig,
        instance: &InstanceContext,
    ) -> Arguments {
        instance_arguments(context, config, instance)
    }

    fn checks_complete_models(&self) -> bool {
        true
    }

    fn completes_parameters(&self) -> bool {
        true
    }

    fn returns_states(&self) -> bool {
        true
    }
}
