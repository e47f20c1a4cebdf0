//! What the processes of a backend's models may do: the operator's settings, tightened by a model's parameters.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use nereid_backend_api::{BackendSettings, Error, ModelContext, Result};
use nereid_model_config::proto::model_instance_group::Kind;
use nereid_sandbox::{Cpus, Level, Network, Policy, Support};

const LEVEL: &str = "sandbox";
const NETWORK: &str = "sandbox-network";
const READABLE: &str = "sandbox-read";
const WRITABLE: &str = "sandbox-write";
const VARIABLES: &str = "sandbox-variables";
const MEMORY: &str = "sandbox-memory";
const CPUS: &str = "sandbox-cpus";

/// The operator's settings for the processes of a backend's models. `KEY.MODEL` sets a key for one model.
#[derive(Clone, Debug, Default)]
pub struct SandboxSettings(BackendSettings);

impl SandboxSettings {
    /// The names of the settings for all models.
    pub const NAMES: [&str; 7] = [LEVEL, NETWORK, READABLE, WRITABLE, VARIABLES, MEMORY, CPUS];

    /// Whether a setting is one of these, for all models or for one.
    pub fn has(key: &str) -> bool {
        Self::NAMES.iter().any(|name| {
            key.strip_prefix(name).is_some_and(|model| model.is_empty() || model.starts_with('.'))
        })
    }

    /// Reads the settings of a backend, and logs what the kernel cannot enforce of them.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid value; `Unavailable` if the sandbox is required and the kernel cannot enforce it.
    pub fn new(backend: &str, settings: &BackendSettings) -> Result<Self> {
        let settings = Self(settings.clone());
        let level = settings.policy(None)?.level;
        match Support::detect().missing(level) {
            Some(missing) if level == Level::Required => Err(Error::unavailable(format!(
                "backend '{backend}': the setting '{LEVEL}' is 'required', but {missing}"
            ))),
            Some(missing) => {
                tracing::warn!("backend '{backend}': processes of models are not fully confined: {missing}");
                Ok(settings)
            }
            None => Ok(settings),
        }
    }

    /// The policy of processes that serve no model yet: nothing beyond the default level is enforced.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid value.
    pub fn without_model(&self) -> Result<Policy> {
        let policy = self.policy(None)?;
        Ok(Policy { level: policy.level.min(Level::Basic), ..Policy::default() })
    }

    /// The policy of a model's processes, which read the model's folder and `readable`. The model's parameters `sandbox`,
    /// `sandbox_network`, `sandbox_memory` and `sandbox_cpus` may tighten the settings, and never loosen them. Logs a limit of
    /// processors that the system cannot enforce.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid value; `Unavailable` if the sandbox is required and the limit cannot be enforced.
    pub fn of_model(&self, context: &ModelContext, readable: Vec<PathBuf>) -> Result<Policy> {
        let mut policy = self.policy(Some(&context.name))?;
        let level = parameter::<Level>(context, "sandbox")?;
        let network = parameter::<Network>(context, "sandbox_network")?;
        let memory = parameter::<u64>(context, "sandbox_memory")?;
        let cpus = parameter::<Cpus>(context, "sandbox_cpus")?;
        policy.level = level.map_or(policy.level, |level| level.max(policy.level));
        policy.network = network.map_or(policy.network, |network| network.min(policy.network));
        policy.memory = policy.memory.into_iter().chain(memory).min();
        policy.cpus = policy.cpus.into_iter().chain(cpus).min();
        policy.readable.extend(readable);
        policy.readable.push(context.directory.clone());
        let mut groups = context.config.instance_group.iter();
        policy.gpus = groups.any(|group| matches!(group.kind(), Kind::Gpu | Kind::Model));
        match Support::missing_limit(&policy) {
            Some(missing) if policy.level == Level::Required => Err(Error::unavailable(format!(
                "model '{}': its sandbox is required, but {missing}",
                context.name
            ))),
            Some(missing) => {
                tracing::warn!("model '{}': processors are not limited: {missing}", context.name);
                Ok(policy)
            }
            None => Ok(policy),
        }
    }

    fn policy(&self, model: Option<&str>) -> Result<Policy> {
        Ok(Policy {
            level: self.value(LEVEL, model)?.unwrap_or_default(),
            readable: self.list(READABLE, model, ':').map(PathBuf::from).collect(),
            writable: self.list(WRITABLE, model, ':').map(PathBuf::from).collect(),
            variables: self.list(VARIABLES, model, ':').map(str::to_owned).collect(),
            network: self.value(NETWORK, model)?.unwrap_or_default(),
            gpus: false,
            memory: self.value(MEMORY, model)?,
            cpus: self.value(CPUS, model)?,
        })
    }

    /// The setting for the model, or else for all models.
    fn get(&self, key: &str, model: Option<&str>) -> Option<&str> {
        let own = model.and_then(|model| self.0.get(&format!("{key}.{model}")));
        own.or_else(|| self.0.get(key))
    }

    fn value<T: FromStr<Err: Display>>(&self, key: &str, model: Option<&str>) -> Result<Option<T>> {
        let Some(value) = self.get(key, model) else { return Ok(None) };
        value
            .trim()
            .parse()
            .map(Some)
            .map_err(|error| Error::invalid_arg(format!("backend setting '{key}' is '{value}': {error}")))
    }

    fn list<'a>(
        &'a self,
        key: &str,
        model: Option<&str>,
        separator: char,
    ) -> impl Iterator<Item = &'a str> + use<'a> {
        let value = self.get(key, model).unwrap_or_default();
        value.split(separator).map(str::trim).filter(|word| !word.is_empty())
    }
}

/// The value of a model's parameter, if it is set.
fn parameter<T: FromStr<Err: Display>>(context: &ModelContext, key: &str) -> Result<Option<T>> {
    let Some(parameter) = context.config.parameters.get(key) else { return Ok(None) };
    let value = parameter.string_value.as_str();
    value.trim().parse().map(Some).map_err(|error| {
        Error::invalid_arg(format!("model '{}': parameter '{key}' is '{value}': {error}", context.name))
    })
}

#[cfg(test)]
mod tests;
