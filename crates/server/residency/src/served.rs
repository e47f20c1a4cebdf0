//! The models in memory by name, and the ensembles that each is a member of: an ensemble leaves with its first member.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nereid_core::{Model, Server};

use crate::parameters::Parameters;

/// The models that a server serves.
pub(crate) struct Served {
    models: BTreeMap<String, Vec<Arc<Model>>>,
    /// The models that consist of others, by the names of these.
    users: BTreeMap<String, BTreeSet<String>>,
}

impl Served {
    pub(crate) fn of(server: &Server) -> Self {
        let (mut models, mut users) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, BTreeSet<_>>::new());
        for model in server.models().ready() {
            for member in model.dependencies() {
                users.entry(member.clone()).or_default().insert(model.name().to_owned());
            }
            models.entry(model.name().to_owned()).or_default().push(Arc::clone(model));
        }
        Self { models, users }
    }

    /// The models with their ready versions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &[Arc<Model>])> {
        self.models.iter().map(|(name, versions)| (name, versions.as_slice()))
    }

    /// The ready versions of a model.
    pub(crate) fn versions(&self, name: &str) -> &[Arc<Model>] {
        self.models.get(name).map_or(&[], Vec::as_slice)
    }

    /// A model, and those that consist of it at any depth.
    pub(crate) fn with_users<'s>(&'s self, name: &'s str) -> BTreeSet<&'s str> {
        let (mut found, mut left) = (BTreeSet::new(), vec![name]);
        while let Some(name) = left.pop() {
            if found.insert(name) {
                left.extend(self.users.get(name).into_iter().flatten().map(String::as_str));
            }
        }
        found
    }
}

/// Whether a model consists of others, and takes no memory of its own.
pub(crate) fn is_composite(versions: &[Arc<Model>]) -> bool {
    versions.iter().any(|model| model.is_composite())
}

/// The parameters of a model in memory.
pub(crate) fn parameters(versions: &[Arc<Model>]) -> Parameters {
    let config = versions.first().map(|model| model.config());
    config.and_then(|config| Parameters::of(config).ok()).unwrap_or_default()
}

/// How many requests the loaded versions have answered.
pub(crate) fn uses(versions: &[Arc<Model>]) -> u64 {
    let of_version = |model: &Arc<Model>| {
        let counters = model.statistics().snapshot();
        counters.success.count + counters.fail.count
    };
    versions.iter().map(of_version).sum()
}
