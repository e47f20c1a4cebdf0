//! Reading the members of JSON objects one by one, without building a tree.
//!
//! A value of the wrong type is an `Internal` error, as in the reference for anything it cannot parse.

use jiter::Peek;
use nereid_core::backend_api::{Error, ParameterValue, Result};
use nereid_protocol::parameters::{SequenceId, WireValue};

use super::json_reader::JsonReader;
use super::json_tensor::{float_of, integer, number};
use crate::json::syntax;

/// Reads an object: calls `member` with the result of `key` for each key; `member` must read or skip the value. Returns
/// false, having skipped the value, if it is not an object.
///
/// A key borrows the reader, which `member` needs. The result of `key` does not, so keys are compared without copying
/// them.
pub(super) fn object<K>(
    json: &mut JsonReader<'_>,
    key: impl Fn(&str) -> K,
    mut member: impl FnMut(&mut JsonReader<'_>, K) -> Result<()>,
) -> Result<bool> {
    let peek = json.peek().map_err(syntax)?;
    if peek != Peek::Object {
        json.known_skip(peek).map_err(syntax)?;
        return Ok(false);
    }
    let mut next = json.known_object().map_err(syntax)?.map(&key);
    while let Some(name) = next {
        member(json, name)?;
        next = json.next_key().map_err(syntax)?.map(&key);
    }
    Ok(true)
}

/// Reads an array: calls `element` for each element.
pub(super) fn array(
    json: &mut JsonReader<'_>,
    name: &str,
    mut element: impl FnMut(&mut JsonReader<'_>, Peek) -> Result<()>,
) -> Result<()> {
    if json.peek().map_err(syntax)? != Peek::Array {
        return Err(Error::internal(format!("'{name}' is not an array")));
    }
    let mut next = json.known_array().map_err(syntax)?;
    while let Some(peek) = next {
        element(json, peek)?;
        next = json.array_step().map_err(syntax)?;
    }
    Ok(())
}

/// Reads a string.
pub(super) fn text(json: &mut JsonReader<'_>, name: &str) -> Result<String> {
    if json.peek().map_err(syntax)? != Peek::String {
        return Err(Error::internal(format!("'{name}' is not a string")));
    }
    json.known_str().map(str::to_owned).map_err(syntax)
}

/// Reads a boolean.
pub(super) fn boolean(json: &mut JsonReader<'_>, name: &str) -> Result<bool> {
    match json.peek().map_err(syntax)? {
        peek @ (Peek::True | Peek::False) => json.known_bool(peek).map_err(syntax),
        _ => Err(Error::internal(format!("'{name}' is not a boolean"))),
    }
}

/// Reads a non-negative integer.
pub(super) fn count(json: &mut JsonReader<'_>, name: &str) -> Result<u64> {
    let peek = json.peek().map_err(syntax)?;
    integer(json, peek)?.ok_or_else(|| Error::internal(format!("'{name}' is not a non-negative integer")))
}

/// Skips a value.
pub(super) fn skip(json: &mut JsonReader<'_>) -> Result<()> {
    json.next_skip().map_err(syntax)
}

/// The next value, as a parameter.
pub(super) struct JsonValue<'a, 'j>(pub &'a mut JsonReader<'j>);

impl WireValue for JsonValue<'_, '_> {
    fn boolean(self, name: &str) -> Result<bool> {
        boolean(self.0, name)
    }

    fn count(self, name: &str) -> Result<u64> {
        count(self.0, name)
    }

    fn sequence_id(self, name: &str) -> Result<SequenceId> {
        let peek = self.0.peek().map_err(syntax)?;
        if peek == Peek::String {
            return text(self.0, name).map(SequenceId::Text);
        }
        integer(self.0, peek)?.map(SequenceId::Number).ok_or_else(|| {
            Error::internal(format!("'{name}' is neither a string nor a non-negative integer"))
        })
    }

    fn custom(self, name: &str) -> Result<ParameterValue> {
        let json = self.0;
        Ok(match json.peek().map_err(syntax)? {
            Peek::String => ParameterValue::String(text(json, name)?.into()),
            peek @ (Peek::True | Peek::False) => ParameterValue::Bool(json.known_bool(peek).map_err(syntax)?),
            peek if peek.is_num() => {
                let number = number(json, peek)?.unwrap_or_default();
                match number.parse() {
                    Ok(whole) => ParameterValue::Int(whole),
                    Err(_) => ParameterValue::Double(float_of(number)?),
                }
            }
            _ => {
                // Malformed JSON is reported by the parser instead.
                skip(json)?;
                return Err(Error::invalid_arg(format!(
                    "parameter '{name}' is neither a string nor a number nor a boolean"
                )));
            }
        })
    }
}
