//! Trace settings: global ones, and for each model those that differ.
//!
//! A model inherits the global settings that it does not set itself; those inherit what the server started with. This
//! file defines the settings and how they are layered; `control.rs` holds the current ones.

use nereid_backend_api::{Error, Result, TraceLevel};

/// Where traces go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceMode {
    /// Into a file.
    #[default]
    Triton,
    /// To a collector.
    OpenTelemetry,
}

impl TraceMode {
    /// The name that the protocols and options have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Triton => "triton",
            Self::OpenTelemetry => "opentelemetry",
        }
    }

    /// The mode of that name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Triton, Self::OpenTelemetry].into_iter().find(|mode| mode.name().eq_ignore_ascii_case(name))
    }
}

/// The settings that hold for a model, or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// The level of detail.
    pub level: TraceLevel,
    /// One in this many requests is traced.
    pub rate: u32,
    /// The number of requests still to be traced; -1 for no limit.
    pub count: i32,
    /// The number of traces in each file; 0 for one file for all.
    pub log_frequency: u32,
    /// The file; empty if none is given. It stays the same while the server runs, as what follows does.
    pub file: String,
    /// Where traces go. The file and its frequency mean something in mode `triton` alone.
    pub mode: TraceMode,
    /// Further settings of the mode: names and values.
    pub mode_settings: Vec<(String, String)>,
}

impl Default for TraceSettings {
    fn default() -> Self {
        Self {
            level: TraceLevel::default(),
            rate: 1000,
            count: -1,
            log_frequency: 0,
            file: String::new(),
            mode: TraceMode::default(),
            mode_settings: Vec::new(),
        }
    }
}

impl TraceSettings {
    /// Checks settings that trace anything.
    pub(crate) fn check(&self, whose: &str) -> Result<()> {
        let wrong = if self.level.is_off() {
            return Ok(());
        } else if self.rate == 0 {
            "trace_rate is 0, and one in no requests cannot be traced"
        } else if self.mode == TraceMode::Triton && self.file.is_empty() {
            "there is no trace file; it is given when the server starts"
        } else if self.count == 0 {
            "trace_count is 0"
        } else {
            return Ok(());
        };
        Err(Error::invalid_arg(format!("trace settings for {whose}: nothing would be traced: {wrong}")))
    }
}

/// The effect of an update on one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// Keep the value.
    #[default]
    Keep,
    /// Inherit the more general settings again.
    Clear,
    /// Set the value.
    Set(T),
}

impl<T: Copy> Change<T> {
    fn apply(self, specified: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *specified = None,
            Self::Set(value) => *specified = Some(value),
        }
    }
}

/// A change to the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceUpdate {
    /// See [`TraceSettings::level`].
    pub level: Change<TraceLevel>,
    /// See [`TraceSettings::rate`].
    pub rate: Change<u32>,
    /// See [`TraceSettings::count`]. At least -1.
    pub count: Change<i32>,
    /// See [`TraceSettings::log_frequency`].
    pub log_frequency: Change<u32>,
}

/// Which settings override more general ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecifiedSettings {
    pub level: Option<TraceLevel>,
    pub rate: Option<u32>,
    pub count: Option<i32>,
    pub log_frequency: Option<u32>,
}

impl SpecifiedSettings {
    pub(crate) fn updated(mut self, update: &TraceUpdate) -> Self {
        update.level.apply(&mut self.level);
        update.rate.apply(&mut self.rate);
        update.count.apply(&mut self.count);
        update.log_frequency.apply(&mut self.log_frequency);
        self
    }

    pub(crate) fn over(&self, general: &TraceSettings) -> TraceSettings {
        TraceSettings {
            level: self.level.unwrap_or(general.level),
            rate: self.rate.unwrap_or(general.rate),
            count: self.count.unwrap_or(general.count),
            log_frequency: self.log_frequency.unwrap_or(general.log_frequency),
            file: general.file.clone(),
            mode: general.mode,
            mode_settings: general.mode_settings.clone(),
        }
    }
}
