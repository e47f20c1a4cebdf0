//! Factories of interceptors and releases: each makes those of a version when the version is loaded.

use std::fmt;
use std::sync::Arc;

use nereid_backend_api::{ModelConfig, Result};
use nereid_statistics::ModelStatistics;

use super::Interceptor;
use crate::release::Release;
use crate::spec::ModelSpec;
use crate::table::ServedModels;

/// Makes the interceptors of models.
pub trait InterceptorFactory: Send + Sync {
    /// The interceptor for the requests to a version that was just loaded; `None` if they need none. The version owns it: it
    /// is dropped with the version.
    ///
    /// # Errors
    /// The reason why the version cannot be served. Its load fails.
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Interceptor>>>;
}

/// Makes the releases of models.
pub trait ReleaseFactory: fmt::Debug + Send + Sync {
    /// The release that a version takes part in, if its configuration has one.
    ///
    /// # Errors
    /// The configuration of the release is invalid. The version is not loaded.
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Release>>>;

    /// The parameters of a model's configuration that concern releases only: versions stay loaded when these change.
    fn parameters(&self) -> &[&str];
}

/// A version that was loaded and is not served yet.
pub struct LoadedVersion<'a> {
    /// The specification it was loaded from.
    pub spec: &'a ModelSpec,
    /// The version's number.
    pub version: u64,
    /// See [`Model::load_number`](crate::Model::load_number).
    pub load_number: u64,
    /// The completed configuration.
    pub config: &'a ModelConfig,
    /// Whether other models execute its requests.
    pub is_composite: bool,
    /// The version's counters.
    pub statistics: &'a Arc<ModelStatistics>,
    /// All served models.
    pub models: &'a ServedModels,
}

/// The interceptors of a server, in the order in which requests pass them.
#[derive(Clone, Default)]
pub struct Interceptors(Vec<Arc<dyn InterceptorFactory>>);

impl Interceptors {
    /// Appends an interceptor for the requests to all models.
    pub fn add(&mut self, interceptor: Arc<dyn Interceptor>) {
        self.add_factory(Arc::new(ForAllModels(interceptor)));
    }

    /// Appends the interceptors that a factory makes for each model.
    pub fn add_factory(&mut self, factory: Arc<dyn InterceptorFactory>) {
        self.0.push(factory);
    }

    /// The interceptors of a version.
    ///
    /// # Errors
    /// See [`InterceptorFactory::for_version`].
    pub(crate) fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Vec<Arc<dyn Interceptor>>> {
        self.0.iter().filter_map(|factory| factory.for_version(version).transpose()).collect()
    }
}

impl FromIterator<Arc<dyn Interceptor>> for Interceptors {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Interceptor>>>(all: I) -> Self {
        let mut interceptors = Self::default();
        all.into_iter().for_each(|interceptor| interceptors.add(interceptor));
        interceptors
    }
}

impl fmt::Debug for Interceptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} factories of interceptors", self.0.len())
    }
}

/// Makes the same interceptor for every model.
struct ForAllModels(Arc<dyn Interceptor>);

impl InterceptorFactory for ForAllModels {
    fn for_version(&self, _: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Interceptor>>> {
        Ok(Some(Arc::clone(&self.0)))
    }
}
