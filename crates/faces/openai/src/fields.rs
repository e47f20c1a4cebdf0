//! The fields of a request's JSON object, each read once and with the type that its reader wants.
//!
//! Values stay as the client wrote them until they are read, so those that are passed on to a model keep their numbers and the
//! order of their members.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{Failure, Outcome};

/// Fields that are not read yet, in the client's order.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// The fields of a JSON object. Of duplicate fields, the last one counts.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub(crate) fn parse(json: &'a [u8]) -> Outcome<Self> {
        serde_json::from_slice(json)
            .map_err(|error| Failure::invalid(format!("the request body is not a JSON object: {error}")))
    }

    /// Removes a field. `None` if it is absent or null.
    pub(crate) fn take_raw(&mut self, name: &str) -> Option<&'a RawValue> {
        let place = self.0.iter().position(|(known, _)| known == name)?;
        let (_, value) = self.0.remove(place);
        (value.get() != "null").then_some(value)
    }

    /// A field, which stays. `None` if it is absent or null.
    pub(crate) fn get_raw(&self, name: &str) -> Option<&'a RawValue> {
        self.rest().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Gives a field another name.
    pub(crate) fn rename(&mut self, from: &str, to: &'static str) {
        if let Some(value) = self.take_raw(from) {
            self.push(to, value);
        }
    }

    /// Sets a field.
    pub(crate) fn push(&mut self, name: &'static str, value: &'a RawValue) {
        self.take_raw(name);
        self.0.push((Cow::Borrowed(name), value));
    }

    /// Removes a field and reads it. `None` if it is absent or null.
    ///
    /// # Errors
    /// The field has another type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Outcome<Option<T>> {
        self.take_raw(name).map(|raw| read(name, raw)).transpose()
    }

    /// Removes fields that have no effect here.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        self.0.retain(|(name, _)| !names.contains(&&**name));
    }

    /// Refuses the fields that are left.
    ///
    /// # Errors
    /// There is one, which the endpoint does not support.
    pub(crate) fn end(&self) -> Outcome<()> {
        match self.rest().next() {
            None => Ok(()),
            Some((name, _)) => {
                Err(Failure::unsupported(name.to_owned(), format!("'{name}' is not supported here")))
            }
        }
    }

    /// The fields that are left, except nulls.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().filter(|(_, value)| value.get() != "null").map(|(name, value)| (&**name, *value))
    }
}

/// The value of a field.
///
/// # Errors
/// The field has another type.
pub(crate) fn read<T: DeserializeOwned>(name: &'static str, raw: &RawValue) -> Outcome<T> {
    serde_json::from_str(raw.get())
        .map_err(|error| Failure::invalid_field(name, format!("'{name}': {error}")))
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::with_capacity(16);
                while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    if let Some((_, known)) = fields.iter_mut().find(|(known, _)| *known == name) {
                        *known = value;
                    } else if fields.len() == MAX_FIELDS {
                        return Err(Error::custom(format_args!("more than {MAX_FIELDS} fields")));
                    } else {
                        fields.push((name, value));
                    }
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

/// The largest number of fields. OpenAI's interface has about forty.
const MAX_FIELDS: usize = 256;

/// A field's name, borrowed if it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_once_and_the_rest_is_kept_as_written() {
        let json = br#"{"a": 1, "n": null, "b": {"z": 1.50, "a": [2]}, "\u0063": "x", "a": 2}"#;
        let mut fields = Fields::parse(json).unwrap();
        assert_eq!(fields.take::<u32>("a").unwrap(), Some(2));
        assert_eq!(fields.take::<u32>("a").unwrap(), None);
        assert_eq!(fields.take::<u32>("n").unwrap(), None);
        assert_eq!(fields.take::<u32>("missing").unwrap(), None);
        let rest: Vec<_> = fields.rest().map(|(name, value)| (name.to_owned(), value.get())).collect();
        assert_eq!(rest, [("b".to_owned(), r#"{"z": 1.50, "a": [2]}"#), ("c".to_owned(), "\"x\"")]);
        fields.ignore(&["b"]);
        assert_eq!(fields.rest().count(), 1);
    }

    #[test]
    fn wrong_types_name_the_field() {
        for (json, message) in [
            ("{\"n\": \"x\"}", "'n': invalid type"),
            ("{\"n\": -1}", "'n': invalid value"),
            ("{\"n\": 1.5}", "'n': invalid type"),
        ] {
            let failure = Fields::parse(json.as_bytes()).unwrap().take::<u32>("n").unwrap_err();
            let body = String::from_utf8(failure.body()).unwrap();
            assert!(body.contains(message) && body.contains("\"param\":\"n\""), "{body}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let many = (0..=MAX_FIELDS).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(",");
        for json in ["", "[]", "null", "{", "{\"a\":1} x", "{\"a\":}", "\u{0}", &format!("{{{many}}}")] {
            assert!(Fields::parse(json.as_bytes()).is_err(), "{json}");
        }
    }
}
