//! The operator's settings for a backend, which apply to all its models.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// The `max_batch_size` of batching models that do not configure one. Set for all backends or for one.
const DEFAULT_MAX_BATCH_SIZE: &str = "default-max-batch-size";

/// The settings of one backend: the settings for all backends, overridden by its own. A backend receives them when it
/// is created, and ignores unknown ones; the server warns of those that no built-in backend knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSettings(BTreeMap<String, String>);

impl BackendSettings {
    /// Names of settings that concern every backend. Triton's core passes them, too.
    pub const FOR_EVERY_BACKEND: [&str; 4] =
        [DEFAULT_MAX_BATCH_SIZE, "auto-complete-config", "backend-directory", "min-compute-capability"];

    /// A setting, as written.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// `default-max-batch-size`: the `max_batch_size` that completes the configuration of a batching model; 4 unless set.
    ///
    /// # Errors
    /// `InvalidArg` if it is not an integer.
    pub fn default_max_batch_size(&self) -> Result<i32> {
        self.default_max_batch_size_or(4)
    }

    /// `default-max-batch-size`, for a backend whose models take larger batches unless it is set.
    ///
    /// # Errors
    /// As [`default_max_batch_size`](Self::default_max_batch_size).
    pub fn default_max_batch_size_or(&self, otherwise: i32) -> Result<i32> {
        self.get(DEFAULT_MAX_BATCH_SIZE).map_or(Ok(otherwise), |value| {
            value.trim().parse().map_err(|_| {
                Error::invalid_arg(format!(
                    "backend setting '{DEFAULT_MAX_BATCH_SIZE}' is '{value}', expected an integer"
                ))
            })
        })
    }
}

/// The last setting of a key counts.
impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for BackendSettings {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(settings: I) -> Self {
        Self(settings.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_batch_size_is_four_unless_set() {
        let size = |value: &str| {
            BackendSettings::from_iter([(DEFAULT_MAX_BATCH_SIZE, value)]).default_max_batch_size()
        };
        assert_eq!(BackendSettings::default().default_max_batch_size(), Ok(4));
        assert_eq!([size("16"), size(" 0 "), size("-1")], [Ok(16), Ok(0), Ok(-1)]);
        for value in ["", "many", "4.5", "99999999999"] {
            let error = size(value).unwrap_err();
            assert!(error.message().contains(&format!("'default-max-batch-size' is '{value}'")), "{error}");
        }
    }

    #[test]
    fn repeated_setting_keeps_the_last_value() {
        let settings = BackendSettings::from_iter([("a", "1"), ("b", "2"), ("a", "3")]);
        assert_eq!([settings.get("a"), settings.get("b"), settings.get("c")], [Some("3"), Some("2"), None]);
    }
}
