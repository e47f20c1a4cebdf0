//! Reads the parameters of a model's configuration. Names and meanings follow Triton's backend.

use std::num::NonZeroUsize;

use nereid_backend_api::{Error, ModelConfig, Result};

use crate::shim::RunOptions;

/// The options in a model's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) run: RunOptions,
    /// `ENABLE_WEIGHT_SHARING`: the instances share one module.
    pub(crate) shares_weights: bool,
    /// `INTER_OP_THREAD_COUNT`, if set: threads of the process that run parts of models in parallel.
    pub(crate) inter_op_threads: Option<i32>,
}

/// Parameters that are accepted without effect: they concern the whole process, or choose among compilers of which only one remains.
const WITHOUT_EFFECT: [&str; 5] =
    ["DISABLE_CUDNN", "ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_NVFUSER", "ENABLE_TENSOR_FUSER"];

/// The parameters of a configuration that have no effect.
pub(crate) fn without_effect(config: &ModelConfig) -> Vec<&'static str> {
    WITHOUT_EFFECT.into_iter().filter(|key| config.parameters.contains_key(*key)).collect()
}

impl Options {
    /// Reads a configuration. By default, the instances share the processors equally.
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
        let count = |key: &str| match parameter(key) {
            None | Some("0") => Ok(None),
            Some(value) => match value.parse::<i32>() {
                Ok(count) if count > 0 => Ok(Some(count)),
                _ => Err(wrong(key, value, "a non-negative integer")),
            },
        };
        let threads = count("INTRA_OP_THREAD_COUNT")?;
        let threads = threads.unwrap_or_else(|| i32::try_from(share.max(1)).unwrap_or(1));
        Ok(Self {
            run: RunOptions {
                inference_mode: flag("INFERENCE_MODE", true)?.into(),
                optimized_execution: (!flag("DISABLE_OPTIMIZED_EXECUTION", false)?).into(),
                threads,
                empties_cache: flag("ENABLE_CACHE_CLEANING", false)?.into(),
            },
            shares_weights: flag("ENABLE_WEIGHT_SHARING", false)?,
            inter_op_threads: count("INTER_OP_THREAD_COUNT")?,
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
    fn parameters_set_the_options() {
        let default = options("SOMETHING_ELSE", "").unwrap();
        let run = RunOptions { inference_mode: 1, optimized_execution: 1, threads: 4, empties_cache: 0 };
        assert_eq!(default, Options { run, shares_weights: false, inter_op_threads: None });
        for (key, value, expected) in [
            ("INFERENCE_MODE", "false", Options { run: RunOptions { inference_mode: 0, ..run }, ..default }),
            (
                "DISABLE_OPTIMIZED_EXECUTION",
                "True",
                Options { run: RunOptions { optimized_execution: 0, ..run }, ..default },
            ),
            ("ENABLE_WEIGHT_SHARING", "true", Options { shares_weights: true, ..default }),
            (
                "ENABLE_CACHE_CLEANING",
                "true",
                Options { run: RunOptions { empties_cache: 1, ..run }, ..default },
            ),
            ("INTRA_OP_THREAD_COUNT", "3", Options { run: RunOptions { threads: 3, ..run }, ..default }),
            ("INTRA_OP_THREAD_COUNT", "0", default),
            ("INTER_OP_THREAD_COUNT", "0", default),
            ("INTER_OP_THREAD_COUNT", "5", Options { inter_op_threads: Some(5), ..default }),
            ("ENABLE_NVFUSER", "whatever", default),
        ] {
            assert_eq!(options(key, value).unwrap(), expected, "{key}");
        }
    }

    #[test]
    fn parameters_without_effect_are_reported() {
        let parameters = WITHOUT_EFFECT
            .iter()
            .rev()
            .map(|key| format!("parameters {{ key: '{key}' value {{ string_value: 'true' }} }}"));
        let all: String = parameters.collect();
        assert_eq!(without_effect(&normalised("m", &format!("backend: 'pytorch' {all}"))), WITHOUT_EFFECT);
        assert!(without_effect(&normalised("m", "backend: 'pytorch'")).is_empty());
    }

    #[test]
    fn invalid_parameters_are_refused_by_name() {
        for (key, value) in [
            ("INFERENCE_MODE", "maybe"),
            ("DISABLE_OPTIMIZED_EXECUTION", "2"),
            ("ENABLE_WEIGHT_SHARING", "x"),
            ("INTRA_OP_THREAD_COUNT", "-1"),
            ("INTRA_OP_THREAD_COUNT", "many"),
            ("INTER_OP_THREAD_COUNT", "-3"),
        ] {
            let error = options(key, value).unwrap_err();
            assert!(
                error.message().starts_with(&format!("parameter '{key}' is '{value}', expected")),
                "{error}"
            );
        }
    }
}
