//! Common parts of all JSON body readers: the start of the text, and the errors.
//!
//! As in the reference, unparsable bodies are `Internal` errors on every route. Text that is not UTF-8 is not JSON, but
//! the reference reads it and refuses unknown names in it with `InvalidArg`.

use std::fmt::Display;

use jiter::{JiterError, JiterErrorType, JsonErrorType};
use nereid_core::backend_api::Error;

/// A body's text, without a leading byte-order mark.
pub(crate) fn text(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
}

/// The text with `Infinity` and `NaN` in place of `Inf` and `-NaN`, which the reference accepts, too; `None` if it
/// contains neither. The reader does not accept them, so this is for texts that it has refused.
pub(crate) fn respelled(text: &[u8]) -> Option<Vec<u8>> {
    let mut result = Vec::new();
    // Length of the text already copied to the result.
    let mut taken = 0;
    let (mut at, mut in_string) = (0, false);
    while let Some(rest) = text.get(at..)
        && let Some(&byte) = rest.first()
    {
        let word = |word: &str| {
            rest.starts_with(word.as_bytes())
                && rest.get(word.len()).is_none_or(|byte| !byte.is_ascii_alphanumeric())
        };
        at += match byte {
            b'\\' if in_string => 2,
            b'"' => {
                in_string = !in_string;
                1
            }
            b'I' if !in_string && word("Inf") => {
                result.extend_from_slice(text.get(taken..at).unwrap_or_default());
                result.extend_from_slice(b"Infinity");
                taken = at + 3;
                3
            }
            b'-' if !in_string && word("-NaN") => {
                result.extend_from_slice(text.get(taken..at).unwrap_or_default());
                taken = at + 1;
                4
            }
            _ => 1,
        };
    }
    if taken == 0 {
        return None;
    }
    result.extend_from_slice(text.get(taken..).unwrap_or_default());
    Some(result)
}

/// The error for malformed JSON.
pub(crate) fn malformed(error: impl Display) -> Error {
    Error::internal(format!("cannot parse the request's JSON: {error}"))
}

/// The error for text that is not UTF-8.
pub(crate) fn not_utf8() -> Error {
    Error::invalid_arg("the request's JSON is not valid UTF-8")
}

/// The error for objects and arrays that are nested too deep, wherever they are.
pub(crate) fn too_deep() -> Error {
    Error::invalid_arg("the request's JSON is nested too deep")
}

/// The error of the reader.
pub(crate) fn syntax(error: JiterError) -> Error {
    match error.error_type {
        JiterErrorType::JsonError(JsonErrorType::InvalidUnicodeCodePoint) => not_utf8(),
        JiterErrorType::JsonError(JsonErrorType::RecursionLimitExceeded) => too_deep(),
        _ => malformed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_spellings_of_numbers_are_replaced_outside_of_strings() {
        for (given, expected) in [
            ("[Inf]", Some("[Infinity]")),
            ("[-Inf, Inf,-NaN]", Some("[-Infinity, Infinity,NaN]")),
            ("Inf", Some("Infinity")),
            ("-NaN", Some("NaN")),
            (r#"{"Inf":Inf,"\"-NaN":"\\"}"#, Some(r#"{"Inf":Infinity,"\"-NaN":"\\"}"#)),
            (r#"["Inf\\",Inf]"#, Some(r#"["Inf\\",Infinity]"#)),
            ("[Infinity,-Infinity,NaN]", None),
            ("[Info,Inf1,-NaNs,--NaN2]", None),
            (r#"["Inf","-NaN","a\"Inf"]"#, None),
            (r#"["Inf\"#, None),
            ("", None),
        ] {
            let respelled = respelled(given.as_bytes()).map(|text| String::from_utf8(text).unwrap());
            assert_eq!(respelled.as_deref(), expected, "{given}");
        }
    }
}
