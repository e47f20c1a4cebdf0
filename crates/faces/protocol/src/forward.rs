//! Headers forwarded to models as request parameters. What a header is, and how its name is spelled, is up to the protocol.

use nereid_backend_api::{Error, ParameterValue, Parameters, Result};
use regex::{Regex, RegexBuilder};

use crate::parameters::is_reserved;

/// Selects the headers to forward: those whose name contains a match.
#[derive(Clone, Debug)]
pub struct HeaderPattern(Regex);

impl HeaderPattern {
    /// Compiles a regular expression, which ignores case unless it begins with `(?-i)`.
    ///
    /// # Errors
    /// The regular expression is invalid.
    pub fn new(pattern: &str) -> Result<Self, String> {
        RegexBuilder::new(pattern).case_insensitive(true).build().map(Self).map_err(|error| error.to_string())
    }

    /// Adds matching headers as parameters, under their names as spelled here.
    ///
    /// # Errors
    /// `InvalidArg` for a matching header with a reserved name.
    pub fn forward<'h>(
        &self,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
        parameters: &mut Parameters,
    ) -> Result<()> {
        for (name, value) in headers {
            if !self.0.is_match(name) {
                continue;
            }
            if is_reserved(name) {
                return Err(Error::invalid_arg(format!(
                    "header '{name}' cannot be forwarded: the parameter name is reserved"
                )));
            }
            let value = String::from_utf8_lossy(value).into_owned();
            parameters.set(name.to_owned(), ParameterValue::String(value.into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(pattern: &str, headers: &[(&str, &str)]) -> Result<Vec<(String, String)>> {
        let mut parameters = Parameters::default();
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        HeaderPattern::new(pattern).unwrap().forward(headers, &mut parameters)?;
        let text = |(name, value): (&str, &ParameterValue)| match value {
            ParameterValue::String(value) => (name.to_owned(), value.clone().into_owned()),
            other => panic!("{other:?}"),
        };
        Ok(parameters.iter().map(text).collect())
    }

    #[test]
    fn matching_headers_become_parameters_under_their_names() {
        let headers = [("X-Fw-One", "1"), ("x-fw-two", "2"), ("Other", "3"), ("TRACE-ID", "4")];
        let mut seen = forwarded("x-fw-.*|Trace.*", &headers).unwrap();
        seen.sort();
        let expected = [("TRACE-ID", "4"), ("X-Fw-One", "1"), ("x-fw-two", "2")];
        assert_eq!(seen, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_pattern_can_be_case_sensitive() {
        let seen = forwarded("(?-i)^X-", &[("X-One", "1"), ("x-two", "2")]).unwrap();
        assert_eq!(seen, [("X-One".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn matching_headers_with_reserved_names_are_refused() {
        for name in ["priority", "sequence_id", "triton_x"] {
            assert!(forwarded(".*", &[(name, "1")]).is_err(), "{name}");
            assert!(forwarded("x", &[("priority", "1")]).is_ok());
        }
    }

    #[test]
    fn patterns_may_have_classes_as_in_re2() {
        let cases = [
            (r"^x-\d+$", "X-42", "x-"),
            (r"^\w+$", "trace_id", "trace-id"),
            (r"^[[:alpha:]]+$", "Trace", "trace-id"),
            (r"^\p{Lu}\p{L}+$", "Größe", "trace-id"),
            (r"^\p{Greek}+$", "ΑΒΓ", "abc"),
            (r"^größe\b", "GRÖßE", "groesse"),
            (r"(x-){2,3}$", "x-x-x-", "x-"),
        ];
        for (pattern, matching, other) in cases {
            let seen = forwarded(pattern, &[(matching, "1"), (other, "2")]).unwrap();
            assert_eq!(seen, [(matching.to_owned(), "1".to_owned())], "{pattern}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        assert!(HeaderPattern::new("x-(").is_err());
    }
}
