//! The model repository extension: the index, and loading and unloading by request.

use bytes::Bytes;
use hyper::StatusCode;
use nereid_core::backend_api::{Error, Result};
use nereid_core::{Overrides, Server};
use nereid_http_transport::{Reply, RequestBody, reply};
use nereid_protocol::documents::repository_index;
use nereid_protocol::repository::{self, LoadParameter, UNLOAD_DEPENDENTS, unknown_unload_parameter};
use serde::Deserialize;
use serde_json::{Map, Value};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::routes::Target;

#[derive(Default, Deserialize)]
struct IndexRequest {
    /// Only versions that are ready.
    #[serde(default)]
    ready: bool,
}

#[derive(Default, Deserialize)]
struct ControlRequest {
    #[serde(default)]
    parameters: Map<String, Value>,
}

/// Every known version with its state, and the names of models that were never loaded.
pub(crate) async fn index(server: &Server, body: RequestBody) -> Result<Reply> {
    let request: IndexRequest = parse(body)?;
    Ok(reply::json(StatusCode::OK, &repository_index(server, request.ready).await?))
}

/// Loads a model; replies when it is loaded.
pub(crate) async fn load(server: &Server, target: &Target<'_>, body: RequestBody) -> Result<Reply> {
    let request: ControlRequest = parse(body)?;
    repository::load(server, &target.model, overrides(request.parameters)?).await?;
    Ok(reply::empty(StatusCode::OK))
}

/// Unloads a model; replies when it takes no more requests.
pub(crate) async fn unload(server: &Server, target: &Target<'_>, body: RequestBody) -> Result<Reply> {
    let request: ControlRequest = parse(body)?;
    let mut with_dependents = false;
    for (name, value) in request.parameters {
        match (name.as_str(), value) {
            (UNLOAD_DEPENDENTS, Value::Bool(value)) => with_dependents = value,
            (UNLOAD_DEPENDENTS, value) => {
                return Err(Error::invalid_arg(format!(
                    "parameter '{name}' is {value}; expected true or false"
                )));
            }
            _ => return Err(unknown_unload_parameter(&name)),
        }
    }
    repository::unload(server, &target.model, with_dependents).await?;
    Ok(reply::empty(StatusCode::OK))
}

/// What a load request gives in place of what is in the repository.
fn overrides(parameters: Map<String, Value>) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        let Value::String(text) = value else {
            return Err(Error::invalid_arg(format!("parameter '{name}' is not a string")));
        };
        match LoadParameter::named(&name)? {
            LoadParameter::Config => overrides.config = Some(text),
            LoadParameter::File(path) => {
                let contents = STANDARD.decode(&text).map_err(|error| {
                    Error::invalid_arg(format!("parameter '{name}' is not valid base64: {error}"))
                })?;
                overrides.files.push((path.into(), Bytes::from(contents)));
            }
        }
    }
    Ok(overrides)
}

/// A body of JSON; the default for an empty one.
fn parse<T: Default + for<'de> Deserialize<'de>>(mut body: RequestBody) -> Result<T> {
    let length = body.len();
    let body = body.take_joined(length).unwrap_or_default();
    if body.is_empty() {
        return Ok(T::default());
    }
    let parsed =
        serde_json::from_slice(&body).and_then(|object| serde_json::from_value(Value::Object(object)));
    parsed.map_err(|error| Error::invalid_arg(format!("cannot parse the request: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(json: &str) -> Result<Overrides> {
        let request: ControlRequest = serde_json::from_str(json).unwrap();
        overrides(request.parameters)
    }

    #[test]
    fn a_load_request_gives_a_configuration_and_files() {
        let overrides = given(r#"{"parameters":{"config":"{}","file:1/model.onnx":"aGk="}}"#).unwrap();
        assert_eq!(overrides.config.as_deref(), Some("{}"));
        assert_eq!(overrides.files, [("1/model.onnx".into(), Bytes::from_static(b"hi"))]);
        assert!(given("{}").unwrap().is_empty());
    }

    #[test]
    fn other_parameters_are_refused() {
        for json in [
            r#"{"parameters":{"config":{}}}"#,
            r#"{"parameters":{"file:1/model.onnx":"no base64!"}}"#,
            r#"{"parameters":{"file:1/model.onnx":1}}"#,
            r#"{"parameters":{"else":"1"}}"#,
        ] {
            assert!(given(json).is_err(), "{json}");
        }
    }
}
