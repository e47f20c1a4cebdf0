//! Runs a model's agents in sequence, and fetches the files that are still missing afterwards.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{AgentContext, AgentFolders, LoadGuard, ModelLocation, Progress};
use nereid_model_config::ModelConfig;

use super::{Agent, Agents, Chain, NamedAgent};
use crate::model_folder::{ReadOptions, original_config};
use crate::needed_files;
use crate::route::Route;
use crate::store::{Fetch, FetchedFolder, Object, Store};

/// A model before its agents run.
pub(crate) struct AgentRun<'a> {
    pub agents: &'a dyn Agents,
    pub model: &'a str,
    /// The model's store and its files listed there; `None` if they came with a load request.
    pub store: Option<(&'a Arc<dyn Store>, &'a [Object])>,
    /// The local files: at least those outside version folders.
    pub fetched: &'a FetchedFolder,
    /// A configuration that replaces its own, as JSON.
    pub config: Option<&'a str>,
    /// The model's configuration before agents run.
    pub written: ModelConfig,
    pub options: &'a ReadOptions,
    pub folders: AgentFolders,
    pub progress: &'a Progress,
    pub as_of: Instant,
}

/// A model after its agents ran.
pub(crate) struct AgentOutcome {
    /// The location of its files.
    pub path: PathBuf,
    /// Notifies the agents of the model's fate, and keeps its files.
    pub guard: LoadGuard,
}

impl AgentRun<'_> {
    /// Runs these agents.
    ///
    /// # Errors
    /// The error of the first agent that fails, or of fetching the files at the final location.
    pub(crate) async fn by(&self, named: &[NamedAgent]) -> Result<AgentOutcome> {
        let chain = Chain::new(self.model);
        chain.keep(self.fetched.guard.clone());
        let origin = self.origin();
        let mut location = origin.clone();
        for (number, NamedAgent { name, parameters }) in named.iter().enumerate() {
            match self.agents.agent(name, parameters)? {
                Agent::Route(route) => {
                    if let ModelLocation::Remote(_) = &location {
                        let path = self.fetch(&location, Some(&route), &chain).await?;
                        location = ModelLocation::Folder(path);
                    }
                }
                Agent::Hooks(agent) => {
                    if let (ModelLocation::Remote(_), true) = (&location, agent.needs_files()) {
                        location = ModelLocation::Folder(self.fetch(&location, None, &chain).await?);
                    }
                    let context = AgentContext {
                        model: self.model.to_owned(),
                        config: if number == 0 { self.written.clone() } else { self.config_at(&location) },
                        location,
                        parameters: parameters.clone(),
                        folders: self.folders.clone(),
                    };
                    location = chain.load(&*agent, name, context)?;
                }
            }
        }
        let path = match &location {
            ModelLocation::Folder(path) if path.is_dir() => path.clone(),
            ModelLocation::Folder(path) => {
                return Err(Error::invalid_arg(format!(
                    "the repository agents of model '{}' moved it to '{}', which is not a folder",
                    self.model,
                    path.display()
                )));
            }
            ModelLocation::Remote(_) => self.fetch(&location, None, &chain).await?,
        };
        Ok(AgentOutcome { path, guard: LoadGuard::new(chain) })
    }

    /// The model's location before any agent has run.
    fn origin(&self) -> ModelLocation {
        match self.store {
            Some((store, _)) => store.locate(self.model),
            None => ModelLocation::Folder(self.fetched.path.clone()),
        }
    }

    /// The configuration at a location; an empty one if it cannot be read.
    fn config_at(&self, location: &ModelLocation) -> ModelConfig {
        let folder = match location {
            ModelLocation::Folder(path) => path,
            ModelLocation::Remote(_) if *location == self.origin() => &self.fetched.path,
            ModelLocation::Remote(_) => return ModelConfig::default(),
        };
        original_config(folder, None, self.options).unwrap_or_default()
    }

    /// Fetches the versions to be served to this machine.
    async fn fetch(
        &self,
        location: &ModelLocation,
        route: Option<&Arc<dyn Route>>,
        chain: &Chain,
    ) -> Result<PathBuf> {
        let versions = |objects: &[Object]| {
            needed_files::versions(objects, &self.fetched.path, self.config, self.options)
        };
        let fetched = match self.store {
            Some((store, objects)) if *location == self.origin() => {
                let versions = versions(objects);
                let is_needed = |path: &str| versions.needs(path);
                let (folder, progress, as_of) = (self.model, self.progress, self.as_of);
                store.fetch(Fetch { folder, is_needed: &is_needed, progress, as_of, route }).await?
            }
            _ => {
                let store = self.agents.open(&location.to_string())?;
                let as_of = Instant::now();
                let versions = versions(&store.stat("", as_of).await?);
                let is_needed = |path: &str| versions.needs(path);
                let (folder, progress) = ("", self.progress);
                store.fetch(Fetch { folder, is_needed: &is_needed, progress, as_of, route }).await?
            }
        };
        chain.keep(fetched.guard);
        Ok(fetched.path)
    }
}
