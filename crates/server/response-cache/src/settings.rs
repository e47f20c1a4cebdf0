//! The settings of a cache, as the command line gives them.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::local::MIN_SIZE;

/// What is wrong with the settings of a cache.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingsError {
    /// A setting that must be given is not.
    #[error("the cache '{cache}' needs the setting '{setting}': --cache-config={cache},{setting}=VALUE")]
    Missing {
        /// The cache.
        cache: &'static str,
        /// The setting.
        setting: &'static str,
    },
    /// A setting has a value that it cannot have.
    #[error("the setting '{setting}' of the cache '{cache}' is '{value}', must be {expected}")]
    Value {
        /// The cache.
        cache: &'static str,
        /// The setting.
        setting: String,
        /// Its value.
        value: String,
        /// What would be right.
        expected: String,
    },
}

/// The settings of one cache by name. Reading a setting removes it, so that unknown ones remain.
#[derive(Clone, Debug, Default)]
pub struct CacheSettings(BTreeMap<String, String>);

impl FromIterator<(String, String)> for CacheSettings {
    /// Of a setting that is given several times, the last counts.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(settings: I) -> Self {
        Self(settings.into_iter().collect())
    }
}

impl CacheSettings {
    /// The value of a setting.
    pub fn take(&mut self, setting: &str) -> Option<String> {
        self.0.remove(setting)
    }

    /// The names of those that were not taken.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The names and values of those that were not taken.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a setting that is a number.
    ///
    /// # Errors
    /// It is something else.
    pub fn number(&mut self, cache: &'static str, setting: &str) -> Result<Option<u64>, SettingsError> {
        let Some(value) = self.take(setting) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(wrong(cache, setting, value, "a whole number, 0 or more")),
        }
    }

    /// The value of a setting that is true or false.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(&mut self, cache: &'static str, setting: &str) -> Result<Option<bool>, SettingsError> {
        let Some(value) = self.take(setting) else { return Ok(None) };
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "on" => Ok(Some(true)),
            "false" | "0" | "off" => Ok(Some(false)),
            _ => Err(wrong(cache, setting, value, "true or false")),
        }
    }

    /// The size of the cache in memory, in bytes.
    ///
    /// # Errors
    /// It is not given, no number, or too small.
    pub fn local_size(&mut self) -> Result<u64, SettingsError> {
        const CACHE: &str = "local";
        let given = self.0.get("size").cloned().unwrap_or_default();
        match self.number(CACHE, "size")? {
            None => Err(SettingsError::Missing { cache: CACHE, setting: "size" }),
            Some(size) if size < MIN_SIZE => {
                Err(wrong(CACHE, "size", given, &format!("{MIN_SIZE} bytes or more")))
            }
            Some(size) => Ok(size),
        }
    }
}

pub(crate) fn wrong(cache: &'static str, setting: &str, value: String, expected: &str) -> SettingsError {
    SettingsError::Value { cache, setting: setting.to_owned(), value, expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[(&str, &str)]) -> CacheSettings {
        given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_last_of_several_values_counts_and_unknown_settings_are_left() {
        let mut given = settings(&[("size", "1"), ("other", "x"), ("size", "2048"), ("flag", "True")]);
        assert_eq!(given.local_size(), Ok(2048));
        assert_eq!(given.flag("local", "flag"), Ok(Some(true)));
        assert_eq!(given.flag("local", "flag"), Ok(None));
        assert_eq!(given.unknown().collect::<Vec<_>>(), ["other"]);
    }

    #[test]
    fn wrong_values_are_refused_with_what_would_be_right() {
        for size in ["10", "0", "-1", "x", "1.5", "1023", "18446744073709551616"] {
            let error = settings(&[("size", size)]).local_size().unwrap_err().to_string();
            assert!(error.contains(&format!("is '{size}', must be ")), "{error}");
        }
        let missing = settings(&[("sizes", "5000")]).local_size().unwrap_err().to_string();
        assert!(missing.contains("--cache-config=local,size=VALUE"), "{missing}");
        assert!(settings(&[("f", "maybe")]).flag("local", "f").is_err());
    }
}
