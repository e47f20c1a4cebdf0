//! The limits of a model: time to plan and to run, and memory for the tensors of one run.

use std::time::Duration;

use nereid_backend_api::{Error, ModelConfig, Result};

const PLANNING_TIMEOUT: &str = "planning_timeout_seconds";
const EXECUTION_TIMEOUT: &str = "execution_timeout_seconds";
const TENSOR_MEMORY: &str = "tensor_memory_bytes";

/// The limits of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// How long it may take to read the graph, and to plan it for a set of input shapes.
    pub(crate) planning: Duration,
    /// How long a run may take. It is checked between operators.
    pub(crate) execution: Duration,
    /// How many bytes the tensors of a run may take at any time, without the weights.
    pub(crate) memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { planning: Duration::from_secs(60), execution: Duration::from_secs(300), memory: 4 << 30 }
    }
}

impl Limits {
    /// The limits that the parameters of a model's configuration set.
    pub(crate) fn new(config: &ModelConfig) -> Result<Self> {
        let default = Self::default();
        let seconds = |name, default| Ok(parameter(config, name)?.map_or(default, Duration::from_secs));
        Ok(Self {
            planning: seconds(PLANNING_TIMEOUT, default.planning)?,
            execution: seconds(EXECUTION_TIMEOUT, default.execution)?,
            memory: parameter(config, TENSOR_MEMORY)?.unwrap_or(default.memory),
        })
    }
}

/// A parameter that is a whole number of 1 or more, if it is set.
pub(crate) fn parameter(config: &ModelConfig, name: &str) -> Result<Option<u64>> {
    let Some(parameter) = config.parameters.get(name) else { return Ok(None) };
    let number = parameter.string_value.trim().parse().ok().filter(|&number| number > 0);
    number.map(Some).ok_or_else(|| {
        Error::invalid_arg(format!(
            "parameter '{name}' is '{}', but should be a whole number of 1 or more",
            parameter.string_value
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(parameters: &[(&str, &str)]) -> Result<Limits> {
        let mut config = ModelConfig::default();
        for &(name, value) in parameters {
            config.parameters.entry(name.into()).or_default().string_value = value.into();
        }
        Limits::new(&config)
    }

    #[test]
    fn parameters_set_the_limits() {
        assert_eq!(limits(&[]).unwrap(), Limits::default());
        let all =
            limits(&[(PLANNING_TIMEOUT, "2"), (EXECUTION_TIMEOUT, " 3 "), (TENSOR_MEMORY, "1000")]).unwrap();
        assert_eq!((all.planning.as_secs(), all.execution.as_secs(), all.memory), (2, 3, 1000));
        for name in [PLANNING_TIMEOUT, EXECUTION_TIMEOUT, TENSOR_MEMORY] {
            for value in ["0", "-1", "1.5", "", "soon"] {
                let error = limits(&[(name, value)]).unwrap_err();
                assert!(error.message().contains(name), "{error}");
            }
        }
    }
}
