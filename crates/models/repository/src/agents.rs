//! Chooses the repository agents of a model, and their order.
//!
//! A model's configuration names its agents. If it names none, the agents in the file `agents.pbtxt` of its repository
//! apply, or else the agents that the server's options configure for the repository.

mod chain;
mod defaults;
mod run;

use std::fmt;
use std::sync::Arc;

use nereid_core::RepositoryAgent;
use nereid_core::backend_api::{Error, Result};

pub(crate) use self::chain::Chain;
pub(crate) use self::defaults::Defaults;
pub use self::defaults::{AGENTS_FILE, AgentDefault, AgentsOfRepository, agents_of_folder, own_agents};
pub(crate) use self::run::AgentRun;
use crate::route::Route;
use crate::store::Store;

/// The agents of a server.
pub trait Agents: Send + Sync {
    /// The agent of that name, with these parameters.
    ///
    /// # Errors
    /// The agent does not exist, or cannot be used with these parameters.
    fn agent(&self, name: &str, parameters: &[(String, String)]) -> Result<Agent>;

    /// The store at an address in a cloud, to which an agent has redirected a model.
    ///
    /// # Errors
    /// The text is not an address of a store.
    fn open(&self, address: &str) -> Result<Arc<dyn Store>>;
}

/// An agent.
pub enum Agent {
    /// Receives a model's actions, and may replace its files.
    Hooks(Arc<dyn RepositoryAgent>),
    /// Only fetches the model's files.
    Route(Arc<dyn Route>),
}

/// An agent as a configuration names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedAgent {
    /// The agent's name.
    pub name: String,
    /// The agent's parameters.
    pub parameters: Vec<(String, String)>,
}

/// A server without agents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoAgents;

impl Agents for NoAgents {
    fn agent(&self, name: &str, _: &[(String, String)]) -> Result<Agent> {
        Err(Error::invalid_arg(format!("repository agent '{name}' is not installed")))
    }

    fn open(&self, address: &str) -> Result<Arc<dyn Store>> {
        Err(Error::unsupported(format!("'{address}' cannot be read")))
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hooks(_) => f.debug_tuple("Hooks").finish_non_exhaustive(),
            Self::Route(route) => f.debug_tuple("Route").field(route).finish(),
        }
    }
}
