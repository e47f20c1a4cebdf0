//! The repository agents, by the names that configurations use.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_core::backend_api::{Error, Result};
use nereid_repository::{Agent, AgentDefault, Agents, Store};
use nereid_triton_host::LibraryAgents;

use crate::repositories::LazyClouds;

/// Which agents there are, and which see models that name none.
#[derive(Clone, Debug, Default)]
pub struct AgentConfig {
    /// The folder with a folder for each installed agent, if one was named.
    pub directory: Option<PathBuf>,
    /// The agents of models that name none, in their order.
    pub defaults: Vec<AgentDefault>,
}

/// Where Triton's agents are installed, unless an option says otherwise.
const DIRECTORY: &str = "/opt/tritonserver/repoagents";

/// All agents of a server.
pub(crate) struct AllAgents {
    /// Those in the folder that was named.
    named: Option<LibraryAgents>,
    /// Those that are installed for Triton.
    installed: LibraryAgents,
    clouds: Arc<LazyClouds>,
}

impl AllAgents {
    /// Those in a folder, and those that are installed for Triton.
    pub(crate) fn new(directory: Option<PathBuf>, clouds: Arc<LazyClouds>) -> Self {
        let named = directory.map(LibraryAgents::new);
        Self { named, installed: LibraryAgents::new(DIRECTORY.into()), clouds }
    }
}

impl Agents for AllAgents {
    fn agent(&self, name: &str, _: &[(String, String)]) -> Result<Agent> {
        if let Some(named) = self.named.as_ref().filter(|named| named.has(name)) {
            return Ok(Agent::Hooks(named.agent(name)?));
        }
        match name {
            _ if self.installed.has(name) => Ok(Agent::Hooks(self.installed.agent(name)?)),
            _ => {
                let searched = self.named.as_ref().unwrap_or(&self.installed);
                Err(Error::invalid_arg(format!(
                    "repository agent '{name}' is not installed: {}",
                    searched.missing(name)
                )))
            }
        }
    }

    fn open(&self, address: &str) -> Result<Arc<dyn Store>> {
        self.clouds.open(address).map_err(Error::invalid_arg)
    }
}
