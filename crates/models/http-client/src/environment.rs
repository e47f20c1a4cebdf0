//! The environment variables for access to clouds. Tests replace them.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Looks up variables. Empty ones count as absent.
#[derive(Clone)]
pub struct Environment(Arc<Lookup>);

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Environment {
    /// The variables of the process.
    pub fn of_process() -> Self {
        Self::new(|name| env::var(name).ok())
    }

    /// The variables that a function returns.
    pub fn new(get: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(get))
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// The value of the first variable that is set.
    pub fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Whether a variable is set to something like `true`.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| ["1", "on", "true", "yes"].contains(&&*value.to_ascii_lowercase()))
    }

    /// A file in the user's home folder.
    pub fn at_home(&self, path: &str) -> Option<PathBuf> {
        self.get("HOME").map(|home| PathBuf::from(home).join(path))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}
