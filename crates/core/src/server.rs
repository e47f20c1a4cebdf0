//! The server as every face sees it: health, the models, and [`Server::infer`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use arc_swap::{ArcSwap, Guard};
use nereid_backend_api::{Backend, Error, InferRequest, ModelConfig, Result};

use crate::completion;
use crate::inflight::ResponseStream;
use crate::limit::Limit;
use crate::model::{Model, ModelSpec, Services};
use crate::rate_limiter::{RateLimit, RateLimiter};
use crate::table::{ModelTable, VersionState};
use crate::timer::Timer;

/// What is fixed when the server starts.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The name it answers with.
    pub name: String,
    /// The version it answers with.
    pub version: String,
    /// Whether it is ready only when every model is.
    pub strict_readiness: bool,
    /// How many models are loaded side by side; at least 1.
    pub load_threads: usize,
    /// How executions are limited over all models.
    pub rate_limit: RateLimit,
    /// So many requests may be in progress at a time, over all models; 0 for any number.
    pub max_inflight_requests: usize,
    /// The batcher of each model begins when it has seen so many requests: for tests that need a full queue.
    pub hold_batches: usize,
}

/// An inference server without a face.
pub struct Server {
    options: ServerOptions,
    backends: BTreeMap<String, Arc<dyn Backend>>,
    table: ArcSwap<ModelTable>,
    services: Services,
    limit: Option<Limit>,
    /// Set while requests are welcome: after the first models are loaded, until shutdown begins.
    open: AtomicBool,
}

impl Server {
    /// A server that knows these backends, by the names configurations use, and no model.
    pub fn new(options: ServerOptions, backends: BTreeMap<String, Arc<dyn Backend>>) -> Self {
        let limiter = match &options.rate_limit {
            RateLimit::Off => None,
            RateLimit::ExecutionCount(resources) => Some(RateLimiter::new(resources.clone())),
        };
        let services = Services { timer: Timer::default(), limiter, hold_batches: options.hold_batches };
        let limit = (options.max_inflight_requests > 0).then(|| Limit::new(options.max_inflight_requests));
        let (table, open) = (ArcSwap::default(), AtomicBool::new(false));
        Self { options, backends, table, services, limit, open }
    }

    /// What was fixed when it started.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// The models as they are now.
    pub fn models(&self) -> Guard<Arc<ModelTable>> {
        self.table.load()
    }

    /// Whether requests are welcome and, with `strict_readiness`, every model is ready.
    pub fn is_ready(&self) -> bool {
        self.open.load(Ordering::Acquire) && (!self.options.strict_readiness || self.models().all_ready())
    }

    /// The version of a model that a request with this name and version goes to.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable`, see [`ModelTable::find`].
    pub fn model(&self, name: &str, version: Option<u64>) -> Result<Arc<Model>> {
        self.models().find(name, version).cloned()
    }

    /// Takes a request in. Its answers come through the stream, once it is scheduled and executed.
    ///
    /// It never blocks. A model whose executions are shorter than the way to another thread, and whose backend says
    /// so, may be executed on the calling thread.
    ///
    /// # Errors
    /// What keeps the request from being queued: an unknown model, a request that does not fit the model, or too many
    /// requests in progress. A queue that is full answers through the stream.
    pub fn infer(&self, request: InferRequest) -> Result<ResponseStream> {
        let model = self.model(&request.model_name, request.model_version)?;
        let slot = self.limit.as_ref().map(Limit::take).transpose()?;
        model.infer(request, slot)
    }

    /// Loads models, several side by side, and then welcomes requests. A model given as an error, or that fails to
    /// load, is known and unavailable.
    pub fn load(&self, models: Vec<(String, Result<ModelSpec>)>) {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..self.options.load_threads.clamp(1, models.len().max(1)) {
                scope.spawn(|| {
                    while let Some((name, spec)) = models.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match spec {
                            Ok(spec) => self.load_model(spec),
                            Err(error) => self.fail_model(name, error),
                        }
                    }
                });
            }
        });
        self.open.store(true, Ordering::Release);
    }

    /// The configuration by which a version of a model would be served: completed by its backend, normalised and
    /// checked. The backend reads the model's files, but no instance is made, and the model does not become known.
    ///
    /// # Errors
    /// Why the version cannot be loaded.
    pub fn completed_config(&self, spec: &ModelSpec, version: u64) -> Result<ModelConfig> {
        let (_, config) = completion::load(spec, version, self.backend(spec)?)?;
        Ok(config)
    }

    /// Asks for no further requests: the server is no longer ready. Those that come all the same are still answered.
    pub fn begin_shutdown(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// Executes what is queued and ends all instances.
    pub fn unload_all(&self) {
        for model in self.table.swap(Arc::default()).ready() {
            model.unload();
            tracing::info!("unloaded '{}' version {}", model.name(), model.version());
        }
    }

    fn load_model(&self, spec: &ModelSpec) {
        let backend = match self.backend(spec) {
            Ok(backend) => backend,
            Err(error) => return self.fail_model(&spec.name, &error),
        };
        if spec.versions.is_empty() {
            let error = Error::not_found(format!("model '{}' has no version folder to serve", spec.name));
            return self.fail_model(&spec.name, &error);
        }
        for &version in &spec.versions {
            tracing::info!("loading '{}' version {version}", spec.name);
            let state = match Model::load(spec, version, backend, &self.services) {
                Ok(model) => {
                    tracing::info!("successfully loaded '{}' version {version}", spec.name);
                    VersionState::Ready(Arc::new(model))
                }
                Err(error) => {
                    tracing::error!("failed to load '{}' version {version}: {error}", spec.name);
                    VersionState::Unavailable(error)
                }
            };
            self.change(|table| table.set_version(&spec.name, version, state.clone()));
        }
    }

    fn backend(&self, spec: &ModelSpec) -> Result<&dyn Backend> {
        let name = nereid_model_config::backend_name(&spec.config).ok_or_else(|| {
            Error::invalid_arg(format!("the configuration of model '{}' names no backend", spec.name))
        })?;
        self.backends.get(name).map(AsRef::as_ref).ok_or_else(|| {
            let known: Vec<_> = self.backends.keys().map(String::as_str).collect();
            Error::invalid_arg(format!(
                "model '{}' asks for backend '{name}', which is not here; there are {}",
                spec.name,
                known.join(", ")
            ))
        })
    }

    fn fail_model(&self, name: &str, error: &Error) {
        tracing::error!("failed to load '{name}': {error}");
        self.change(|table| table.set_failure(name, error.clone()));
    }

    fn change(&self, change: impl Fn(&mut ModelTable)) {
        self.table.rcu(|table| {
            let mut table = ModelTable::clone(table);
            change(&mut table);
            table
        });
    }
}

#[cfg(test)]
mod tests;
