//! The backends of a server: those it knows by name, and one that looks for all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend_api::Backend;

/// The backends of a server.
#[derive(Clone, Default)]
pub struct Backends {
    named: BTreeMap<String, Arc<dyn Backend>>,
    others: Option<Arc<dyn Backend>>,
}

impl Backends {
    /// These, by the names that configurations use; and for models of all others, `others`, which finds out by itself
    /// whether there is such a backend.
    pub fn new(named: BTreeMap<String, Arc<dyn Backend>>, others: Option<Arc<dyn Backend>>) -> Self {
        Self { named, others }
    }

    /// The backend of that name.
    pub fn get(&self, name: &str) -> Option<&dyn Backend> {
        self.named.get(name).or(self.others.as_ref()).map(AsRef::as_ref)
    }

    /// The names that are known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// Whether a backend of that name is known for sure.
    pub fn knows(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }
}

impl From<BTreeMap<String, Arc<dyn Backend>>> for Backends {
    fn from(named: BTreeMap<String, Arc<dyn Backend>>) -> Self {
        Self::new(named, None)
    }
}
