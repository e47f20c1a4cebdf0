//! Restricted API groups and their keys: the reference's way to limit access.

use std::fmt;
use std::str::FromStr;

use super::{Action, Authentication, Authenticator, Authorizer, Denied, Head, Identity};

/// A group of APIs that can be restricted.
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

    /// The group's bit in a set.
    pub(super) fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A key: the header that holds it, and its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    name: String,
    value: String,
}

impl Key {
    /// Compares in constant time.
    fn matches(&self, value: &[u8]) -> bool {
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

/// A restriction: groups, and the key they require. Parsed from `GROUP,GROUP:KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The restricted groups.
    pub groups: Vec<ApiGroup>,
    /// The key they require.
    key: Key,
}

impl FromStr for Restriction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "expected <api>[,<api>]:<key>=<value>".to_owned();
        let (groups, key) = text.split_once(':').ok_or_else(form)?;
        let (name, value) = key.split_once('=').ok_or_else(form)?;
        if groups.is_empty() || name.is_empty() || value.is_empty() {
            return Err(form());
        }
        let groups = groups.split(',').map(|name| {
            ApiGroup::ALL.iter().find(|(_, known)| *known == name).map(|(group, _)| *group).ok_or_else(|| {
                let known = ApiGroup::ALL.map(|(_, name)| name).join(", ");
                format!("unknown API '{name}' (known: {known})")
            })
        });
        Ok(Self {
            groups: groups.collect::<Result<_, _>>()?,
            key: Key { name: name.into(), value: value.into() },
        })
    }
}

/// The key of each restricted group.
#[derive(Clone, Debug, Default)]
pub struct Restrictions([Option<Key>; ApiGroup::ALL.len()]);

impl Restrictions {
    /// Combines restrictions.
    ///
    /// # Errors
    /// A group is restricted twice.
    pub fn new(restrictions: impl IntoIterator<Item = Restriction>) -> Result<Self, String> {
        let mut all = Self::default();
        for restriction in restrictions {
            for group in restriction.groups {
                if all.0[group as usize].replace(restriction.key.clone()).is_some() {
                    let name = ApiGroup::ALL[group as usize].1;
                    return Err(format!("API '{name}' is restricted twice; each API takes one key"));
                }
            }
        }
        Ok(all)
    }

    /// These restrictions with `prefix` before each key's name.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        for key in self.0.iter_mut().flatten() {
            key.name.insert_str(0, prefix);
        }
        self
    }

    /// Whether no group is restricted.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// The key that this group requires, if it is restricted.
    fn key(&self, group: ApiGroup) -> Option<&Key> {
        self.0.get(group as usize).and_then(Option::as_ref)
    }
}

impl Authenticator for Restrictions {
    fn authenticate<'a>(&'a self, mut identity: Identity, head: &'a dyn Head) -> Authentication<'a> {
        for (group, _) in ApiGroup::ALL {
            let presents = |key: &Key| head.header(&key.name).is_some_and(|value| key.matches(value));
            if self.key(group).is_some_and(presents) {
                identity.opened |= group.bit();
            }
        }
        Authentication::Done(Ok(identity))
    }
}

impl Authorizer for Restrictions {
    fn check(&self, caller: &Identity, action: Action, _: Option<&str>) -> Result<(), Denied> {
        match action.group().and_then(|group| Some((group, self.key(group)?))) {
            Some((group, key)) if !caller.has_opened(group) => {
                Err(Denied::Restricted { header: key.name.clone() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restrictions(texts: &[&str]) -> Result<Restrictions, String> {
        Restrictions::new(texts.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn each_restricted_group_requires_its_key() {
        let all = restrictions(&["model-repository,logging:k1=v=1", "inference:k2=v2"]).unwrap();
        let name = |group| all.key(group).map(|key| key.name.as_str());
        assert_eq!(name(ApiGroup::ModelRepository), Some("k1"));
        assert_eq!(name(ApiGroup::Logging), Some("k1"));
        assert_eq!(name(ApiGroup::Inference), Some("k2"));
        assert_eq!(name(ApiGroup::Health), None);
        let key = all.key(ApiGroup::Logging).unwrap();
        assert!(key.matches(b"v=1"));
        for wrong in [b"v=2".as_slice(), b"v=", b"v=11", b""] {
            assert!(!key.matches(wrong));
        }
        let prefixed = all.clone().prefixed("x-");
        assert_eq!(prefixed.key(ApiGroup::Trace), None);
        assert_eq!(prefixed.key(ApiGroup::Inference).map(|key| key.name.as_str()), Some("x-k2"));
        assert!(!format!("{all:?}").contains("v=1"), "keys must not be logged");
    }

    #[test]
    fn groups_are_listed_in_the_order_of_their_numbers() {
        for (index, (group, _)) in ApiGroup::ALL.iter().enumerate() {
            assert_eq!(*group as usize, index);
        }
    }

    #[test]
    fn malformed_restrictions_are_refused() {
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
