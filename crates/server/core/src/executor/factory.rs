//! Factories of executors: the kinds that a server knows, and how a version becomes executable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_statistics::{Latencies, LatencyOptions, ModelStatistics};

use super::{Executor, Instances};
use crate::spec::{Labels, ModelSpec};
use crate::table::ServedModels;

/// A kind of executor.
pub trait ExecutorFactory: Send + Sync {
    /// Whether this kind executes the models of a specification.
    fn accepts(&self, spec: &ModelSpec) -> bool;

    /// The names of the models that a model with this configuration makes requests to. It is loaded after them, and served
    /// as long as it fits them. `None` for models that execute their requests themselves.
    fn dependencies(&self, _config: &ModelConfig) -> Option<BTreeSet<String>> {
        None
    }

    /// Loads a version completely.
    ///
    /// # Errors
    /// The reason why it cannot be served.
    fn build(&self, load: &VersionLoad<'_>) -> Result<Executable, BuildError>;
}

/// A version to be loaded.
pub struct VersionLoad<'a> {
    /// The specification.
    pub spec: &'a ModelSpec,
    /// The version number.
    pub version: u64,
    /// The served models.
    pub models: &'a ServedModels,
    pub(crate) latencies: LatencyOptions,
    /// Configuration and counters of the served version that this one replaces.
    pub(crate) replaces: Option<(&'a ModelConfig, &'a Arc<ModelStatistics>)>,
}

impl VersionLoad<'_> {
    /// Counters for the version, if it is served with this configuration. They continue the counters of the version
    /// that it replaces.
    pub fn statistics(&self, config: &ModelConfig) -> Arc<ModelStatistics> {
        // Other tags are other series.
        let replaces = self.replaces.filter(|(replaced, _)| replaced.metric_tags == config.metric_tags);
        let latencies = Latencies::new(self.latencies, config);
        Arc::new(ModelStatistics::new(replaces.map(|(_, statistics)| statistics), latencies))
    }
}

/// A version that was loaded.
pub struct Executable {
    /// The completed configuration.
    pub config: ModelConfig,
    /// Labels by the name of the output.
    pub labels: BTreeMap<String, Labels>,
    /// The counters, see [`VersionLoad::statistics`].
    pub statistics: Arc<ModelStatistics>,
    /// Executes the requests.
    pub executor: Arc<dyn Executor>,
    /// The error of all requests, if the version accepts none.
    pub(crate) refusal: Option<Error>,
    /// The executor, if it is of this kind.
    pub(crate) instances: Option<Arc<Instances>>,
}

impl Executable {
    /// A version with this executor.
    pub fn new(
        config: ModelConfig,
        labels: BTreeMap<String, Labels>,
        statistics: Arc<ModelStatistics>,
        executor: Arc<dyn Executor>,
    ) -> Self {
        Self { config, labels, statistics, executor, refusal: None, instances: None }
    }
}

/// The reason why a version was not loaded. Errors are converted to permanent ones.
#[derive(Clone, Debug)]
pub struct BuildError {
    pub(crate) error: Error,
    pub(crate) is_temporary: bool,
}

impl BuildError {
    /// A failure that may not recur if the load is retried, although nothing else has changed.
    pub fn temporary(error: Error) -> Self {
        Self { error, is_temporary: true }
    }
}

impl From<Error> for BuildError {
    fn from(error: Error) -> Self {
        Self { error, is_temporary: false }
    }
}

/// Kinds of executors of a server, in addition to instances of backends. The first kind that accepts a model executes it.
#[derive(Clone, Default)]
pub struct Executors(Vec<Arc<dyn ExecutorFactory>>);

impl Executors {
    /// Appends a kind.
    pub fn register(&mut self, factory: Arc<dyn ExecutorFactory>) {
        self.0.push(factory);
    }
}

impl FromIterator<Arc<dyn ExecutorFactory>> for Executors {
    fn from_iter<I: IntoIterator<Item = Arc<dyn ExecutorFactory>>>(factories: I) -> Self {
        Self(factories.into_iter().collect())
    }
}

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} registered kinds of executors", self.0.len())
    }
}

/// All kinds of executors of a server.
pub(crate) struct ExecutorKinds {
    registered: Executors,
    /// Executes what no other kind accepts.
    instances: Arc<dyn ExecutorFactory>,
}

impl ExecutorKinds {
    pub(crate) fn new(registered: Executors, instances: Arc<dyn ExecutorFactory>) -> Self {
        Self { registered, instances }
    }

    /// The kind that executes the models of a specification.
    pub(crate) fn of(&self, spec: &ModelSpec) -> &dyn ExecutorFactory {
        let accepting = self.registered.0.iter().find(|factory| factory.accepts(spec));
        &**accepting.unwrap_or(&self.instances)
    }

    /// See [`ExecutorFactory::dependencies`].
    pub(crate) fn dependencies(&self, spec: &ModelSpec) -> Option<BTreeSet<String>> {
        self.of(spec).dependencies(&spec.config)
    }
}
