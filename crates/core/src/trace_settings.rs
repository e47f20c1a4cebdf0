//! Which requests are to be traced, and how: settings for all models, and for each model what differs.
//!
//! A model follows the settings for all in what it does not set itself; those follow what the server started with. This
//! file only keeps and checks them: nothing is traced here.

mod text;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Result};

/// What is traced of a request. Nothing of it means that tracing is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevel {
    /// When it reached which stage.
    pub timestamps: bool,
    /// Its tensors.
    pub tensors: bool,
}

impl TraceLevel {
    /// Whether nothing is traced.
    pub fn is_off(self) -> bool {
        self == Self::default()
    }
}

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
    /// What is traced.
    pub level: TraceLevel,
    /// One in so many requests is traced.
    pub rate: u32,
    /// So many requests more are traced; -1 for any number.
    pub count: i32,
    /// So many traces go into each file; 0 for all of them into one.
    pub log_frequency: u32,
    /// The file; empty if none is given. It stays the same while the server runs, as what follows does.
    pub file: String,
    /// Where traces go. The file and its frequency mean something in mode `triton` alone.
    pub mode: TraceMode,
    /// What else is set for the mode: names and values.
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
    /// What is wrong with them, if they are to trace anything.
    fn check(&self, whose: &str) -> Result<()> {
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
        Err(Error::invalid_arg(format!("the trace settings for {whose} would trace nothing: {wrong}")))
    }
}

/// What an update does to one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It follows the next more general settings again.
    Clear,
    /// It is this from now on.
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

/// What is set, over more general settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Specified {
    level: Option<TraceLevel>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
}

impl Specified {
    fn updated(mut self, update: &TraceUpdate) -> Self {
        update.level.apply(&mut self.level);
        update.rate.apply(&mut self.rate);
        update.count.apply(&mut self.count);
        update.log_frequency.apply(&mut self.log_frequency);
        self
    }

    fn over(&self, general: &TraceSettings) -> TraceSettings {
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

/// The settings of the server and of its models as they are now.
#[derive(Debug, Default)]
pub struct TraceControl {
    initial: TraceSettings,
    specified: Mutex<AllSpecified>,
}

#[derive(Clone, Debug, Default)]
struct AllSpecified {
    global: Specified,
    /// Only those that set something.
    models: BTreeMap<String, Specified>,
}

impl TraceControl {
    /// Begins with these settings for all models.
    pub fn new(initial: TraceSettings) -> Self {
        Self { initial, specified: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, AllSpecified> {
        // It is replaced as a whole, so a panic while it was locked leaves nothing half-done.
        self.specified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings for a model, or for all.
    pub fn settings(&self, model: Option<&str>) -> TraceSettings {
        self.effective(&self.lock(), model)
    }

    /// Changes the settings of a model, or those for all, and gives what they then are.
    ///
    /// # Errors
    /// `InvalidArg` if these settings, or those of a model that follows them, could not trace what they are to trace.
    /// Nothing is changed then.
    pub fn update(&self, model: Option<&str>, update: &TraceUpdate) -> Result<TraceSettings> {
        let mut specified = self.lock();
        let mut updated = specified.clone();
        match model {
            None => {
                updated.global = updated.global.updated(update);
                self.effective(&updated, None).check("all models")?;
                for name in updated.models.keys() {
                    self.effective(&updated, Some(name)).check(&format!("model '{name}'"))?;
                }
            }
            Some(name) => {
                let own = updated.models.remove(name).unwrap_or_default().updated(update);
                if own != Specified::default() {
                    updated.models.insert(name.to_owned(), own);
                    self.effective(&updated, model).check(&format!("model '{name}'"))?;
                }
            }
        }
        *specified = updated;
        Ok(self.effective(&specified, model))
    }

    fn effective(&self, specified: &AllSpecified, model: Option<&str>) -> TraceSettings {
        let global = specified.global.over(&self.initial);
        match model.and_then(|name| specified.models.get(name)) {
            Some(own) => own.over(&global),
            None => global,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(rate: u32) -> TraceUpdate {
        TraceUpdate { rate: Change::Set(rate), ..TraceUpdate::default() }
    }

    const TIMESTAMPS: TraceUpdate = TraceUpdate {
        level: Change::Set(TraceLevel { timestamps: true, tensors: false }),
        rate: Change::Keep,
        count: Change::Keep,
        log_frequency: Change::Keep,
    };

    #[test]
    fn a_model_follows_the_general_settings_in_what_it_does_not_set() {
        let control = TraceControl::default();
        control.update(None, &rate(77)).unwrap();
        assert_eq!(control.settings(Some("m")).rate, 77);
        let count = TraceUpdate { count: Change::Set(5), ..TraceUpdate::default() };
        assert_eq!(control.update(Some("m"), &count).unwrap().rate, 77);
        control.update(None, &rate(78)).unwrap();
        let settings = control.settings(Some("m"));
        assert_eq!((settings.rate, settings.count, control.settings(None).count), (78, 5, -1));
    }

    #[test]
    fn what_is_cleared_follows_again() {
        let control = TraceControl::new(TraceSettings { rate: 10, ..TraceSettings::default() });
        control.update(None, &rate(77)).unwrap();
        control.update(Some("m"), &rate(3)).unwrap();
        let clear = TraceUpdate { rate: Change::Clear, ..TraceUpdate::default() };
        assert_eq!(control.update(Some("m"), &clear).unwrap().rate, 77);
        assert!(control.lock().models.is_empty());
        assert_eq!(control.update(None, &clear).unwrap().rate, 10);
    }

    #[test]
    fn settings_that_cannot_trace_are_refused_unless_tracing_is_off() {
        let control = TraceControl::default();
        assert!(control.update(None, &TIMESTAMPS).unwrap_err().message().contains("no trace file"));
        control.update(None, &rate(0)).unwrap();
        let control = TraceControl::new(TraceSettings { file: "f".into(), ..TraceSettings::default() });
        control.update(None, &TIMESTAMPS).unwrap();
        assert!(control.update(None, &rate(0)).is_err());
        let none = TraceUpdate { count: Change::Set(0), ..TraceUpdate::default() };
        assert!(control.update(Some("m"), &none).is_err());
        assert_eq!(control.settings(None), control.settings(Some("m")));
        assert_eq!(control.settings(None).rate, 1000);
    }

    #[test]
    fn a_collector_takes_no_file() {
        let control =
            TraceControl::new(TraceSettings { mode: TraceMode::OpenTelemetry, ..TraceSettings::default() });
        let settings = control.update(Some("m"), &TIMESTAMPS).unwrap();
        assert_eq!((settings.mode.name(), settings.file.as_str()), ("opentelemetry", ""));
        assert_eq!(TraceMode::named("OpenTelemetry"), Some(TraceMode::OpenTelemetry));
        assert_eq!(TraceMode::named("zipkin"), None);
    }

    #[test]
    fn a_general_update_is_refused_that_a_model_cannot_follow() {
        let control = TraceControl::new(TraceSettings { file: "f".into(), ..TraceSettings::default() });
        control.update(Some("m"), &TIMESTAMPS).unwrap();
        assert!(control.update(None, &rate(0)).unwrap_err().message().contains("'m'"));
        assert_eq!(control.settings(None).rate, 1000);
    }
}
