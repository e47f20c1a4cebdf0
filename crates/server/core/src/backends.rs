//! The registry of backends: those registered by name, and where to find others.
//!
//! A name has one entry: a backend, a function that builds one on first use, or the reason why it is unavailable. So
//! registration decides whether a backend can be used, and no other code checks.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use nereid_backend_api::{Backend, BackendFinder, Error, Lookup, ModelContext, Result};
use nereid_model_config::backend_name;

/// The backends of a server.
#[derive(Clone, Default)]
pub struct Backends {
    entries: BTreeMap<String, Arc<Entry>>,
    finder: Option<Arc<dyn BackendFinder>>,
}

type Build = dyn Fn() -> Result<Arc<dyn Backend>> + Send + Sync;

struct Entry {
    /// Known without building the backend; `None` if it is unavailable.
    completes_config: Option<bool>,
    backend: OnceLock<Result<Arc<dyn Backend>>>,
    build: Box<Build>,
}

impl Backends {
    /// Registers a backend under the name that configurations use.
    pub fn register(&mut self, name: impl Into<String>, backend: Arc<dyn Backend>) {
        let completes_config = backend.capabilities().completes_config;
        self.register_lazy(name, completes_config, move || Ok(Arc::clone(&backend)));
    }

    /// Registers a backend that is built when the first model needs it, or refused with the error of `build`.
    pub fn register_lazy(
        &mut self,
        name: impl Into<String>,
        completes_config: bool,
        build: impl Fn() -> Result<Arc<dyn Backend>> + Send + Sync + 'static,
    ) {
        self.insert(name, Some(completes_config), Box::new(build));
    }

    /// Registers the reason why a backend is unavailable. Its models fail to load with that reason.
    pub fn refuse(&mut self, name: impl Into<String>, reason: Error) {
        self.insert(name, None, Box::new(move || Err(reason.clone())));
    }

    fn insert(&mut self, name: impl Into<String>, completes_config: Option<bool>, build: Box<Build>) {
        let entry = Entry { completes_config, backend: OnceLock::new(), build };
        self.entries.insert(name.into(), Arc::new(entry));
    }

    /// Sets the finder of installed backends, and of those in models' folders.
    pub fn set_finder(&mut self, finder: Arc<dyn BackendFinder>) {
        self.finder = Some(finder);
    }

    /// The names that are registered, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether models of that backend complete configurations; `None` if it is not registered or unavailable.
    pub fn completes_config(&self, name: &str) -> Option<bool> {
        self.entries.get(name)?.completes_config
    }

    /// Whether models of that backend run on GPUs by default. Builds the backend, so call it only if there is a GPU.
    pub fn runs_on_gpus(&self, name: &str) -> bool {
        match self.entries.get(name).map(|entry| entry.backend()) {
            Some(Ok(backend)) => backend.capabilities().runs_on_gpus,
            // An installed one, if any.
            Some(Err(_)) | None => {
                self.finder.as_ref().is_some_and(|finder| finder.capabilities().runs_on_gpus)
            }
        }
    }

    /// Chooses the backend for a model: the one in the model's folder, else the registered one, else an installed one.
    /// An installed backend also replaces an unavailable one.
    ///
    /// # Errors
    /// `InvalidArg` if none is found; otherwise the reason why the backend cannot be used.
    pub fn select(&self, model: &ModelContext) -> Result<Arc<dyn Backend>> {
        let name = name_of(model)?;
        let (found, entry) = (self.find(model), self.entries.get(name));
        let ModelContext { name: model, .. } = model;
        match (found, entry) {
            (Discovery::WithModel(backend), entry) => {
                if entry.is_some() {
                    tracing::info!(
                        "model '{model}' brings its own backend '{name}', which replaces the built-in one"
                    );
                }
                Ok(backend)
            }
            (Discovery::Installed(backend), None) => Ok(backend),
            (Discovery::Installed(installed), Some(entry)) => {
                let outcome = entry.backend();
                match &outcome {
                    Ok(_) => tracing::info!(
                        "model '{model}' uses the built-in backend '{name}', not the installed one of that name"
                    ),
                    Err(error) => tracing::warn!(
                        "model '{model}' uses the installed backend '{name}'; the built-in one is unavailable: {error}"
                    ),
                }
                Ok(outcome.unwrap_or(installed))
            }
            (Discovery::Nothing(_), Some(entry)) => entry
                .backend()
                .map_err(|error| error.context(format_args!("model '{model}': backend '{name}'"))),
            (Discovery::Nothing(searched), None) => Err(self.missing(model, name, searched)),
        }
    }

    /// Checks that a backend exists for a model, without building one.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    pub fn check(&self, model: &ModelContext) -> Result<()> {
        let name = name_of(model)?;
        let entry = self.entries.get(name);
        if entry.is_some_and(|entry| entry.completes_config.is_some()) {
            return Ok(());
        }
        match self.find(model) {
            Discovery::Nothing(searched) => match entry.map(|entry| entry.backend()) {
                Some(refused) => refused.map(|_| ()),
                None => Err(self.missing(&model.name, name, searched)),
            },
            Discovery::WithModel(_) | Discovery::Installed(_) => Ok(()),
        }
    }

    fn find(&self, model: &ModelContext) -> Discovery {
        let Some(finder) = &self.finder else { return Discovery::Nothing(None) };
        match finder.find(model) {
            Lookup::WithModel => Discovery::WithModel(Arc::clone(finder) as _),
            Lookup::Installed => Discovery::Installed(Arc::clone(finder) as _),
            Lookup::Missing { searched } => Discovery::Nothing(Some(searched)),
        }
    }

    fn missing(&self, model: &str, name: &str, searched: Option<String>) -> Error {
        let installed = self.finder.as_ref().map(|finder| finder.installed()).unwrap_or_default();
        let usable = self.entries.iter().filter(|(_, entry)| entry.completes_config.is_some());
        let available: BTreeSet<_> = usable.map(|(name, _)| name.clone()).chain(installed).collect();
        let available = Vec::from_iter(available).join(", ");
        let searched = searched.map(|searched| format!("; {searched}")).unwrap_or_default();
        Error::invalid_arg(format!(
            "model '{model}': backend '{name}' is not installed (available: {available}){searched}"
        ))
    }
}

impl Entry {
    fn backend(&self) -> Result<Arc<dyn Backend>> {
        let build = || catch_unwind(AssertUnwindSafe(&self.build));
        let panicked = |_| Err(Error::internal("the backend panicked while it was opened"));
        self.backend.get_or_init(|| build().unwrap_or_else(panicked)).clone()
    }
}

/// The finder's result for a model.
enum Discovery {
    WithModel(Arc<dyn Backend>),
    Installed(Arc<dyn Backend>),
    /// The places that were searched.
    Nothing(Option<String>),
}

fn name_of(model: &ModelContext) -> Result<&str> {
    backend_name(&model.config).ok_or_else(|| {
        Error::invalid_arg(format!("model '{}': the configuration names no backend", model.name))
    })
}

impl From<BTreeMap<String, Arc<dyn Backend>>> for Backends {
    fn from(named: BTreeMap<String, Arc<dyn Backend>>) -> Self {
        let mut backends = Self::default();
        named.into_iter().for_each(|(name, backend)| backends.register(name, backend));
        backends
    }
}

#[cfg(test)]
mod tests;
