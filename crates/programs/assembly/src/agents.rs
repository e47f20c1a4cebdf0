//! The repository agents, by the names that configurations use.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_agents::{Checksum, DragonflyRoutes};
use nereid_core::MetricRegistry;
use nereid_core::backend_api::{Error, Result};
use nereid_object_stores::CloudOptions;
use nereid_repository::{Agent, AgentDefault, Agents, NamedAgent, Store};
use nereid_triton_host::LibraryAgents;

use crate::repositories::LazyClouds;

/// The available agents, and the default ones.
#[derive(Clone, Debug, Default)]
pub struct AgentConfig {
    /// The folder of installed agents, if one was named. Its agents take precedence over the built-in ones.
    pub directory: Option<PathBuf>,
    /// The agents of models that name none, in order.
    pub defaults: Vec<AgentDefault>,
}

impl AgentConfig {
    /// The reason why this agent is unavailable, if it is. Loads no library.
    pub fn refuses(&self, agent: &NamedAgent) -> Option<String> {
        let clouds = Arc::new(LazyClouds::new(CloudOptions::default()));
        let all = AllAgents::new(self.directory.clone(), clouds, MetricRegistry::default());
        let is_library = all.named.iter().chain([&all.installed]).any(|agents| agents.has(&agent.name));
        if is_library {
            return None;
        }
        all.agent(&agent.name, &agent.parameters).err().map(|error| error.message().to_owned())
    }
}

/// The names of the built-in agents.
const BUILT_IN: [&str; 2] = ["checksum", "dragonfly"];

/// Triton's default folder of agents.
const DIRECTORY: &str = "/opt/tritonserver/repoagents";

/// All agents of a server.
pub(crate) struct AllAgents {
    /// Agents in the named folder.
    named: Option<LibraryAgents>,
    /// Agents in Triton's default folder.
    installed: LibraryAgents,
    dragonfly: DragonflyRoutes,
    clouds: Arc<LazyClouds>,
}

impl AllAgents {
    /// The built-in agents, those in a folder, and those that are installed for Triton.
    pub(crate) fn new(directory: Option<PathBuf>, clouds: Arc<LazyClouds>, metrics: MetricRegistry) -> Self {
        let named = directory.map(LibraryAgents::new);
        let dragonfly = DragonflyRoutes::new(metrics);
        Self { named, installed: LibraryAgents::new(DIRECTORY.into()), dragonfly, clouds }
    }
}

impl Agents for AllAgents {
    fn agent(&self, name: &str, parameters: &[(String, String)]) -> Result<Agent> {
        if let Some(named) = self.named.as_ref().filter(|named| named.has(name)) {
            return Ok(Agent::Hooks(named.agent(name)?));
        }
        match name {
            "checksum" => Ok(Agent::Hooks(Arc::new(Checksum))),
            "dragonfly" => {
                let variable = |name: &str| env::var(name).ok();
                Ok(Agent::Route(self.dragonfly.route(parameters, variable)?))
            }
            _ if self.installed.has(name) => Ok(Agent::Hooks(self.installed.agent(name)?)),
            _ => {
                let searched = self.named.as_ref().unwrap_or(&self.installed);
                Err(Error::invalid_arg(format!(
                    "repository agent '{name}' is neither built in ({}) nor installed: {}",
                    BUILT_IN.join(", "),
                    searched.missing(name)
                )))
            }
        }
    }

    fn open(&self, address: &str) -> Result<Arc<dyn Store>> {
        self.clouds.open(address).map_err(Error::invalid_arg)
    }
}
