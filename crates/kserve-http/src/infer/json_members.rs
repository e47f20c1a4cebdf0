//! Members of JSON objects, read one after the other: each with its type, without building a tree.
//!
//! What has another type than is wanted is an `Internal` error, as the reference answers what it cannot make sense of.

use jiter::{Jiter, Peek};
use nereid_core::backend_api::{Error, ParameterValue, Result};
use nereid_protocol::parameters::{SequenceId, WireValue};

use super::json_tensor::{number, syntax, whole};

/// Calls `member` with each key of the object at hand, which must read or skip the key's value. Returns whether an
/// object was at hand; anything else is skipped.
pub(super) fn object(
    json: &mut Jiter<'_>,
    mut member: impl FnMut(&mut Jiter<'_>, &str) -> Result<()>,
) -> Result<bool> {
    let peek = json.peek().map_err(syntax)?;
    if peek != Peek::Object {
        json.known_skip(peek).map_err(syntax)?;
        return Ok(false);
    }
    // The key borrows the reader, which the member needs; a short copy on the stack is what it takes.
    let mut key = KeyBuffer::default();
    let mut next = json.known_object().map_err(syntax)?.map(|name| key.keep(name)).is_some();
    while next {
        member(json, key.name())?;
        next = json.next_key().map_err(syntax)?.map(|name| key.keep(name)).is_some();
    }
    Ok(true)
}

#[derive(Default)]
struct KeyBuffer(smallvec::SmallVec<[u8; 32]>);

impl KeyBuffer {
    fn keep(&mut self, name: &str) {
        self.0.clear();
        self.0.extend_from_slice(name.as_bytes());
    }

    fn name(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Calls `element` for each element of the array at hand.
pub(super) fn array(
    json: &mut Jiter<'_>,
    name: &str,
    mut element: impl FnMut(&mut Jiter<'_>, Peek) -> Result<()>,
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

/// The string at hand.
pub(super) fn text(json: &mut Jiter<'_>, name: &str) -> Result<String> {
    if json.peek().map_err(syntax)? != Peek::String {
        return Err(Error::internal(format!("'{name}' is not a string")));
    }
    json.known_str().map(str::to_owned).map_err(syntax)
}

/// The boolean at hand.
pub(super) fn boolean(json: &mut Jiter<'_>, name: &str) -> Result<bool> {
    match json.peek().map_err(syntax)? {
        peek @ (Peek::True | Peek::False) => json.known_bool(peek).map_err(syntax),
        _ => Err(Error::internal(format!("'{name}' is not a boolean"))),
    }
}

/// The whole number from 0 on at hand.
pub(super) fn count(json: &mut Jiter<'_>, name: &str) -> Result<u64> {
    let peek = json.peek().map_err(syntax)?;
    whole(json, peek)?.ok_or_else(|| Error::internal(format!("'{name}' is not a whole number from 0 on")))
}

/// Passes over the value at hand.
pub(super) fn skip(json: &mut Jiter<'_>) -> Result<()> {
    json.next_skip().map_err(syntax)
}

/// The value of a parameter at hand.
pub(super) struct JsonValue<'a, 'j>(pub &'a mut Jiter<'j>);

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
        whole(self.0, peek)?.map(SequenceId::Number).ok_or_else(|| {
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
                    Err(_) => ParameterValue::Double(number.parse().map_err(syntax)?),
                }
            }
            _ => {
                return Err(Error::invalid_arg(format!(
                    "parameter '{name}' is neither a string nor a number nor a boolean"
                )));
            }
        })
    }
}
