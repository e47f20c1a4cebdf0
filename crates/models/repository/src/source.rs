//! The repositories that a server serves from, as one source of models.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod files;
mod misplaced;
mod naming;
mod oddities;
mod registration;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use nereid_core::backend_api::Result;
use nereid_core::{
    FetchedModel, Fingerprint, ModelId, ModelSource, Overrides, Progress, SourceEntry, SourceFuture,
};

pub use self::misplaced::Misplaced;
pub(crate) use self::naming::is_model_name;
use crate::agents::{AgentDefault, Agents, Defaults, NoAgents};
use crate::fingerprint;
use crate::model_folder::ReadOptions;
use crate::registered::RegisteredStores;
use crate::sent::SentFiles;
use crate::store::{LocalStore, Store};

/// Stores that hold a folder for each model. Hidden folders are not models.
#[derive(Clone, Debug)]
pub struct Repositories {
    stores: Vec<Arc<dyn Store>>,
    registered: RegisteredStores,
    options: ReadOptions,
    namespacing: bool,
    sent: SentFiles,
    agents: AgentSetup,
}

/// The agents, and the defaults for models that name none.
#[derive(Clone)]
struct AgentSetup {
    agents: Arc<dyn Agents>,
    defaults: Defaults,
}

impl Repositories {
    /// The repositories in these folders, with these options for reading models. Duplicate paths count once.
    pub fn new(paths: Vec<PathBuf>, options: ReadOptions) -> Self {
        let mut seen = BTreeSet::new();
        let paths = paths.into_iter().filter(|path| seen.insert(path.clone()));
        Self::over(paths.map(|path| Arc::new(LocalStore::new(path)) as _).collect(), options)
    }

    /// The repositories in these stores.
    pub fn over(stores: Vec<Arc<dyn Store>>, options: ReadOptions) -> Self {
        Self {
            stores,
            registered: RegisteredStores::default(),
            options,
            namespacing: false,
            sent: SentFiles::new(env::temp_dir()),
            agents: AgentSetup { agents: Arc::new(NoAgents), defaults: Defaults::default() },
        }
    }

    /// Runs these agents on models: those that a model names, or else the defaults.
    pub fn with_agents(self, agents: Arc<dyn Agents>, defaults: Vec<AgentDefault>) -> Self {
        Self { agents: AgentSetup { agents, defaults: Defaults::new(defaults) }, ..self }
    }

    /// Makes each repository a namespace: models of the same name in several are then served side by side.
    pub fn with_namespacing(self, namespacing: bool) -> Self {
        Self { namespacing, ..self }
    }

    /// Removes files that killed servers left behind, which came with load requests.
    pub fn remove_left_over_files(&self) {
        self.sent.remove_left_over();
    }

    /// Removes the files that came with load requests, even those in use. Call it once no model is loaded, in case
    /// anything still holds one.
    pub fn remove_sent_files(&self) {
        self.sent.remove();
    }

    async fn fingerprint_of(&self, id: &ModelId, as_of: Instant) -> Result<Fingerprint> {
        Ok(fingerprint::of_model(&self.place(id, as_of).await?.stat(&id.name, as_of).await?))
    }
}

impl ModelSource for Repositories {
    fn list(&self) -> SourceFuture<'_, Vec<SourceEntry>> {
        Box::pin(async {
            let (mut places, as_of) = (BTreeMap::<String, Vec<Arc<dyn Store>>>::new(), Instant::now());
            let stores: Vec<_> = self.stores().collect();
            // In parallel: each unreachable repository takes its time to fail.
            let names = join_all(stores.iter().map(|store| self.names(&**store, as_of))).await;
            for (store, names) in stores.iter().zip(names) {
                for name in names? {
                    places.entry(name).or_default().push(Arc::clone(store));
                }
            }
            let listed = |(name, places): (String, Vec<Arc<dyn Store>>)| SourceEntry {
                ids: self.ids(&name, &places),
                name,
            };
            Ok(places.into_iter().map(listed).collect())
        })
    }

    fn find<'a>(&'a self, name: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<ModelId>> {
        Box::pin(async move {
            // A single repository without a namespace has it or not, which fetching reveals.
            if !self.namespacing && self.stores().nth(1).is_none() {
                return Ok(vec![ModelId::plain(name)]);
            }
            self.ids(name, &self.places(name, as_of).await)
        })
    }

    fn prepare<'a>(
        &'a self,
        id: &'a ModelId,
        progress: &'a Progress,
        as_of: Instant,
    ) -> SourceFuture<'a, ()> {
        Box::pin(async move {
            let mut stores = self.stores();
            if let (Some(only), None) = (stores.next(), stores.next()) {
                return only.prepare(progress, as_of).await;
            }
            // An unreachable repository delays only its own models.
            match self.place(id, as_of).await {
                Ok(store) => store.prepare(progress, as_of).await,
                Err(_) => Ok(()),
            }
        })
    }

    fn fingerprint<'a>(&'a self, id: &'a ModelId, as_of: Instant) -> SourceFuture<'a, Fingerprint> {
        Box::pin(self.fingerprint_of(id, as_of))
    }

    fn fetch<'a>(
        &'a self,
        id: &'a ModelId,
        overrides: &'a Overrides,
        progress: &'a Progress,
        as_of: Instant,
    ) -> SourceFuture<'a, Box<dyn FetchedModel>> {
        Box::pin(async move { Ok(Box::new(self.fetch_model(id, overrides, progress, as_of).await?) as _) })
    }
}

impl fmt::Debug for AgentSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSetup").field("defaults", &self.defaults).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
