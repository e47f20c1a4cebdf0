//! Which repository agents see a model, and in what order.
//!
//! A model's configuration names its agents. Where it names none, those count that the file `agents.pbtxt` of its repository
//! names, and otherwise those that were given for the repository when the server was started.

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
pub(crate) use self::run::Seeing;
use crate::route::Route;
use crate::store::Store;

/// The agents of a server.
pub trait Agents: Send + Sync {
    /// The agent of that name, as these parameters have it.
    ///
    /// # Errors
    /// There is none, it cannot be used, or not with these parameters.
    fn agent(&self, name: &str, parameters: &[(String, String)]) -> Result<Agent>;

    /// The store at an address in a cloud, to which an agent has sent a model.
    ///
    /// # Errors
    /// Not an address of a store.
    fn open(&self, address: &str) -> Result<Arc<dyn Store>>;
}

/// An agent.
pub enum Agent {
    /// Gets the actions of a model, and may put files of its own in place of the model's.
    Hooks(Arc<dyn RepositoryAgent>),
    /// It only brings the model's files.
    Route(Arc<dyn Route>),
}

/// An agent as a configuration names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedAgent {
    /// Its name.
    pub name: String,
    /// Its parameters.
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
