//! The parameters of a model's configuration that this crate reads.

use std::time::Duration;

use nereid_backend_api::{Error, ModelConfig, Result};

/// Parameter of models that are loaded for their first request.
const LOAD_ON_DEMAND: &str = "load_on_demand";
/// Parameter of models that never leave the memory on the server's own decision.
const KEEP_LOADED: &str = "keep_loaded";
/// Parameter with the seconds after which a model without requests leaves; 0 for never.
const IDLE_TIMEOUT: &str = "idle_timeout_secs";
/// Parameter with the memory of a model, in place of a measurement.
const MEMORY_BYTES: &str = "memory_byte_size";

/// The settings of a model's stay in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Whether the model is loaded on demand.
    pub load_on_demand: bool,
    /// Never evicts the model.
    pub keep_loaded: bool,
    /// The time without requests after which it leaves, if the configuration sets one.
    pub idle_timeout: Option<Duration>,
    /// The declared memory of the model, in bytes.
    pub memory: Option<u64>,
}

impl Parameters {
    /// Reads the parameters of a configuration.
    ///
    /// # Errors
    /// The first parameter with an invalid value.
    pub(crate) fn of(config: &ModelConfig) -> Result<Self> {
        Ok(Self {
            load_on_demand: boolean(config, LOAD_ON_DEMAND)?.unwrap_or(false),
            keep_loaded: boolean(config, KEEP_LOADED)?.unwrap_or(false),
            idle_timeout: number(config, IDLE_TIMEOUT)?.map(Duration::from_secs),
            memory: number(config, MEMORY_BYTES)?,
        })
    }
}

fn text<'c>(config: &'c ModelConfig, key: &str) -> Option<&'c str> {
    config.parameters.get(key).map(|parameter| parameter.string_value.trim())
}

fn invalid(config: &ModelConfig, key: &str, text: &str, expected: &str) -> Error {
    Error::invalid_arg(format!(
        "model '{}': parameter '{key}' is '{text}', but must be {expected}",
        config.name
    ))
}

fn boolean(config: &ModelConfig, key: &str) -> Result<Option<bool>> {
    match text(config, key) {
        None => Ok(None),
        Some(text) if text.eq_ignore_ascii_case("true") => Ok(Some(true)),
        Some(text) if text.eq_ignore_ascii_case("false") => Ok(Some(false)),
        Some(text) => Err(invalid(config, key, text, "true or false")),
    }
}

fn number(config: &ModelConfig, key: &str) -> Result<Option<u64>> {
    let Some(text) = text(config, key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| invalid(config, key, text, "a whole number"))
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Parameters, String> {
        let parameter = |(key, value): &(&str, &str)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
        };
        let text: String = parameters.iter().map(parameter).collect();
        Parameters::of(&parse_text(&format!("name: 'm' {text}")).unwrap())
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn parameters_are_read_and_invalid_ones_reported() {
        let default = Parameters::default();
        for (parameters, expected) in [
            (&[][..], default),
            (&[("load", "true")], default),
            (&[("load_on_demand", "true")], Parameters { load_on_demand: true, ..default }),
            (&[("load_on_demand", " False ")], default),
            (
                &[("keep_loaded", "TRUE"), ("idle_timeout_secs", "0")],
                Parameters { keep_loaded: true, idle_timeout: Some(Duration::ZERO), ..default },
            ),
            (&[("memory_byte_size", "5000000000")], Parameters { memory: Some(5_000_000_000), ..default }),
        ] {
            assert_eq!(read(parameters), Ok(expected), "{parameters:?}");
        }
        for (key, value, expected) in [
            ("load_on_demand", "yes", "true or false"),
            ("load_on_demand", "", "true or false"),
            ("keep_loaded", "1", "true or false"),
            ("idle_timeout_secs", "-1", "a whole number"),
            ("idle_timeout_secs", "1.5", "a whole number"),
            ("memory_byte_size", "5G", "a whole number"),
        ] {
            let error = format!("model 'm': parameter '{key}' is '{value}', but must be {expected}");
            assert_eq!(read(&[(key, value)]), Err(error));
        }
    }
}
