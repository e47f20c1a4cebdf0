//! Turns a model's configuration into how it is run. Names and meaning of the parameters are those of Triton's backend.

use std::num::NonZeroUsize;

use nereid_backend_api::{Error, ModelConfig, Result};

use crate::shim::RunOptions;

/// What a model's configuration chooses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) run: RunOptions,
    /// `ENABLE_WEIGHT_SHARING`: the instances share one module.
    pub(crate) shares_weights: bool,
}

impl Options {
    /// Reads a configuration. By default the instances share the processors: each has an equal share of them as threads.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid parameter, by name.
    pub(crate) fn of(config: &ModelConfig, processors: NonZeroUsize) -> Result<Self> {
        let parameter = |key: &str| config.parameters.get(key).map(|value| value.string_value.trim());
        let flag = |key: &str, default: bool| match parameter(key) {
            None => Ok(default),
            Some(value) => match value.to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                _ => Err(wrong(key, value, "true or false")),
            },
        };
        let instances: i32 = config.instance_group.iter().map(|group| group.count.max(1)).sum();
        let share = processors.get() / usize::try_from(instances).unwrap_or(1).max(1);
        let threads = match parameter("INTRA_OP_THREAD_COUNT") {
            None | Some("0") => i32::try_from(share.max(1)).unwrap_or(1),
            Some(value) => value
                .parse::<i32>()
                .ok()
                .filter(|count| *count > 0)
                .ok_or_else(|| wrong("INTRA_OP_THREAD_COUNT", value, "a non-negative integer"))?,
        };
        Ok(Self {
            run: RunOptions {
                inference_mode: flag("INFERENCE_MODE", true)?.into(),
                optimized_execution: (!flag("DISABLE_OPTIMIZED_EXECUTION", false)?).into(),
                threads,
            },
            shares_weights: flag("ENABLE_WEIGHT_SHARING", false)?,
        })
    }
}

fn wrong(key: &str, value: &str, right: &str) -> Error {
    Error::invalid_arg(format!("parameter '{key}' is '{value}', expected {right}"))
}

#[cfg(test)]
mod tests {
    use nereid_testkit::normalised;

    use super::*;

    fn options(key: &str, value: &str) -> Result<Options> {
        let parameter = format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
        let group = "instance_group { count: 2 kind: KIND_CPU }";
        let config = normalised("m", &format!("backend: 'pytorch' {group} {parameter}"));
        Options::of(&config, NonZeroUsize::new(8).unwrap())
    }

    #[test]
    fn parameters_choose_how_a_model_is_run() {
        let default = options("SOMETHING_ELSE", "").unwrap();
        let run = RunOptions { inference_mode: 1, optimized_execution: 1, threads: 4 };
        assert_eq!(default, Options { run, shares_weights: false });
        for (key, value, expected) in [
            ("INFERENCE_MODE", "false", Options { run: RunOptions { inference_mode: 0, ..run }, ..default }),
            (
                "DISABLE_OPTIMIZED_EXECUTION",
                "True",
                Options { run: RunOptions { optimized_execution: 0, ..run }, ..default },
            ),
            ("ENABLE_WEIGHT_SHARING", "true", Options { run, shares_weights: true }),
            ("INTRA_OP_THREAD_COUNT", "3", Options { run: RunOptions { threads: 3, ..run }, ..default }),
            ("INTRA_OP_THREAD_COUNT", "0", Options { run, shares_weights: false }),
        ] {
            assert_eq!(options(key, value).unwrap(), expected, "{key}");
        }
    }

    #[test]
    fn invalid_parameters_are_refused_by_name() {
        for (key, value) in [
            ("INFERENCE_MODE", "maybe"),
            ("DISABLE_OPTIMIZED_EXECUTION", "2"),
            ("ENABLE_WEIGHT_SHARING", "x"),
            ("INTRA_OP_THREAD_COUNT", "-1"),
            ("INTRA_OP_THREAD_COUNT", "many"),
        ] {
            let error = options(key, value).unwrap_err();
            assert!(
                error.message().starts_with(&format!("parameter '{key}' is '{value}', expected")),
                "{error}"
            );
        }
    }
}
