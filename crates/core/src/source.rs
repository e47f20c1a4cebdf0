//! Where models come from, as the server sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use nereid_backend_api::Overrides;
use nereid_backend_api::{Error, Result};

use crate::model::ModelSpec;

/// A repository, or several. What implements it knows files or buckets; the server does not.
pub trait ModelSource: Send + Sync {
    /// The names of the models that are there now, ascending.
    ///
    /// # Errors
    /// It cannot be looked at now.
    fn names(&self) -> Result<Vec<String>>;

    /// The models that have this name, each in a namespace of its own; none, or one that is not there, if there are
    /// none.
    ///
    /// # Errors
    /// There are several in one namespace, so that none can be served.
    fn ids(&self, name: &str) -> Result<Vec<ModelId>> {
        Ok(vec![ModelId::plain(name)])
    }

    /// Reads a model.
    ///
    /// # Errors
    /// `NotFound` if it is not there; otherwise what is wrong with its description.
    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec>;

    /// Tells whether a model has changed, without reading more than it must.
    ///
    /// # Errors
    /// `NotFound` if it is not there.
    fn fingerprint(&self, id: &ModelId) -> Result<Fingerprint>;
}

/// What tells a model from others. Clients know names only; namespaces keep models of the same name apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelId {
    /// Its name.
    pub name: String,
    /// Where it is from, if that matters: empty where there are no namespaces.
    pub namespace: String,
}

impl ModelId {
    /// The model of that name where there are no namespaces.
    pub fn plain(name: impl Into<String>) -> Self {
        Self { name: name.into(), namespace: String::new() }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}::", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Equal for a model that has not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of its configuration.
    pub config: u64,
    /// Of its labels and whatever else concerns all versions.
    pub whole: u64,
    /// Of each version's files.
    pub versions: BTreeMap<u64, u64>,
}

impl Fingerprint {
    /// What is other than before, for the log.
    pub(crate) fn difference(&self, before: Option<&Self>) -> String {
        let Some(before) = before else { return "it is new".into() };
        let mut changes = Vec::new();
        if self.config != before.config {
            changes.push("its configuration".to_owned());
        }
        if self.whole != before.whole {
            changes.push("files beside its versions".to_owned());
        }
        let both: BTreeSet<_> = self.versions.keys().chain(before.versions.keys()).collect();
        for version in both {
            match (self.versions.get(version), before.versions.get(version)) {
                (Some(_), None) => changes.push(format!("version {version} is new")),
                (None, Some(_)) => changes.push(format!("version {version} is gone")),
                (now, then) if now != then => changes.push(format!("version {version}")),
                _ => {}
            }
        }
        changes.join(", ")
    }
}

/// Models that are given, and never change.
impl ModelSource for BTreeMap<String, Result<ModelSpec>> {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.keys().cloned().collect())
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        self.get(&id.name).cloned().unwrap_or_else(|| Err(unknown(id)))
    }

    fn fingerprint(&self, id: &ModelId) -> Result<Fingerprint> {
        self.get(&id.name).map(|_| Fingerprint::default()).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &ModelId) -> Error {
    Error::not_found(format!("there is no model '{id}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_told() {
        let of = |config, whole, versions: &[(u64, u64)]| {
            let versions = versions.iter().copied().collect();
            Fingerprint { config, whole, versions }
        };
        let before = of(1, 1, &[(1, 1), (2, 2)]);
        assert_eq!(before.difference(None), "it is new");
        assert_eq!(before.difference(Some(&before)), "");
        let after = of(2, 2, &[(2, 3), (3, 3)]);
        assert_eq!(
            after.difference(Some(&before)),
            "its configuration, files beside its versions, version 1 is gone, version 2, version 3 is new"
        );
    }
}
