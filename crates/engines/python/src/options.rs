//! The backend's settings (`--backend-config=python,key=value`).

use std::path::PathBuf;
use std::time::Duration;

use nereid_backend_api::{BackendSettings, Error, Result};
use nereid_python_env::Settings;
use nereid_worker::{Limits, SandboxSettings};

const INTERPRETER: &str = "python";
const START_TIMEOUT: &str = "stub-timeout-seconds";
pub(crate) const EXECUTE_TIMEOUT: &str = "execute-timeout-seconds";
const CACHE: &str = "environment-cache";
const INSTALLS: &str = "install-requirements";
const INSTALL_TIMEOUT: &str = "install-timeout-seconds";

/// Settings of the backend itself.
const WITH_MEANING: [&str; 6] =
    [INTERPRETER, START_TIMEOUT, EXECUTE_TIMEOUT, CACHE, INSTALLS, INSTALL_TIMEOUT];

/// Settings of Triton's backend without effect here: memory grows on demand, and no thread pool waits for models.
const WITHOUT_MEANING: [&str; 4] =
    ["shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name", "thread-pool-size"];

/// The parsed settings.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub limits: Limits,
    pub environments: Settings,
    pub sandbox: SandboxSettings,
}

impl Options {
    /// Names of settings, without the sandbox's.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        WITH_MEANING.into_iter().chain(WITHOUT_MEANING)
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid value.
    pub(crate) fn new(settings: &BackendSettings) -> Result<Self> {
        let limits = Limits::default();
        let start = seconds(settings, START_TIMEOUT)?.unwrap_or(limits.start);
        let execute = seconds(settings, EXECUTE_TIMEOUT)?;
        let mut environments = Settings::default();
        let path = |key| settings.get(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        environments.interpreter = path(INTERPRETER).or(environments.interpreter);
        environments.cache = path(CACHE).or(environments.cache);
        environments.installation = seconds(settings, INSTALL_TIMEOUT)?.unwrap_or(environments.installation);
        if let Some(value) = settings.get(INSTALLS) {
            environments.installs_requirements = flag(INSTALLS, value)?;
        }
        let given: Vec<_> = WITHOUT_MEANING.into_iter().filter(|key| settings.get(key).is_some()).collect();
        if !given.is_empty() {
            tracing::info!(
                "backend 'python' needs no {}: shared memory grows and shrinks as needed",
                given.join(", ")
            );
        }
        let sandbox = SandboxSettings::new("python", settings)?;
        Ok(Self { limits: Limits { start, execute, finish: start, ..limits }, environments, sandbox })
    }
}

/// A limit in seconds; 0 means no limit.
fn seconds(settings: &BackendSettings, key: &str) -> Result<Option<Duration>> {
    let Some(value) = settings.get(key) else { return Ok(None) };
    let seconds =
        value.trim().parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.ok_or_else(|| {
        Error::invalid_arg(format!("backend setting '{key}' is '{value}', expected a number of seconds"))
    })?;
    Ok(Some(seconds).filter(|limit| !limit.is_zero()))
}

fn flag(key: &str, value: &str) -> Result<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Error::invalid_arg(format!("backend setting '{key}' is '{value}', expected true or false"))),
    }
}
