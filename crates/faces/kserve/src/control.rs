//! The bodies of control requests: a JSON object of a few members.

use nereid_core::backend_api::{Error, Result};
use nereid_http::RequestBody;
use serde_json::{Map, Value};

use crate::{KserveHttp, json};

/// The members of the object. What cannot be parsed and members of the wrong type are `Internal` errors, as in the
/// reference.
#[derive(Debug, Default)]
pub(crate) struct Members(Map<String, Value>);

impl Members {
    /// Parses a body. JSON that is not an object has no members.
    ///
    /// # Errors
    /// `InvalidArg` for a body over `--http-max-input-size`, otherwise as [`optional`](Self::optional).
    pub(crate) fn read(face: &KserveHttp, mut body: RequestBody) -> Result<Self> {
        let (length, limit) = (body.len(), face.options.input_limit());
        if length > limit.bytes {
            return Err(Error::invalid_arg(limit.exceeded(&format!("the request of {length} bytes"))));
        }
        Self::parse(&body.take_joined(length).unwrap_or_default())
    }

    /// Parses a body that may be empty: it then has no members.
    ///
    /// # Errors
    /// `Internal` for a body that is not JSON, `InvalidArg` for one that is not UTF-8.
    pub(crate) fn optional(mut body: RequestBody) -> Result<Self> {
        let length = body.len();
        match &*body.take_joined(length).unwrap_or_default() {
            [] => Ok(Self::default()),
            json => Self::parse(json),
        }
    }

    fn parse(body: &[u8]) -> Result<Self> {
        match serde_json::from_slice(json::text(body)) {
            Ok(Value::Object(members)) => Ok(Self(members)),
            Ok(_) => Ok(Self::default()),
            Err(_) if std::str::from_utf8(body).is_err() => Err(json::not_utf8()),
            // The library has no code for it.
            Err(error) if error.to_string().starts_with("recursion limit") => Err(json::too_deep()),
            Err(error) => Err(json::malformed(error)),
        }
    }

    /// The members of the object `name`; none if it is absent.
    pub(crate) fn object(&mut self, name: &str) -> Result<Self> {
        match self.0.remove(name) {
            None => Ok(Self::default()),
            Some(Value::Object(members)) => Ok(Self(members)),
            Some(_) => Err(Error::internal(format!("'{name}' is not an object"))),
        }
    }

    /// The value of a member, which may be `null`.
    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The value of a member; also `None` for `null`.
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A boolean; `None` if it is absent or `null`.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A non-negative integer; `None` if it is absent or `null`.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>> {
        self.typed(name, "a non-negative integer", Value::as_u64)
    }

    /// A string; `None` if it is absent or `null`.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>> {
        self.typed(name, "a string", Value::as_str)
    }

    fn typed<'m, T>(
        &'m self,
        name: &str,
        expected: &str,
        read: impl Fn(&'m Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(name)
            .map(|value| read(value).ok_or_else(|| Error::internal(format!("'{name}' is not {expected}"))))
            .transpose()
    }
}

impl IntoIterator for Members {
    type Item = (String, Value);
    type IntoIter = serde_json::map::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::backend_api::ErrorCode;

    use super::*;

    fn members(body: &[u8]) -> Result<Members> {
        Members::optional([bytes::Bytes::copy_from_slice(body)].into_iter().collect())
    }

    #[test]
    fn bodies_without_an_object_have_no_members() {
        for body in ["", "[]", "3", "null", "{}", "\u{feff}{}", " {} "] {
            assert_eq!(members(body.as_bytes()).unwrap().0.len(), 0, "{body:?}");
        }
        assert_eq!(members("\u{feff}{\"a\": true}".as_bytes()).unwrap().boolean("a"), Ok(Some(true)));
    }

    #[test]
    fn parse_errors_have_the_references_codes() {
        for body in
            ["{", "{a}", "{\"a\":1,}", "{}x", "//c\n{}", " ", "\u{feff}", " \u{feff}{}", "\u{feff}\u{feff}{}"]
        {
            assert_eq!(members(body.as_bytes()).unwrap_err().code(), ErrorCode::Internal, "{body:?}");
        }
        for body in [b"{\"a\":\"\xff\"}".as_slice(), b"{\"\xc3\":1}", b"\xff\xfe{\0}\0"] {
            assert_eq!(members(body).unwrap_err().code(), ErrorCode::InvalidArg, "{body:?}");
        }
    }

    #[test]
    fn deep_nesting_is_an_invalid_argument() {
        for depth in [300, 100_000] {
            let body = format!(r#"{{"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
            assert_eq!(members(body.as_bytes()).unwrap_err().code(), ErrorCode::InvalidArg);
        }
    }

    #[test]
    fn a_member_of_the_wrong_type_is_an_internal_error() {
        let mut members = members(b"{\"a\": 1, \"b\": [], \"c\": null, \"d\": {\"e\": true}}").unwrap();
        assert_eq!(members.boolean("a").unwrap_err().code(), ErrorCode::Internal);
        for name in ["a", "b", "c"] {
            assert_eq!(members.object(name).unwrap_err().code(), ErrorCode::Internal, "{name}");
        }
        assert_eq!(members.object("d").unwrap().boolean("e"), Ok(Some(true)));
        assert_eq!(members.object("x").unwrap().0.len(), 0);
    }
}
