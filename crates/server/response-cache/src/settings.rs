//! The settings of a cache, as passed on the command line.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::local::MIN_SIZE;

/// An invalid setting of a cache.
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
        /// The invalid value.
        value: String,
        /// A description of valid values.
        expected: String,
    },
}

/// The settings of one cache by name. Reading a setting removes it, so that unknown ones remain.
#[derive(Clone, Debug, Default)]
pub struct CacheSettings(BTreeMap<String, String>);

impl FromIterator<(String, String)> for CacheSettings {
    /// The last value of a repeated setting wins.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(settings: I) -> Self {
        Self(settings.into_iter().collect())
    }
}

impl CacheSettings {
    /// The value of a setting.
    pub fn take(&mut self, setting: &str) -> Option<String> {
        self.0.remove(setting)
    }

    /// Names of the settings not consumed.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Names and values of the settings not consumed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Takes a setting that is a number.
    ///
    /// # Errors
    /// The value is not a number.
    pub fn number(&mut self, cache: &'static str, setting: &str) -> Result<Option<u64>, SettingsError> {
        let Some(value) = self.take(setting) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(wrong(cache, setting, value, "a non-negative integer")),
        }
    }

    /// Takes a setting that is a boolean.
    ///
    /// # Errors
    /// The value is neither true nor false.
    pub fn flag(&mut self, cache: &'static str, setting: &str) -> Result<Option<bool>, SettingsError> {
        let Some(value) = self.take(setting) else { return Ok(None) };
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "on" => Ok(Some(true)),
            "false" | "0" | "off" => Ok(Some(false)),
            _ => Err(wrong(cache, setting, value, "true or false")),
        }
    }

    /// Takes the size of the cache in memory, in bytes.
    ///
    /// # Errors
    /// The size is missing, not a number, or too small.
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
    fn last_value_wins_and_unknown_settings_remain() {
        let mut given = settings(&[("size", "1"), ("other", "x"), ("size", "2048"), ("flag", "True")]);
        assert_eq!(given.local_size(), Ok(2048));
        assert_eq!(given.flag("local", "flag"), Ok(Some(true)));
        assert_eq!(given.flag("local", "flag"), Ok(None));
        assert_eq!(given.unknown().collect::<Vec<_>>(), ["other"]);
    }

    #[test]
    fn sizes_of_the_reference_are_accepted() {
        for size in [192, 200, 1000, 1023, 1024, 1 << 20, 1 << 40] {
            assert_eq!(settings(&[("size", &size.to_string())]).local_size(), Ok(size));
        }
    }

    #[test]
    fn invalid_values_are_refused_with_the_expected_form() {
        for size in ["10", "0", "-1", "x", "1.5", "191", "18446744073709551616"] {
            let error = settings(&[("size", size)]).local_size().unwrap_err().to_string();
            assert!(error.contains(&format!("is '{size}', must be ")), "{error}");
        }
        let missing = settings(&[("sizes", "5000")]).local_size().unwrap_err().to_string();
        assert!(missing.contains("--cache-config=local,size=VALUE"), "{missing}");
        assert!(settings(&[("f", "maybe")]).flag("local", "f").is_err());
    }
}
