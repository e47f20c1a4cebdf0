//! Parts of a protocol that only those may use who know a key: which parts there are, and which key each asks for.
//!
//! Every protocol has the same parts. How a key travels (as a header, as metadata) is the protocol's own matter.

use std::fmt;
use std::str::FromStr;

/// A part of the protocol, as restrictions name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiGroup {
    /// Liveness and readiness, of the server and of models.
    Health,
    /// Metadata of the server and of models.
    Metadata,
    /// Inference in all its forms.
    Inference,
    /// Registration of shared memory.
    SharedMemory,
    /// Configurations of models.
    ModelConfig,
    /// The repository's index, loading and unloading.
    ModelRepository,
    /// Statistics.
    Statistics,
    /// Trace settings.
    Trace,
    /// Log settings.
    Logging,
}

impl ApiGroup {
    /// All groups with their names.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Health, "health"),
        (Self::Metadata, "metadata"),
        (Self::Inference, "inference"),
        (Self::SharedMemory, "shared-memory"),
        (Self::ModelConfig, "model-config"),
        (Self::ModelRepository, "model-repository"),
        (Self::Statistics, "statistics"),
        (Self::Trace, "trace"),
        (Self::Logging, "logging"),
    ];
}

/// The name of a key and the value that opens.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name, as the option gives it.
    pub name: String,
    value: String,
}

impl Key {
    /// Whether this is its value. Takes as long for a wrong value as for a nearly right one.
    pub fn is(&self, value: &[u8]) -> bool {
        let expected = self.value.as_bytes();
        let differences = expected.iter().zip(value).fold(0, |all, (a, b)| all | (a ^ b));
        expected.len() == value.len() && std::hint::black_box(differences) == 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One restriction: some groups, and the key that opens them. Read from `GROUP,GROUP:KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The groups that are restricted.
    pub groups: Vec<ApiGroup>,
    /// What opens them.
    pub key: Key,
}

impl FromStr for Restriction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "it has the form <api>[,<api>]:<key>=<value>".to_owned();
        let (groups, key) = text.split_once(':').ok_or_else(form)?;
        let (name, value) = key.split_once('=').ok_or_else(form)?;
        if groups.is_empty() || name.is_empty() || value.is_empty() {
            return Err(form());
        }
        let groups = groups.split(',').map(|name| {
            ApiGroup::ALL.iter().find(|(_, known)| *known == name).map(|(group, _)| *group).ok_or_else(|| {
                let known = ApiGroup::ALL.map(|(_, name)| name).join(", ");
                format!("there is no API '{name}'; there are {known}")
            })
        });
        Ok(Self {
            groups: groups.collect::<Result<_, _>>()?,
            key: Key { name: name.into(), value: value.into() },
        })
    }
}

/// The key of each group that has one.
#[derive(Clone, Debug, Default)]
pub struct Restrictions([Option<Key>; ApiGroup::ALL.len()]);

impl Restrictions {
    /// Puts restrictions together.
    ///
    /// # Errors
    /// Which group is restricted twice.
    pub fn new(restrictions: impl IntoIterator<Item = Restriction>) -> Result<Self, String> {
        let mut all = Self::default();
        for restriction in restrictions {
            for group in restriction.groups {
                if all.0[group as usize].replace(restriction.key.clone()).is_some() {
                    let name = ApiGroup::ALL[group as usize].1;
                    return Err(format!("API '{name}' is restricted twice; it takes one key"));
                }
            }
        }
        Ok(all)
    }

    /// The same with `prefix` before the names of the keys: how they are called in a protocol.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        for key in self.0.iter_mut().flatten() {
            key.name.insert_str(0, prefix);
        }
        self
    }

    /// What opens this group, if it is restricted.
    pub fn key(&self, group: ApiGroup) -> Option<&Key> {
        self.0[group as usize].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restrictions(texts: &[&str]) -> Result<Restrictions, String> {
        Restrictions::new(texts.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn each_group_asks_for_its_key() {
        let all = restrictions(&["model-repository,logging:k1=v=1", "inference:k2=v2"]).unwrap();
        let name = |group| all.key(group).map(|key| key.name.as_str());
        assert_eq!(name(ApiGroup::ModelRepository), Some("k1"));
        assert_eq!(name(ApiGroup::Logging), Some("k1"));
        assert_eq!(name(ApiGroup::Inference), Some("k2"));
        assert_eq!(name(ApiGroup::Health), None);
        let key = all.key(ApiGroup::Logging).unwrap();
        assert!(key.is(b"v=1"));
        for wrong in [b"v=2".as_slice(), b"v=", b"v=11", b""] {
            assert!(!key.is(wrong));
        }
        let prefixed = all.clone().prefixed("x-");
        assert_eq!(prefixed.key(ApiGroup::Trace), None);
        assert_eq!(prefixed.key(ApiGroup::Inference).map(|key| key.name.as_str()), Some("x-k2"));
        assert!(!format!("{all:?}").contains("v=1"), "keys do not belong into logs");
    }

    #[test]
    fn groups_stand_where_their_number_says() {
        for (index, (group, _)) in ApiGroup::ALL.iter().enumerate() {
            assert_eq!(*group as usize, index);
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for wrong in [
            "",
            "health",
            "health:k",
            "health:=v",
            "health:k=",
            ":k=v",
            "helth:k=v",
            "health,:k=v",
            "Health:k=v",
        ] {
            assert!(wrong.parse::<Restriction>().is_err(), "{wrong}");
        }
        assert!(restrictions(&["health,trace:a=b", "trace:c=d"]).unwrap_err().contains("'trace'"));
        assert!(restrictions(&["trace,trace:a=b"]).is_err());
    }
}
