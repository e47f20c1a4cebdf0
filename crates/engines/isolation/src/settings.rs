//! The settings that isolate a backend from the server.

use std::time::Duration;

use nereid_backend_api::{BackendSettings, Error, Result};

const ISOLATION: &str = "isolation";
const LOAD_TIMEOUT: &str = "load-timeout-seconds";
const EXECUTE_TIMEOUT: &str = "execute-timeout-seconds";

/// How a backend is isolated from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The backend runs in the server.
    None,
    /// Each model is first loaded in a separate process, and then in the server if that succeeded.
    Load,
    /// Each instance has its own process.
    Process,
}

/// A backend's isolation settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The configured isolation; `None` if not set.
    pub isolation: Option<Isolation>,
    /// Time limit of a load in a process. If unset, the limit [depends on the size](crate); `Some(None)` means no
    /// limit.
    pub load: Option<Option<Duration>>,
    /// Time limit of an execution in a process, or of a step of an instance that executes continuously. If unset, only such steps
    /// have a limit; `Some(None)` means no limit.
    pub execute: Option<Option<Duration>>,
}

impl Settings {
    /// The names of the settings.
    pub const NAMES: [&str; 3] = [ISOLATION, LOAD_TIMEOUT, EXECUTE_TIMEOUT];

    /// Reads the settings of a backend.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid value.
    pub fn of(settings: &BackendSettings) -> Result<Self> {
        let isolation = match settings.get(ISOLATION).map(str::trim) {
            None => None,
            Some("none") => Some(Isolation::None),
            Some("load") => Some(Isolation::Load),
            Some("process") => Some(Isolation::Process),
            Some(other) => {
                return Err(Error::invalid_arg(format!(
                    "backend setting '{ISOLATION}' is '{other}', expected none, load or process"
                )));
            }
        };
        let (load, execute) = (seconds(settings, LOAD_TIMEOUT)?, seconds(settings, EXECUTE_TIMEOUT)?);
        Ok(Self { isolation, load, execute })
    }
}

/// A limit in seconds, if one is set; 0 means no limit.
fn seconds(settings: &BackendSettings, key: &str) -> Result<Option<Option<Duration>>> {
    let Some(value) = settings.get(key) else { return Ok(None) };
    let seconds = value.trim().parse::<f64>().ok();
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        Error::invalid_arg(format!("backend setting '{key}' is '{value}', expected a number of seconds"))
    })?;
    Ok(Some(Some(seconds).filter(|limit| !limit.is_zero())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[(&str, &str)]) -> Result<Settings> {
        Settings::of(&given.iter().copied().collect())
    }

    #[test]
    fn settings_choose_isolation_and_limits() {
        let open = Settings { isolation: None, load: None, execute: None };
        assert_eq!(settings(&[]), Ok(open));
        for (value, isolation) in
            [("none", Isolation::None), (" load ", Isolation::Load), ("process", Isolation::Process)]
        {
            let expected = Settings { isolation: Some(isolation), ..open };
            assert_eq!(settings(&[(ISOLATION, value)]), Ok(expected));
        }
        for (value, limit) in [("0", None), ("0.5", Some(Duration::from_millis(500)))] {
            assert_eq!(settings(&[(LOAD_TIMEOUT, value)]), Ok(Settings { load: Some(limit), ..open }));
            assert_eq!(settings(&[(EXECUTE_TIMEOUT, value)]), Ok(Settings { execute: Some(limit), ..open }));
        }
    }

    #[test]
    fn other_values_are_refused_with_the_setting() {
        for (key, value) in
            [(ISOLATION, ""), (ISOLATION, "yes"), (LOAD_TIMEOUT, "soon"), (EXECUTE_TIMEOUT, "-1")]
        {
            let error = settings(&[(key, value)]).unwrap_err();
            assert!(error.message().starts_with(&format!("backend setting '{key}' is '{value}'")), "{error}");
        }
    }
}
