//! The parameters of a model's configuration that this crate reads.

use nereid_backend_api::{Error, ModelConfig, Result};

/// Parameter of models that are loaded for their first request.
const LOAD_ON_DEMAND: &str = "load_on_demand";

/// Whether the configuration has the model loaded on demand; `None` if it leaves that to the server.
///
/// # Errors
/// The parameter has another value than `true` and `false`.
pub(crate) fn load_on_demand(config: &ModelConfig) -> Result<Option<bool>> {
    boolean(config, LOAD_ON_DEMAND)
}

fn boolean(config: &ModelConfig, key: &str) -> Result<Option<bool>> {
    let Some(parameter) = config.parameters.get(key) else { return Ok(None) };
    match parameter.string_value.trim() {
        text if text.eq_ignore_ascii_case("true") => Ok(Some(true)),
        text if text.eq_ignore_ascii_case("false") => Ok(Some(false)),
        text => Err(Error::invalid_arg(format!(
            "model '{}': parameter '{key}' is '{text}', but must be true or false",
            config.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    #[test]
    fn only_true_and_false_are_values_of_load_on_demand() {
        for (text, expected) in [
            ("", Ok(None)),
            ("parameters { key: 'load' value { string_value: 'true' } }", Ok(None)),
            ("parameters { key: 'load_on_demand' value { string_value: 'true' } }", Ok(Some(true))),
            ("parameters { key: 'load_on_demand' value { string_value: ' False ' } }", Ok(Some(false))),
            (
                "parameters { key: 'load_on_demand' value { string_value: 'yes' } }",
                Err("model 'm': parameter 'load_on_demand' is 'yes', but must be true or false"),
            ),
            (
                "parameters { key: 'load_on_demand' value { } }",
                Err("model 'm': parameter 'load_on_demand' is '', but must be true or false"),
            ),
        ] {
            let config = parse_text(&format!("name: 'm' {text}")).unwrap();
            let outcome = load_on_demand(&config);
            assert_eq!(outcome.as_ref().map_err(Error::message).copied(), expected, "{text}");
        }
    }
}
