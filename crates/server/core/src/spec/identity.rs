//! The identity of a model, the origin of its files, and a summary of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The identity of a model. Clients know names only; namespaces keep models of the same name apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelId {
    /// The model's name.
    pub name: String,
    /// The namespace; empty without namespaces.
    pub namespace: String,
}

impl ModelId {
    /// The model of this name, without a namespace.
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

/// The origin of a model's files. Versions of different origins share no files, even if their fingerprints are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The source itself: fingerprints differ once the files have changed.
    #[default]
    Source,
    /// A load request, with the digest of the paths and contents of its files.
    Request(u64),
}

/// Equal for a model that has not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// The configuration.
    pub config: u64,
    /// Labels and other files that concern all versions.
    pub whole: u64,
    /// Each version's files.
    pub versions: BTreeMap<u64, u64>,
}

impl Fingerprint {
    /// The differences to an earlier fingerprint, for the log.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_reported() {
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
