//! A backend scripted by the test.

use std::sync::Arc;

use nereid_backend_api::{
    Backend, Batch, CustomBatching, Instance, InstanceContext, Model, ModelCapabilities, ModelConfig,
    ModelContext, ReadinessAnnouncer, ReadinessReports, Request, Result,
};

type Load = dyn Fn(&ModelContext) -> Result<ScriptedModel> + Send + Sync;
type Create = dyn Fn(&InstanceContext) -> Result<()> + Send + Sync;
type Execute = dyn Fn(&InstanceContext, Batch) + Send + Sync;
type Ready = dyn Fn() -> Result<()> + Send + Sync;
type TakeAnnouncer = dyn Fn(ReadinessAnnouncer) + Send + Sync;

/// A backend whose loads follow a script. Clones share the script.
#[derive(Clone)]
pub struct ScriptedBackend(Arc<Load>);

impl ScriptedBackend {
    /// A backend that loads each model with `load`.
    pub fn new(load: impl Fn(&ModelContext) -> Result<ScriptedModel> + Send + Sync + 'static) -> Self {
        Self(Arc::new(load))
    }

    /// A backend whose models all do `execute` with each batch.
    pub fn executing(execute: impl Fn(Batch) + Send + Sync + 'static) -> Self {
        ScriptedModel::new(execute).into()
    }

    /// A backend whose models all do `answer` with each request.
    pub fn answering(answer: impl Fn(Request) + Send + Sync + 'static) -> Self {
        Self::executing(move |batch| batch.into_requests().into_iter().for_each(&answer))
    }
}

impl From<ScriptedModel> for ScriptedBackend {
    /// A backend all of whose models are this one.
    fn from(model: ScriptedModel) -> Self {
        Self::new(move |_| Ok(model.clone()))
    }
}

impl Backend for ScriptedBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        Ok(Box::new((self.0)(&context)?))
    }
}

/// A model whose instances follow a script.
#[derive(Clone)]
pub struct ScriptedModel {
    execute: Arc<Execute>,
    create: Arc<Create>,
    ready: Option<Arc<Ready>>,
    take_announcer: Option<Arc<TakeAnnouncer>>,
    completed: Option<ModelConfig>,
    custom_batching: Option<Arc<dyn CustomBatching>>,
    at_once: bool,
}

impl ScriptedModel {
    /// A model that does `execute` with each batch.
    pub fn new(execute: impl Fn(Batch) + Send + Sync + 'static) -> Self {
        Self::by_instance(move |_, batch| execute(batch))
    }

    /// A model that does `execute` with each batch, given the instance that executes it.
    pub fn by_instance(execute: impl Fn(&InstanceContext, Batch) + Send + Sync + 'static) -> Self {
        Self {
            execute: Arc::new(execute),
            create: Arc::new(|_| Ok(())),
            ready: None,
            take_announcer: None,
            completed: None,
            custom_batching: None,
            at_once: false,
        }
    }

    /// Calls `create` for each new instance; an error fails the instance.
    #[must_use]
    pub fn on_create(self, create: impl Fn(&InstanceContext) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { create: Arc::new(create), ..self }
    }

    /// Reports its readiness by calling `ready`.
    #[must_use]
    pub fn ready(self, ready: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self { ready: Some(Arc::new(ready)), ..self }
    }

    /// Passes an announcer of readiness changes to `take`.
    #[must_use]
    pub fn announcing(self, take: impl Fn(ReadinessAnnouncer) + Send + Sync + 'static) -> Self {
        Self { take_announcer: Some(Arc::new(take)), ..self }
    }

    /// Completes its configuration to this one.
    #[must_use]
    pub fn completing(self, completed: impl Into<Option<ModelConfig>>) -> Self {
        Self { completed: completed.into(), ..self }
    }

    /// Forms batches by custom rules.
    #[must_use]
    pub fn custom_batching(self, rules: Arc<dyn CustomBatching>) -> Self {
        Self { custom_batching: Some(rules), ..self }
    }

    /// Runs every request at once, on the caller's thread.
    #[must_use]
    pub fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }
}

impl Model for ScriptedModel {
    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        (self.create)(&context)?;
        Ok(Box::new(ScriptedInstance { context, execute: Arc::clone(&self.execute) }))
    }

    fn runs_at_once(&self, _: &Request) -> bool {
        self.at_once
    }

    fn ready(&self) -> Result<()> {
        self.ready.as_ref().map_or(Ok(()), |ready| ready())
    }

    fn capabilities(&self) -> ModelCapabilities {
        let readiness = match (&self.ready, &self.take_announcer) {
            (None, _) => ReadinessReports::Never,
            (Some(_), Some(_)) => ReadinessReports::Announced,
            (Some(_), None) => ReadinessReports::WhenAsked,
        };
        ModelCapabilities { readiness, ..ModelCapabilities::default() }
    }

    fn announce_readiness(&self, announcer: ReadinessAnnouncer) {
        if let Some(take) = &self.take_announcer {
            take(announcer);
        }
    }

    fn custom_batching(&self) -> Option<Arc<dyn CustomBatching>> {
        self.custom_batching.clone()
    }
}

struct ScriptedInstance {
    context: InstanceContext,
    execute: Arc<Execute>,
}

impl Instance for ScriptedInstance {
    fn execute(&mut self, batch: Batch) {
        (self.execute)(&self.context, batch);
    }
}
