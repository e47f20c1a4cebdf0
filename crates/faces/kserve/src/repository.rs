//! The model repository extension: the index, and loading and unloading by request.

use bytes::Bytes;
use hyper::StatusCode;
use nereid_core::backend_api::{Error, Result};
use nereid_core::{ModelId, Overrides, ScopedName};
use nereid_http::{Reply, RequestBody, reply};
use nereid_protocol::Action;
use nereid_protocol::documents::{repository_index, repository_index_with_memory};
use nereid_protocol::repository::{self, LoadParameter, UNLOAD_DEPENDENTS, check_repository};
use nereid_tasks::long_work;
use serde_json::Value;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::call::Call;
use crate::control::Members;

/// Lists every known version with its state, and the models that were never loaded; with their memory, if the client requests it. A
/// repository in the path is ignored, as in the reference.
pub(crate) async fn index(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let members = Members::optional(body)?;
    let only_ready = members.boolean("ready")?.unwrap_or(false);
    // The reference has no such member, and no status for one of the wrong type.
    let with_memory =
        members.boolean("memory").map_err(|error| Error::invalid_arg(error.message().to_owned()))?;
    let with_memory = with_memory.unwrap_or(false);
    // The caller may see the index; each model in it may have rights of its own.
    let is_visible = |model: &ModelId| call.http.shows(Action::Index, model);
    let server = &call.face.server;
    Ok(if with_memory {
        reply::json(StatusCode::OK, &repository_index_with_memory(server, only_ready, is_visible).await?)
    } else {
        reply::json(StatusCode::OK, &repository_index(server, only_ready, is_visible).await?)
    })
}

/// Loads a model; replies when it is loaded.
pub(crate) async fn load(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let target = &call.target;
    check_repository(&target.repository)?;
    // Files of models may be in it.
    let overrides =
        long_work::run_sized(body.len(), || overrides(Members::optional(body)?.object("parameters")?))
            .await??;
    let mut scope = call.http.scope.clone();
    if !overrides.is_empty() {
        if let Err(refused) = call.http.permit(Action::LoadFiles, &target.model) {
            return Ok(*refused);
        }
        scope = scope.and(call.http.scope_of(Action::LoadFiles));
    }
    repository::load(&call.face.server, ScopedName::new(&target.model, &scope), overrides).await?;
    Ok(reply::empty(StatusCode::OK))
}

/// Unloads a model; replies once it accepts no more requests. Unknown parameters are ignored, as in the reference.
pub(crate) async fn unload(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    check_repository(&call.target.repository)?;
    let parameters = Members::optional(body)?.object("parameters")?;
    let with_dependents = parameters.boolean(UNLOAD_DEPENDENTS)?.unwrap_or(false);
    repository::unload(&call.face.server, call.model(), with_dependents).await?;
    Ok(reply::empty(StatusCode::OK))
}

/// The repository's configuration and files that a load request replaces.
fn overrides(parameters: Members) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        let parameter = LoadParameter::named(&name)?;
        let Value::String(text) = value else {
            return Err(Error::internal(format!("parameter '{name}' is not a string")));
        };
        match parameter {
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

#[cfg(test)]
mod tests {
    use nereid_core::backend_api::ErrorCode;

    use super::*;
    use crate::testing::{empty_server, http_options, serve};

    fn overrides_from(json: &str) -> Result<Overrides> {
        let body = [Bytes::copy_from_slice(json.as_bytes())].into_iter().collect();
        overrides(Members::optional(body)?.object("parameters")?)
    }

    #[test]
    fn load_request_overrides_configuration_and_files() {
        let overrides =
            overrides_from(r#"{"parameters":{"config":"{}","file:1/model.onnx":"aGk="}}"#).unwrap();
        assert_eq!(overrides.config.as_deref(), Some("{}"));
        assert_eq!(overrides.files, [("1/model.onnx".into(), Bytes::from_static(b"hi"))]);
        for nothing in ["", "{}", "[]", "null", r#"{"parameters":{}}"#, r#"{"else":1}"#] {
            assert!(overrides_from(nothing).unwrap().is_empty(), "{nothing}");
        }
    }

    #[test]
    fn other_parameters_are_refused() {
        use ErrorCode::{Internal, InvalidArg};
        for (json, code) in [
            (r#"{"parameters":{"config":{}}}"#, Internal),
            (r#"{"parameters":{"file:1/model.onnx":1}}"#, Internal),
            (r#"{"parameters":[]}"#, Internal),
            (r#"{"parameters":null}"#, Internal),
            (r#"{"parameters":{"#, Internal),
            (r#"{"parameters":{"file:1/model.onnx":"no base64!"}}"#, InvalidArg),
            (r#"{"parameters":{"else":"1"}}"#, InvalidArg),
            (r#"{"parameters":{"else":1}}"#, InvalidArg),
        ] {
            assert_eq!(overrides_from(json).unwrap_err().code(), code, "{json}");
        }
    }

    #[tokio::test]
    async fn repository_path_is_ignored_by_index_and_refused_by_load() {
        let serving = serve(empty_server(), http_options()).await;
        for repository in ["x", "models", "a%2Fb", "%20"] {
            let path = format!("/v2/repository/{repository}");
            for (path, body, status) in [
                (format!("{path}/index"), "", 200),
                (format!("{path}/index"), r#"{"ready":true}"#, 200),
                (format!("{path}/index"), r#"{"ready":3}"#, 500),
                (format!("{path}/index"), r#"{"memory":true}"#, 200),
                (format!("{path}/index"), r#"{"memory":3}"#, 400),
                (format!("{path}/index"), r#"{"memory":"true"}"#, 400),
                (format!("{path}/index"), r#"{"memory":null}"#, 200),
                (format!("{path}/index"), "{", 500),
                (format!("{path}/models/m/load"), "", 501),
                (format!("{path}/models/m/load"), "{", 501),
                (format!("{path}/models/m/unload"), "", 501),
                (format!("{path}/models/m"), "", 404),
                (format!("{path}/index/x"), "", 404),
            ] {
                let answer = serving.post(&path, body).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {body}: {answer}");
            }
        }
        for (path, status) in [("/v2/repository//index", 404), ("/v2/repository//models/m/load", 404)] {
            let answer = serving.post(path, "").await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        }
        let answer = serving.ask("GET", "/v2/repository/x/index", "", "").await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }
}
