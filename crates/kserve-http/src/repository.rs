//! The model repository extension: the index, and loading and unloading by request.

use bytes::Bytes;
use hyper::StatusCode;
use nereid_core::backend_api::{Error, Result};
use nereid_core::{Overrides, Server};
use nereid_http_transport::{Reply, RequestBody, reply};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::routes::Target;

/// Begins the name of a parameter that holds a file of the model's folder, followed by its path there.
const FILE: &str = "file:";

#[derive(Default, Deserialize)]
struct IndexRequest {
    /// Only what can be asked.
    #[serde(default)]
    ready: bool,
}

#[derive(Serialize)]
struct IndexEntry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Default, Deserialize)]
struct ControlRequest {
    #[serde(default)]
    parameters: Map<String, Value>,
}

/// Every version that is known, with its state; and the names of models that nobody has loaded yet.
pub(crate) fn index(server: &Server, body: RequestBody) -> Result<Reply> {
    let request: IndexRequest = parse(body)?;
    let index = server.index()?;
    let entries: Vec<_> = index
        .iter()
        .map(|(name, status)| IndexEntry {
            name,
            version: status.as_ref().map(|it| it.version.map_or_else(String::new, |it| it.to_string())),
            state: status.as_ref().map(|status| status.state.name()),
            reason: status.as_ref().and_then(|status| status.state.reason()),
        })
        .filter(|entry| !request.ready || entry.state == Some("READY"))
        .collect();
    Ok(reply::json(StatusCode::OK, &entries))
}

/// Loads a model, and answers when that is done.
pub(crate) async fn load(server: &Server, target: &Target<'_>, body: RequestBody) -> Result<Reply> {
    let request: ControlRequest = parse(body)?;
    let overrides = overrides(request.parameters)?;
    let (done, outcome) = oneshot::channel();
    server.load_model(&target.model, overrides, |result| {
        // Whoever asked may be gone.
        let _ = done.send(result);
    })?;
    ended(outcome).await
}

/// Unloads a model, and answers when it takes no further requests.
pub(crate) async fn unload(server: &Server, target: &Target<'_>, body: RequestBody) -> Result<Reply> {
    let request: ControlRequest = parse(body)?;
    let mut with_dependents = false;
    for (name, value) in request.parameters {
        match (name.as_str(), value) {
            ("unload_dependents", Value::Bool(value)) => with_dependents = value,
            ("unload_dependents", value) => {
                return Err(Error::invalid_arg(format!(
                    "'unload_dependents' is {value}, but takes true or false"
                )));
            }
            _ => return Err(Error::invalid_arg(format!("unloading takes no parameter '{name}'"))),
        }
    }
    let (done, outcome) = oneshot::channel();
    let done = |result| {
        let _ = done.send(result);
    };
    if with_dependents {
        server.unload_model_and_dependents(&target.model, done)?;
    } else {
        server.unload_model(&target.model, done)?;
    }
    ended(outcome).await
}

async fn ended(outcome: oneshot::Receiver<Result<()>>) -> Result<Reply> {
    outcome.await.unwrap_or_else(|_| Err(Error::internal("the task was given up")))?;
    Ok(reply::empty(StatusCode::OK))
}

/// What a load request gives in place of what is in the repository.
fn overrides(parameters: Map<String, Value>) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        let Value::String(text) = value else {
            return Err(Error::invalid_arg(format!("parameter '{name}' is not a string")));
        };
        if name == "config" {
            overrides.config = Some(text);
        } else if let Some(path) = name.strip_prefix(FILE) {
            let contents = STANDARD
                .decode(&text)
                .map_err(|error| Error::invalid_arg(format!("parameter '{name}' is not base64: {error}")))?;
            overrides.files.push((path.into(), Bytes::from(contents)));
        } else {
            return Err(Error::invalid_arg(format!(
                "loading takes no parameter '{name}': it takes 'config', and '{FILE}<version>/<name>' for files"
            )));
        }
    }
    Ok(overrides)
}

/// A body of JSON; an empty one asks for nothing in particular.
fn parse<T: Default + for<'de> Deserialize<'de>>(mut body: RequestBody) -> Result<T> {
    let length = body.len();
    let body = body.take_joined(length).unwrap_or_default();
    if body.is_empty() {
        return Ok(T::default());
    }
    let understood =
        serde_json::from_slice(&body).and_then(|object| serde_json::from_value(Value::Object(object)));
    understood.map_err(|error| Error::invalid_arg(format!("the request is not understood: {error}")))
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
