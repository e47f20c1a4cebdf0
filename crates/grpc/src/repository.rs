//! The model repository extension: the index, and loading and unloading by request.

use std::collections::BTreeMap;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{Overrides, Server};
use tokio::sync::oneshot;

use crate::proto::model_repository_parameter::ParameterChoice;
use crate::proto::repository_index_response::ModelIndex;
use crate::proto::{
    ModelRepositoryParameter, RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
};

/// Begins the name of a parameter that holds a file of the model's folder, followed by its path there.
const FILE: &str = "file:";

/// Every version that is known, with its state; and the names of models that nobody has loaded yet.
///
/// # Errors
/// The repositories cannot be looked at.
pub(crate) fn index(server: &Server, request: &RepositoryIndexRequest) -> Result<RepositoryIndexResponse> {
    check_repository(&request.repository_name)?;
    let entries = server.index()?.into_iter().map(|(name, status)| match status {
        None => ModelIndex { name, ..ModelIndex::default() },
        Some(status) => ModelIndex {
            name,
            version: status.version.map_or_else(String::new, |version| version.to_string()),
            state: status.state.name().into(),
            reason: status.state.reason().unwrap_or_default().into(),
        },
    });
    let wanted = |entry: &ModelIndex| !request.ready || entry.state == "READY";
    Ok(RepositoryIndexResponse { models: entries.filter(wanted).collect() })
}

/// Loads a model; done when it is loaded.
///
/// # Errors
/// What is wrong with the request, or why the model cannot be loaded.
pub(crate) async fn load(server: &Server, request: RepositoryModelLoadRequest) -> Result<()> {
    check_repository(&request.repository_name)?;
    let overrides = overrides(request.parameters)?;
    let (done, outcome) = oneshot::channel();
    server.load_model(&request.model_name, overrides, |result| {
        // Whoever asked may be gone.
        let _ = done.send(result);
    })?;
    ended(outcome).await
}

/// Unloads a model; done when it takes no further requests.
///
/// # Errors
/// What is wrong with the request, or why the model cannot be unloaded.
pub(crate) async fn unload(server: &Server, request: RepositoryModelUnloadRequest) -> Result<()> {
    check_repository(&request.repository_name)?;
    let mut with_dependents = false;
    for (name, value) in request.parameters {
        match (name.as_str(), value.parameter_choice) {
            ("unload_dependents", Some(ParameterChoice::BoolParam(value))) => with_dependents = value,
            ("unload_dependents", _) => return Err(wrong_type(&name, "bool_param")),
            _ => return Err(Error::invalid_arg(format!("unloading takes no parameter '{name}'"))),
        }
    }
    let (done, outcome) = oneshot::channel();
    let done = |result| {
        let _ = done.send(result);
    };
    if with_dependents {
        server.unload_model_and_dependents(&request.model_name, done)?;
    } else {
        server.unload_model(&request.model_name, done)?;
    }
    ended(outcome).await
}

async fn ended(outcome: oneshot::Receiver<Result<()>>) -> Result<()> {
    outcome.await.unwrap_or_else(|_| Err(Error::internal("the task was given up")))
}

/// Repositories have no names here.
fn check_repository(name: &str) -> Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "there is no repository '{name}' to choose: repository_name has to be empty, which means all of them"
    )))
}

/// What a load request gives in place of what is in the repository.
fn overrides(parameters: BTreeMap<String, ModelRepositoryParameter>) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        if name == "config" {
            match value.parameter_choice {
                Some(ParameterChoice::StringParam(config)) => overrides.config = Some(config),
                _ => return Err(wrong_type(&name, "string_param")),
            }
        } else if let Some(path) = name.strip_prefix(FILE) {
            match value.parameter_choice {
                Some(ParameterChoice::BytesParam(contents)) => overrides.files.push((path.into(), contents)),
                _ => return Err(wrong_type(&name, "bytes_param")),
            }
        } else {
            return Err(Error::invalid_arg(format!(
                "loading takes no parameter '{name}': it takes 'config', and '{FILE}<version>/<name>' for files"
            )));
        }
    }
    Ok(overrides)
}

fn wrong_type(name: &str, wanted: &str) -> Error {
    Error::invalid_arg(format!("parameter '{name}' has a value of another type than {wanted}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn given(name: &str, value: ParameterChoice) -> Result<Overrides> {
        let parameter = ModelRepositoryParameter { parameter_choice: Some(value) };
        overrides(BTreeMap::from([(name.to_owned(), parameter)]))
    }

    #[test]
    fn a_load_request_gives_a_configuration_and_files() {
        let config = given("config", ParameterChoice::StringParam("{}".into())).unwrap();
        assert_eq!(config.config.as_deref(), Some("{}"));
        let contents = Bytes::from_static(b"hi");
        let file = given("file:1/model.onnx", ParameterChoice::BytesParam(contents.clone())).unwrap();
        assert_eq!(file.files, [("1/model.onnx".into(), contents)]);
        assert!(overrides(BTreeMap::new()).unwrap().is_empty());
    }

    #[test]
    fn other_parameters_are_refused() {
        for (name, value) in [
            ("config", ParameterChoice::BytesParam(Bytes::new())),
            ("file:1/model.onnx", ParameterChoice::StringParam("aGk=".into())),
            ("else", ParameterChoice::StringParam(String::new())),
        ] {
            assert!(given(name, value).is_err(), "{name}");
        }
        let valueless = BTreeMap::from([("config".to_owned(), ModelRepositoryParameter::default())]);
        assert!(overrides(valueless).is_err());
    }
}
