//! The model repository extension: the index, and loading and unloading by request.

use std::collections::BTreeMap;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{ModelId, Overrides, Scope, ScopedName, Server};
use nereid_protocol::documents::{
    GpuMemoryDocument, IndexEntry, MemoryDocument, repository_index, repository_index_with_memory,
};
use nereid_protocol::repository::{self, LoadParameter, UNLOAD_DEPENDENTS, check_repository};

use crate::proto::model_repository_parameter::ParameterChoice;
use crate::proto::repository_index_response::ModelIndex;
use crate::proto::{
    ModelGpuMemory, ModelMemory, ModelRepositoryParameter, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
};

/// Every known version with its state, and the names of models that were never loaded; with their memory, if the client requests it.
///
/// # Errors
/// The repositories cannot be read.
pub(crate) async fn index(
    server: &Server,
    request: &RepositoryIndexRequest,
    is_visible: impl Fn(&ModelId) -> bool,
) -> Result<RepositoryIndexResponse> {
    check_repository(&request.repository_name)?;
    let wire = |IndexEntry { name, version, state, reason }, memory| ModelIndex {
        name,
        version: version.unwrap_or_default(),
        state: state.unwrap_or_default().into(),
        reason: reason.unwrap_or_default(),
        memory,
    };
    let models = if request.memory {
        let entries = repository_index_with_memory(server, request.ready, is_visible).await?;
        entries.into_iter().map(|it| wire(it.entry, it.memory.map(memory))).collect()
    } else {
        let entries = repository_index(server, request.ready, is_visible).await?;
        entries.into_iter().map(|entry| wire(entry, None)).collect()
    };
    Ok(RepositoryIndexResponse { models })
}

fn memory(document: MemoryDocument) -> ModelMemory {
    let MemoryDocument { server, processes, budget, basis, measured_at, gpus } = document;
    let of_gpu = |GpuMemoryDocument { gpu, measured, budget }| ModelGpuMemory { gpu, budget, measured };
    let gpus = gpus.into_iter().map(of_gpu);
    ModelMemory { server, processes, budget, basis: basis.to_owned(), measured_at, gpus: gpus.collect() }
}

/// Loads a model; returns once it is loaded.
///
/// # Errors
/// The request is invalid, or the model failed to load.
pub(crate) async fn load(server: &Server, request: RepositoryModelLoadRequest, scope: &Scope) -> Result<()> {
    check_repository(&request.repository_name)?;
    let name = ScopedName::new(&request.model_name, scope);
    repository::load(server, name, overrides(request.parameters)?).await
}

/// Unloads a model; returns once it accepts no more requests.
///
/// # Errors
/// The request is invalid, or the model cannot be unloaded.
pub(crate) async fn unload(
    server: &Server,
    request: RepositoryModelUnloadRequest,
    scope: &Scope,
) -> Result<()> {
    check_repository(&request.repository_name)?;
    let mut with_dependents = false;
    for (name, value) in request.parameters {
        match (name.as_str(), value.parameter_choice) {
            (UNLOAD_DEPENDENTS, Some(ParameterChoice::BoolParam(value))) => with_dependents = value,
            (UNLOAD_DEPENDENTS, _) => return Err(wrong_type(&name, "bool_param")),
            // Ignored, as in the reference.
            _ => {}
        }
    }
    repository::unload(server, ScopedName::new(&request.model_name, scope), with_dependents).await
}

/// The repository's configuration and files that a load request replaces.
fn overrides(parameters: BTreeMap<String, ModelRepositoryParameter>) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        match (LoadParameter::named(&name)?, value.parameter_choice) {
            (LoadParameter::Config, Some(ParameterChoice::StringParam(config))) => {
                overrides.config = Some(config);
            }
            (LoadParameter::Config, _) => return Err(wrong_type(&name, "string_param")),
            (LoadParameter::File(path), Some(ParameterChoice::BytesParam(contents))) => {
                overrides.files.push((path.into(), contents));
            }
            (LoadParameter::File(_), _) => return Err(wrong_type(&name, "bytes_param")),
        }
    }
    Ok(overrides)
}

fn wrong_type(name: &str, expected: &str) -> Error {
    Error::invalid_arg(format!("parameter '{name}' has the wrong type; expected {expected}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn overrides_from(name: &str, value: ParameterChoice) -> Result<Overrides> {
        let parameter = ModelRepositoryParameter { parameter_choice: Some(value) };
        overrides(BTreeMap::from([(name.to_owned(), parameter)]))
    }

    #[test]
    fn load_request_overrides_configuration_and_files() {
        let config = overrides_from("config", ParameterChoice::StringParam("{}".into())).unwrap();
        assert_eq!(config.config.as_deref(), Some("{}"));
        let contents = Bytes::from_static(b"hi");
        let file =
            overrides_from("file:1/model.onnx", ParameterChoice::BytesParam(contents.clone())).unwrap();
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
            assert!(overrides_from(name, value).is_err(), "{name}");
        }
        let valueless = BTreeMap::from([("config".to_owned(), ModelRepositoryParameter::default())]);
        assert!(overrides(valueless).is_err());
    }
}
