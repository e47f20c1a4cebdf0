//! The parameters of a model's configuration, with the names and meanings of Triton's backend.

use std::thread;

use nereid_backend_api::{Error, ModelConfig, Result};

use crate::format::Format;

/// The settings of a forest in its model's configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// `model_type`; without it, the file decides.
    pub(crate) model_type: Option<Format>,
    /// `is_classifier`, or `output_class` as older versions name it; without either, the model decides.
    pub(crate) is_classifier: Option<bool>,
    /// `predict_proba`.
    pub(crate) probabilities: bool,
    /// `threshold`: the probability above which the second of two classes is the result.
    pub(crate) threshold: f32,
    /// `cpu_nthread`: the most threads for one execution.
    pub(crate) threads: usize,
}

impl Options {
    /// # Errors
    /// `InvalidArg` that names the parameter.
    pub(crate) fn of(config: &ModelConfig) -> Result<Self> {
        let value = |key: &str| {
            let value = config.parameters.get(key).map(|value| value.string_value.trim());
            value.filter(|value| !value.is_empty())
        };
        let model_type = value("model_type").map(Format::of_model_type).transpose()?;
        let flag = |key: &str| match value(key) {
            None => Ok(None),
            Some("true" | "True" | "1") => Ok(Some(true)),
            Some("false" | "False" | "0") => Ok(Some(false)),
            Some(other) => {
                Err(Error::invalid_arg(format!("parameter '{key}' is '{other}', but takes true or false")))
            }
        };
        let is_classifier = flag("output_class")?.or(flag("is_classifier")?);
        let threshold = value("threshold").map(|text| {
            text.parse::<f32>().ok().filter(|threshold| threshold.is_finite()).ok_or_else(|| {
                Error::invalid_arg(format!(
                    "parameter 'threshold' is '{text}', but takes a number such as 0.5"
                ))
            })
        });
        let threads = value("cpu_nthread").map(|text| {
            text.parse::<i32>().map_err(|_| {
                Error::invalid_arg(format!(
                    "parameter 'cpu_nthread' is '{text}', but takes a number of threads; 0 or less: one for each processor"
                ))
            })
        });
        let threads = usize::try_from(threads.transpose()?.unwrap_or(0)).ok().filter(|&threads| threads > 0);
        Ok(Self {
            model_type,
            is_classifier,
            probabilities: flag("predict_proba")?.unwrap_or(false),
            threshold: threshold.transpose()?.unwrap_or(0.5),
            threads: threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)),
        })
    }
}

#[cfg(test)]
mod tests {
    use nereid_testkit::config;

    use super::*;

    fn options(parameters: &[(&str, &str)]) -> Result<Options> {
        let parameters = parameters.iter().map(|(key, value)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n")
        });
        Options::of(&config("m", &parameters.collect::<String>()))
    }

    #[test]
    fn parameters_have_the_names_of_tritons_backend() {
        let given = options(&[
            ("model_type", "lightgbm"),
            ("output_class", "true"),
            ("predict_proba", "true"),
            ("threshold", "0.25"),
            ("cpu_nthread", "3"),
            // For GPUs, or of older versions.
            ("layout", "depth_first"),
            ("storage_type", "AUTO"),
            ("algo", "ALGO_AUTO"),
        ]);
        let expected = Options {
            model_type: Some(Format::LightGbm),
            is_classifier: Some(true),
            probabilities: true,
            threshold: 0.25,
            threads: 3,
        };
        assert_eq!(given.unwrap(), expected);
        let all = thread::available_parallelism().map_or(1, usize::from);
        for parameters in
            [vec![], vec![("cpu_nthread", "-1")], vec![("cpu_nthread", "0"), ("threshold", " ")]]
        {
            let expected = Options {
                model_type: None,
                is_classifier: None,
                probabilities: false,
                threshold: 0.5,
                threads: all,
            };
            assert_eq!(options(&parameters).unwrap(), expected);
        }
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (key, value) in [
            ("model_type", "catboost"),
            ("is_classifier", "yes"),
            ("output_class", "2"),
            ("predict_proba", "on"),
            ("threshold", "half"),
            ("threshold", "nan"),
            ("cpu_nthread", "many"),
        ] {
            let error = options(&[(key, value)]).unwrap_err();
            let message = error.message();
            assert!(message.contains(key) && message.contains(value), "{message}");
        }
    }
}
