//! Headers that a model gets as parameters of the request.

use hyper::HeaderMap;
use hyper::header::HeaderName;
use nereid_core::backend_api::{Error, ParameterValue, Parameters, Result};
use regex::{Regex, RegexBuilder};

/// Names that mean something to the server when they are parameters.
const RESERVED: [&str; 7] =
    ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"];

/// Which headers are forwarded: those in whose names this pattern is found.
#[derive(Clone, Debug)]
pub struct HeaderPattern(Regex);

impl HeaderPattern {
    /// Reads a regular expression. It makes no difference between small letters and capitals unless it begins with
    /// `(?-i)`.
    ///
    /// # Errors
    /// Where the pattern is wrong.
    pub fn new(pattern: &str) -> Result<Self, String> {
        RegexBuilder::new(pattern).case_insensitive(true).build().map(Self).map_err(|error| error.to_string())
    }

    /// Sets the matching headers as parameters. `head` is the request's head as it was received, for the spelling of the
    /// names; a name that is not found there is written in small letters.
    ///
    /// # Errors
    /// `InvalidArg` for a matching header whose name means something else as a parameter.
    pub(crate) fn forward(
        &self,
        headers: &HeaderMap,
        head: &[u8],
        parameters: &mut Parameters,
    ) -> Result<()> {
        for (name, value) in headers {
            let spelled = spelling(head, name).unwrap_or(name.as_str());
            if !self.0.is_match(spelled) {
                continue;
            }
            if RESERVED.contains(&spelled) || spelled.starts_with("triton_") {
                return Err(Error::invalid_arg(format!(
                    "header '{spelled}' cannot be forwarded: as a parameter this name is the server's own"
                )));
            }
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            parameters.set(spelled.to_owned(), ParameterValue::String(value.into()));
        }
        Ok(())
    }
}

/// The name as the client wrote it.
fn spelling<'h>(head: &'h [u8], name: &HeaderName) -> Option<&'h str> {
    let length = name.as_str().len();
    let line = head.split(|byte| *byte == b'\n').find(|line| {
        line.get(length) == Some(&b':') && line[..length].eq_ignore_ascii_case(name.as_str().as_bytes())
    })?;
    std::str::from_utf8(&line[..length]).ok()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn forwarded(pattern: &str, headers: &[(&'static str, &'static str)]) -> Result<Vec<(String, String)>> {
        let head: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let headers = headers
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static(value))
            })
            .collect();
        let mut parameters = Parameters::default();
        let head = format!("POST / HTTP/1.1\r\n{head}\r\nbody");
        HeaderPattern::new(pattern).unwrap().forward(&headers, head.as_bytes(), &mut parameters)?;
        let text = |(name, value): (&str, &ParameterValue)| match value {
            ParameterValue::String(value) => (name.to_owned(), value.clone().into_owned()),
            other => panic!("{other:?}"),
        };
        Ok(parameters.iter().map(text).collect())
    }

    #[test]
    fn headers_that_match_are_parameters_under_the_name_the_client_wrote() {
        let headers = [("X-Fw-One", "1"), ("x-fw-two", "2"), ("Other", "3"), ("TRACE-ID", "4")];
        let mut seen = forwarded("x-fw-.*|Trace.*", &headers).unwrap();
        seen.sort();
        let expected = [("TRACE-ID", "4"), ("X-Fw-One", "1"), ("x-fw-two", "2")];
        assert_eq!(seen, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn capitals_make_a_difference_if_the_pattern_says_so() {
        let seen = forwarded("(?-i)^X-", &[("X-One", "1"), ("x-two", "2")]).unwrap();
        assert_eq!(seen, [("X-One".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn a_head_that_was_not_kept_leaves_small_letters() {
        let headers =
            HeaderMap::from_iter([(HeaderName::from_static("x-one"), HeaderValue::from_static("1"))]);
        let mut parameters = Parameters::default();
        HeaderPattern::new("X").unwrap().forward(&headers, b"", &mut parameters).unwrap();
        assert_eq!(parameters.get("x-one"), Some(&ParameterValue::String("1".into())));
    }

    #[test]
    fn names_of_the_servers_own_are_refused_if_they_match() {
        for name in ["priority", "sequence_id", "triton_x"] {
            assert!(forwarded(".*", &[(name, "1")]).is_err(), "{name}");
            assert!(forwarded("x", &[("priority", "1")]).is_ok());
        }
    }

    #[test]
    fn a_wrong_pattern_is_refused() {
        assert!(HeaderPattern::new("x-(").is_err());
    }
}
