//! Log settings, which clients read and change while the server runs.
//!
//! The log subscriber reads them from [`LogControl`] for each line. Nothing is logged here.

use std::sync::Arc;

use arc_swap::ArcSwap;
use nereid_backend_api::{Error, Result};
use serde::Serialize;

use crate::recent_log::RecentLog;

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// The severity's letter, then month, day and time in microseconds.
    #[default]
    Default,
    /// The time in ISO 8601, in seconds, then the severity's letter.
    Iso8601,
    /// A JSON object, which the reference does not have.
    Json,
}

impl LogFormat {
    /// The format with this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Default, Self::Iso8601, Self::Json].into_iter().find(|format| format.name() == name)
    }

    /// The message for an unknown format.
    pub fn unknown(name: &str) -> String {
        format!("unknown log_format '{name}' (known: 'default', 'ISO8601', 'JSON')")
    }

    /// The format's name in options and protocols.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Iso8601 => "ISO8601",
            Self::Json => "JSON",
        }
    }
}

/// Which messages are logged, where, and in which format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The file; empty for standard error. Fixed at start.
    pub file: String,
    /// Whether information is logged.
    pub info: bool,
    /// Whether warnings are logged.
    pub warning: bool,
    /// Whether errors are logged.
    pub error: bool,
    /// The level of verbose messages; 0 for none.
    pub verbose_level: u32,
    /// The form of a line.
    pub format: LogFormat,
    /// Whether requests are logged below verbose level 1, too. Fixed at start; clients do not see it.
    pub requests: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            file: String::new(),
            info: true,
            warning: true,
            error: true,
            verbose_level: 0,
            format: LogFormat::Default,
            requests: false,
        }
    }
}

/// The value of a log setting, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LogValue<'s> {
    /// A text.
    Text(&'s str),
    /// A boolean.
    Flag(bool),
    /// A number.
    Count(u32),
}

impl LogSettings {
    /// The settings with their names in the protocols.
    pub fn values(&self) -> [(&'static str, LogValue<'_>); 6] {
        [
            ("log_file", LogValue::Text(&self.file)),
            ("log_info", LogValue::Flag(self.info)),
            ("log_warning", LogValue::Flag(self.warning)),
            ("log_error", LogValue::Flag(self.error)),
            ("log_verbose_level", LogValue::Count(self.verbose_level)),
            ("log_format", LogValue::Text(self.format.name())),
        ]
    }
}

/// A change to the settings; `None` leaves a setting unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUpdate {
    /// See [`LogSettings::info`].
    pub info: Option<bool>,
    /// See [`LogSettings::warning`].
    pub warning: Option<bool>,
    /// See [`LogSettings::error`].
    pub error: Option<bool>,
    /// See [`LogSettings::verbose_level`].
    pub verbose_level: Option<u32>,
    /// See [`LogSettings::format`].
    pub format: Option<LogFormat>,
}

impl LogUpdate {
    /// The error for `log_file`, which is fixed at startup.
    pub fn file_error() -> Error {
        Error::unsupported(
            "log file location can not be updated through network protocol: log_file is fixed when the server starts",
        )
    }

    /// Checks a verbose level.
    ///
    /// # Errors
    /// `InvalidArg` if it is out of range.
    pub fn level(level: u64) -> Result<u32> {
        const MAX: u32 = i32::MAX.unsigned_abs();
        u32::try_from(level).ok().filter(|level| *level <= MAX).ok_or_else(|| {
            Error::invalid_arg(format!("log_verbose_level is {level}; expected at most {MAX}"))
        })
    }
}

/// The current settings, and the last lines.
#[derive(Debug, Default)]
pub struct LogControl {
    settings: ArcSwap<LogSettings>,
    recent: RecentLog,
}

impl LogControl {
    /// Starts with these settings.
    pub fn new(settings: LogSettings) -> Self {
        Self { settings: ArcSwap::from_pointee(settings), recent: RecentLog::default() }
    }

    /// The settings.
    pub fn settings(&self) -> Arc<LogSettings> {
        self.settings.load_full()
    }

    /// The last lines. Empty where no subscriber adds any.
    pub fn recent(&self) -> &RecentLog {
        &self.recent
    }

    /// Changes the settings, from the next message on.
    pub fn update(&self, update: LogUpdate) {
        self.settings.rcu(|settings| LogSettings {
            file: settings.file.clone(),
            info: update.info.unwrap_or(settings.info),
            warning: update.warning.unwrap_or(settings.warning),
            error: update.error.unwrap_or(settings.error),
            verbose_level: update.verbose_level.unwrap_or(settings.verbose_level),
            format: update.format.unwrap_or(settings.format),
            requests: settings.requests,
        });
        // Each call site caches whether it is enabled.
        tracing::callsite::rebuild_interest_cache();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_changes_only_named_settings() {
        let control = LogControl::new(LogSettings { file: "f".into(), ..LogSettings::default() });
        control.update(LogUpdate { info: Some(false), verbose_level: Some(3), ..LogUpdate::default() });
        control.update(LogUpdate { format: Some(LogFormat::Iso8601), ..LogUpdate::default() });
        let expected = LogSettings {
            file: "f".into(),
            info: false,
            verbose_level: 3,
            format: LogFormat::Iso8601,
            ..LogSettings::default()
        };
        assert_eq!(*control.settings(), expected);
    }

    #[test]
    fn formats_have_names() {
        assert_eq!(LogFormat::named("ISO8601"), Some(LogFormat::Iso8601));
        assert_eq!(LogFormat::named("default"), Some(LogFormat::Default));
        assert_eq!(LogFormat::named("JSON"), Some(LogFormat::Json));
        assert_eq!(LogFormat::named("iso8601"), None);
        assert_eq!(LogFormat::named("json"), None);
    }
}
