//! The bodies of control requests: a JSON object of a few members.

use nereid_core::backend_api::{Error, Result};
use nereid_http_transport::RequestBody;
use serde_json::{Map, Value};

use crate::KserveHttp;

/// The members of the object. A member of the wrong type is an `Internal` error, as in the reference.
pub(crate) struct Members(Map<String, Value>);

impl Members {
    /// Parses a body. JSON that is not an object has no members.
    ///
    /// # Errors
    /// `InvalidArg` for a body over `--http-max-input-size`, `Internal` for one that is not JSON.
    pub(crate) fn read(face: &KserveHttp, mut body: RequestBody) -> Result<Self> {
        let (length, limit) = (body.len(), face.options.input_limit());
        if length > limit.bytes {
            return Err(Error::invalid_arg(limit.exceeded(&format!("the request of {length} bytes"))));
        }
        let json = body.take_joined(length).unwrap_or_default();
        match serde_json::from_slice(&json) {
            Ok(Value::Object(members)) => Ok(Self(members)),
            Ok(_) => Ok(Self(Map::new())),
            Err(error) => Err(Error::internal(format!("cannot parse the request's JSON: {error}"))),
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
