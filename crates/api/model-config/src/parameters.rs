//! Parameters of a configuration that parts of the server define: how they are read, and one form for their errors.
//!
//! Each part declares a [`ParameterSet`], which checks of repositories use as the part itself does when a model is loaded.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::proto::ModelConfig;

/// The parameters that a part of the server reads.
#[derive(Clone, Copy, Debug)]
pub struct ParameterSet {
    /// Their names.
    pub names: &'static [&'static str],
    /// Finds those with invalid values. A model with any is not loaded.
    pub check: fn(&ModelConfig) -> Vec<ParameterError>,
}

/// A parameter that keeps a model from being loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterError {
    name: &'static str,
    reason: String,
}

impl ParameterError {
    /// The path of the parameter in the configuration.
    pub fn field(&self) -> String {
        format!("parameters[{:?}]", self.name)
    }

    /// The problem, and what would be right: a sentence about the parameter.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The error of a load of the model with this configuration.
    pub fn of_model(&self, config: &ModelConfig) -> String {
        format!("model '{}': {self}", config.name)
    }
}

impl fmt::Display for ParameterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parameter '{}' {}", self.name, self.reason)
    }
}

/// Reads parameters of a configuration. A parameter without a string value is empty text.
#[derive(Clone, Copy, Debug)]
pub struct ParameterReader<'c>(pub &'c ModelConfig);

impl<'c> ParameterReader<'c> {
    /// The value of a parameter, without blanks around it; `None` if the configuration has no such parameter.
    pub fn text(&self, name: &str) -> Option<&'c str> {
        self.0.parameters.get(name).map(|parameter| parameter.string_value.trim())
    }

    /// A boolean.
    ///
    /// # Errors
    /// The value is neither `true` nor `false`, in any case.
    pub fn boolean(&self, name: &'static str) -> Result<Option<bool>, ParameterError> {
        match self.text(name) {
            None => Ok(None),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(Some(true)),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(Some(false)),
            Some(text) => Err(self.invalid(name, text, "be true or false")),
        }
    }

    /// A number within a range, which `expected` describes after "must".
    ///
    /// # Errors
    /// The value is no number, or out of range.
    pub fn number<T: FromStr + PartialOrd>(
        &self,
        name: &'static str,
        range: RangeInclusive<T>,
        expected: &str,
    ) -> Result<Option<T>, ParameterError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| self.invalid(name, text, expected))
    }

    /// The error of a parameter, for a reason that continues its name.
    pub fn error(&self, name: &'static str, reason: impl Into<String>) -> ParameterError {
        ParameterError { name, reason: reason.into() }
    }

    /// The error of a value; `expected` continues "must".
    pub fn invalid(&self, name: &'static str, text: &str, expected: &str) -> ParameterError {
        self.error(name, format!("is '{text}', but must {expected}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(value: &str) -> ModelConfig {
        let text = format!("name: 'm' parameters {{ key: 'k' value {{ string_value: '{value}' }} }}");
        crate::parse_text(&text).unwrap()
    }

    #[test]
    fn values_are_read_and_errors_name_the_parameter() {
        for (value, boolean, number) in [
            ("true", Ok(Some(true)), None),
            (" False ", Ok(Some(false)), None),
            ("7", Err(()), Some(7)),
            ("0", Err(()), None),
            ("-1", Err(()), None),
            ("1.5", Err(()), None),
            ("10", Err(()), None),
            ("", Err(()), None),
        ] {
            let config = config(value);
            let reader = ParameterReader(&config);
            assert_eq!(reader.boolean("k").map_err(drop), boolean, "{value}");
            let read = reader.number("k", 1..=9_u64, "be from 1 to 9");
            assert_eq!(read.clone().ok().flatten(), number, "{value}");
            if let Err(error) = read {
                let text = value.trim();
                assert_eq!(error.reason(), format!("is '{text}', but must be from 1 to 9"));
                assert_eq!(error.field(), "parameters[\"k\"]");
                let expected = format!("model 'm': parameter 'k' is '{text}', but must be from 1 to 9");
                assert_eq!(error.of_model(&config), expected);
            }
        }
        let none = ModelConfig::default();
        let reader = ParameterReader(&none);
        assert_eq!((reader.text("k"), reader.boolean("k")), (None, Ok(None)));
        assert_eq!(reader.number("k", 1..=9_u64, "be small"), Ok(None));
    }
}
