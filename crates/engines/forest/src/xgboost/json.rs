//! XGBoost's JSON, which has numbers that JSON does not have.

use std::borrow::Cow;

use serde::Deserialize;

/// A number of a model: NaN if it is null.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(from = "Option<f32>")]
pub(super) struct Real(pub(super) f32);

impl From<Option<f32>> for Real {
    fn from(number: Option<f32>) -> Self {
        Self(number.unwrap_or(f32::NAN))
    }
}

/// The document with `NaN` as null, and `Infinity` as a number that is infinite in single precision.
pub(super) fn standard(document: &[u8]) -> Cow<'_, [u8]> {
    let mut copy = Vec::new();
    let (mut at, mut copied) = (0, 0);
    let mut in_text = false;
    while let Some(&byte) = document.get(at) {
        let rest = &document[at..];
        let (length, replacement) = match byte {
            b'"' => {
                in_text = !in_text;
                (1, None)
            }
            b'\\' if in_text => (2, None),
            b'N' if !in_text && rest.starts_with(b"NaN") => (3, Some(b"null")),
            b'I' if !in_text && rest.starts_with(b"Infinity") => (8, Some(b"1e39")),
            _ => (1, None),
        };
        if let Some(replacement) = replacement {
            copy.extend_from_slice(&document[copied..at]);
            copy.extend_from_slice(replacement);
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Cow::Borrowed(document);
    }
    copy.extend_from_slice(&document[copied..]);
    Cow::Owned(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_replaced() {
        for (document, expected) in [
            (r#"{"a": [1, NaN,NaN], "b": -Infinity}"#, r#"{"a": [1, null,null], "b": -1e39}"#),
            (r#"["NaN", "\"NaN", "\\", NaN]"#, r#"["NaN", "\"NaN", "\\", null]"#),
            (r#"["Infinity"]"#, r#"["Infinity"]"#),
            ("[Na", "[Na"),
            ("\"\\", "\"\\"),
            ("", ""),
        ] {
            assert_eq!(standard(document.as_bytes()), expected.as_bytes(), "{document}");
        }
        assert!(matches!(standard(br#"{"a": 1}"#), Cow::Borrowed(_)));
        let numbers: Vec<Real> =
            serde_json::from_slice(&standard(b"[NaN, -Infinity, Infinity, 0.5]")).unwrap();
        let numbers: Vec<f32> = numbers.into_iter().map(|Real(number)| number).collect();
        assert!(numbers[0].is_nan());
        assert_eq!(numbers[1..], [f32::NEG_INFINITY, f32::INFINITY, 0.5]);
    }
}
