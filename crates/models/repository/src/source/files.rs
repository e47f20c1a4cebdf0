//! Fetches the files of a model, through a route if it has one, and runs its agents.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{
    AgentFolders, FetchedModel, Fingerprint, LoadGuard, ModelId, ModelSpec, Origin, Overrides, Progress,
};

use super::Repositories;
use crate::agents::{AGENTS_FILE, Agent, AgentRun, AgentsOfRepository, own_agents};
use crate::fingerprint;
use crate::model_folder::{ReadOptions, has_config, original_config, read_model_as, read_moved_model};
use crate::needed_files;
use crate::route::Route;
use crate::store::{Fetch, FetchedFolder, Object, Store};

impl Repositories {
    /// Fetches the files of a model, and runs its agents.
    pub(super) async fn fetch_model(
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

/// A model's folder on this machine.
pub(super) struct ModelFiles {
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
