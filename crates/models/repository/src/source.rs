//! The repositories that a server serves from, as one source of models.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use nereid_core::backend_api::{Error, ErrorCode, Result};
use nereid_core::{
    AgentFolders, FetchedModel, Fingerprint, LoadGuard, ModelId, ModelSource, ModelSpec, Origin, Overrides,
    Progress, SourceEntry, SourceFuture, block_on,
};

use crate::agents::{
    AGENTS_FILE, Agent, AgentDefault, AgentRun, Agents, AgentsOfRepository, Defaults, NoAgents, own_agents,
};
use crate::fingerprint;
use crate::model_folder::{ReadOptions, has_config, original_config, read_model_as, read_moved_model};
use crate::needed_files;
use crate::registered::RegisteredStores;
use crate::route::Route;
use crate::sent::SentFiles;
use crate::store::{Fetch, FetchedFolder, LocalStore, Object, Store};

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

    /// Warns about probable mistakes: repositories without models, and stray files next to model folders.
    ///
    /// Stores may answer with data that they learned at `as_of` or later.
    pub fn oddities(&self, as_of: Instant) -> Vec<String> {
        let of_store = |store: &Arc<dyn Store>| {
            let location = store.location();
            // If it cannot be read, the loads report that.
            let entries = block_on(store.list("", as_of)).unwrap_or_default();
            let (folders, mut files): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| entry.is_folder);
            files.retain(|file| could_be_of_a_model(&file.name) && file.name != AGENTS_FILE);
            files.sort();
            let named: Vec<_> = files.iter().take(5).map(|file| format!("'{}'", file.name)).collect();
            let more = if files.len() > named.len() { ", ..." } else { "" };
            let stray = (!files.is_empty()).then(|| {
                format!(
                    "model repository '{location}': {}{more} beside the folders of models not used: a model is a folder, \
                     such as <model>/1/model.onnx",
                    named.join(", ")
                )
            });
            let is_empty = !folders.iter().any(|folder| is_model_name(&folder.name));
            let empty = is_empty.then(|| format!("model repository '{location}' has no models"));
            empty.into_iter().chain(stray)
        };
        self.stores.iter().flat_map(of_store).collect()
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

    /// Adds the repository in a folder while the server runs. `name` becomes the name of one of its models: the only
    /// one, the only ensemble, or the one whose files are in the folder itself. Returns the repository's path, with
    /// which it is [removed](Self::unregister).
    ///
    /// # Errors
    /// `AlreadyExists` if the repository is present or `name` is already registered; otherwise the reason why no model
    /// qualifies.
    pub fn register(&self, folder: &Path, name: &str) -> Result<PathBuf> {
        if !is_model_name(name) {
            return Err(Error::invalid_arg(format!("'{name}' cannot be the name of a model")));
        }
        self.registered.add(folder, name, &self.stores, &self.options)
    }

    /// Removes a registered repository. Its models are served until they are unloaded.
    pub fn unregister(&self, path: &Path) {
        self.registered.remove(path);
    }

    /// Adds a repository, with all its models, while the server runs. `names` maps names of models to their folders,
    /// where they differ.
    ///
    /// # Errors
    /// `InvalidArg` if it cannot be listed or a name is not valid for a model; `AlreadyExists` if the repository is
    /// present or another one was registered under one of these names.
    pub async fn register_all(&self, store: Arc<dyn Store>, names: &BTreeMap<String, String>) -> Result<()> {
        if let Some(name) = names.keys().find(|name| !is_model_name(name)) {
            return Err(Error::invalid_arg(format!("'{name}' cannot be the name of a model")));
        }
        if let Err(error) = store.list("", Instant::now()).await {
            let location = store.location();
            return Err(Error::invalid_arg(format!(
                "cannot read the model repository '{location}': {error}"
            )));
        }
        self.registered.add_all(store, names, &self.stores)
    }

    /// Removes a repository that was registered, or one that the server was started with. Its models are served until they
    /// are unloaded.
    ///
    /// # Errors
    /// `InvalidArg` for an unknown repository.
    pub fn unregister_all(&self, location: &str) -> Result<()> {
        let missing = || Error::invalid_arg(format!("model repository '{location}' is not registered"));
        self.registered.remove_all(location, &self.stores).then_some(()).ok_or_else(missing)
    }

    /// All stores, including those registered at run time.
    fn stores(&self) -> impl Iterator<Item = Arc<dyn Store>> {
        self.registered.stores(&self.stores).into_iter()
    }

    /// The names of the models in a repository.
    async fn names(&self, store: &dyn Store, as_of: Instant) -> Result<BTreeSet<String>> {
        let entries = store.list("", as_of).await.map_err(|error| {
            Error::not_found(format!("cannot read the model repository '{}': {error}", store.location()))
        })?;
        let folders = entries.into_iter().filter(|entry| entry.is_folder).map(|entry| entry.name);
        Ok(folders.filter(|name| is_model_name(name)).collect())
    }

    /// The repositories that have a model of this name.
    async fn places(&self, name: &str, as_of: Instant) -> Vec<Arc<dyn Store>> {
        let look = |store: Arc<dyn Store>| async move {
            match store.list(name, as_of).await {
                Ok(_) => Some((store, true)),
                Err(error) if error.code() == ErrorCode::NotFound => None,
                // An unreadable folder still exists; reading it reports the cause.
                Err(_) => Some((store, false)),
            }
        };
        // In parallel, so that a slow repository does not delay others.
        let places = join_all(self.stores().filter(|_| is_model_name(name)).map(look)).await;
        let places: Vec<_> = places.into_iter().flatten().collect();
        // An unreachable repository may have it, too. Those that have it do not wait for that.
        let is_found = places.iter().any(|(_, is_readable)| *is_readable);
        let places = places.into_iter().filter(|(_, is_readable)| *is_readable || !is_found);
        let limit = if is_found || self.namespacing { usize::MAX } else { 1 };
        places.map(|(store, _)| store).take(limit).collect()
    }

    /// The models that a name denotes in these repositories.
    fn ids(&self, name: &str, places: &[Arc<dyn Store>]) -> Result<Vec<ModelId>> {
        if self.namespacing {
            let id = |store: &Arc<dyn Store>| ModelId {
                name: name.to_owned(),
                namespace: store.location().to_owned(),
            };
            return Ok(places.iter().map(id).collect());
        }
        // In one repository, a name cannot denote several folders.
        if places.len() > 1 {
            return Err(not_unique(name, places));
        }
        Ok(vec![ModelId::plain(name)])
    }

    /// The repository that has a model.
    async fn place(&self, id: &ModelId, as_of: Instant) -> Result<Arc<dyn Store>> {
        let name = &id.name;
        if !is_model_name(name) {
            return Err(Error::not_found(format!("'{name}' cannot be the name of a model's folder")));
        }
        let mut places = self.places(name, as_of).await;
        places.retain(|store| id.namespace.is_empty() || store.location() == id.namespace);
        match places.as_slice() {
            [store] => Ok(Arc::clone(store)),
            [] => Err(Error::not_found(format!(
                "model not found in any model repository: none has a folder '{name}'"
            ))),
            _ => Err(not_unique(name, &places)),
        }
    }

    async fn fingerprint_of(&self, id: &ModelId, as_of: Instant) -> Result<Fingerprint> {
        Ok(fingerprint::of_model(&self.place(id, as_of).await?.stat(&id.name, as_of).await?))
    }

    async fn fetch_model(
        &self,
        id: &ModelId,
        overrides: &Overrides,
        progress: &Progress,
        as_of: Instant,
    ) -> Result<ModelFiles> {
        let (id, config, options) = (id.clone(), overrides.config.clone(), self.options.clone());
        if !overrides.files.is_empty() {
            if config.is_none() {
                return Err(Error::invalid_arg(format!(
                    "files for model '{}' need a configuration: set 'config' as well",
                    id.name
                )));
            }
            let (path, guard, origin) = self.sent.keep(&id.name, overrides)?;
            // It is reloaded when the repository's own model changes.
            let fingerprint = self.fingerprint_of(&id, as_of).await.unwrap_or_default();
            let fetched = FetchedFolder { path, is_complete: true, guard };
            let files = ModelFiles {
                id,
                path: PathBuf::new(),
                config_folder: PathBuf::new(),
                config,
                options,
                fingerprint,
                origin,
                guard: LoadGuard::default(),
            };
            return self
                .run_agents(files, fetched, None, &AgentsOfRepository::default(), progress, as_of)
                .await;
        }
        let store = self.place(&id, as_of).await?;
        let objects = store.stat(&id.name, as_of).await?;
        let fingerprint = fingerprint::of_model(&objects);
        let defaults = self.agents.defaults.of(&*store, as_of).await?;
        let route = self.route_of(&defaults)?;
        // The configuration selects the served versions; no others are fetched.
        let (folder, is_needed) = (&*id.name, &needed_files::is_outside_versions);
        let fetched =
            store.fetch(Fetch { folder, is_needed, progress, as_of, route: route.as_ref() }).await?;
        let origin = Origin::Source;
        let files = ModelFiles {
            id: id.clone(),
            path: PathBuf::new(),
            config_folder: PathBuf::new(),
            config,
            options,
            fingerprint,
            origin,
            guard: LoadGuard::default(),
        };
        self.run_agents(files, fetched, Some((&store, &objects)), &defaults, progress, as_of).await
    }

    /// Runs a model's agents, if it has any, and fetches the files that are still missing.
    async fn run_agents(
        &self,
        files: ModelFiles,
        fetched: FetchedFolder,
        store: Option<(&Arc<dyn Store>, &[Object])>,
        defaults: &AgentsOfRepository,
        progress: &Progress,
        as_of: Instant,
    ) -> Result<ModelFiles> {
        let (model, config) = (&*files.id.name, files.config.as_deref());
        // If the configuration cannot be read, reading the model reports the reason.
        let written = original_config(&fetched.path, config, &files.options).ok();
        let own = written.as_ref().and_then(own_agents);
        let (named, by) = match &own {
            Some(own) => (own.as_slice(), "its configuration"),
            None if defaults.is_of_file => (defaults.agents.as_slice(), AGENTS_FILE),
            None => (defaults.agents.as_slice(), "--repository-agent"),
        };
        let (Some(written), false) = (written, named.is_empty()) else {
            return self.without_agents(files, fetched, store, progress, as_of).await;
        };
        let names: Vec<_> = named.iter().map(|agent| agent.name.as_str()).collect();
        tracing::debug!("'{model}' is seen by repository agents {} (from {by})", names.join(", "));
        let sent = self.sent.clone();
        let seeing = AgentRun {
            agents: &*self.agents.agents,
            model,
            store,
            fetched: &fetched,
            config,
            written,
            options: &files.options,
            folders: AgentFolders::new(move || sent.folder()),
            progress,
            as_of,
        };
        let seen = seeing.by(named).await?;
        // The original configuration, if any, stays in effect, even if the agents provide another one.
        let has_own = has_config(&fetched.path, &files.options)?;
        let config_folder = if has_own { fetched.path } else { seen.path.clone() };
        Ok(ModelFiles { path: seen.path, config_folder, guard: seen.guard, ..files })
    }

    async fn without_agents(
        &self,
        files: ModelFiles,
        mut fetched: FetchedFolder,
        store: Option<(&Arc<dyn Store>, &[Object])>,
        progress: &Progress,
        as_of: Instant,
    ) -> Result<ModelFiles> {
        if let (Some((store, objects)), false) = (store, fetched.is_complete) {
            let versions =
                needed_files::versions(objects, &fetched.path, files.config.as_deref(), &files.options);
            let (folder, is_needed) = (&*files.id.name, |path: &str| versions.needs(path));
            let fetch = Fetch { folder, is_needed: &is_needed, progress, as_of, route: None };
            fetched = store.fetch(fetch).await?;
        }
        Ok(ModelFiles {
            config_folder: fetched.path.clone(),
            path: fetched.path,
            guard: fetched.guard,
            ..files
        })
    }

    /// The route of the default agents, if the first of them is one: the configuration is fetched through it, too.
    fn route_of(&self, defaults: &AgentsOfRepository) -> Result<Option<Arc<dyn Route>>> {
        let Some(first) = defaults.agents.first() else { return Ok(None) };
        match self.agents.agents.agent(&first.name, &first.parameters)? {
            Agent::Route(route) => Ok(Some(route)),
            Agent::Hooks(_) => Ok(None),
        }
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

/// A model's folder on this machine.
struct ModelFiles {
    id: ModelId,
    path: PathBuf,
    /// The path of its configuration.
    config_folder: PathBuf,
    /// A configuration that replaces its own, as JSON.
    config: Option<String>,
    options: ReadOptions,
    fingerprint: Fingerprint,
    origin: Origin,
    guard: LoadGuard,
}

impl FetchedModel for ModelFiles {
    fn read(self: Box<Self>) -> Result<ModelSpec> {
        let Self { id, path, config_folder, config, options, fingerprint, origin, guard } = *self;
        let spec = match &config {
            None => read_moved_model(&path, &config_folder, &id.name, &options)?,
            Some(config) => read_model_as(&path, &id.name, config, &options)?,
        };
        Ok(ModelSpec { id, fingerprint, origin, guard, ..spec })
    }
}

fn not_unique(name: &str, places: &[Arc<dyn Store>]) -> Error {
    let places: Vec<_> = places.iter().map(|store| format!("'{}/{name}'", store.location())).collect();
    Error::invalid_arg(format!(
        "model appears in two or more repositories: {}; use --model-namespacing=true to serve each of them",
        places.join(", ")
    ))
}

/// Whether a file next to the model folders looks as if it belonged into one.
fn could_be_of_a_model(name: &str) -> bool {
    let endings = ["onnx", "pt", "pt2", "plan", "py", "pbtxt", "so", "xml", "savedmodel", "graphdef"];
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
    !name.starts_with('.') && ending.is_some_and(|ending| endings.contains(&ending))
}

/// A name is one part of a path, and not hidden.
fn is_model_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.starts_with('.')
}

#[cfg(test)]
mod tests;
