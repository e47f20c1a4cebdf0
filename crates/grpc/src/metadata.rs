//! What the server says of itself and of its models: health, metadata, configurations.

use std::sync::Arc;

use nereid_core::backend_api::{DataType, Error, Result, Shape};
use nereid_core::model_config::platform_name;
use nereid_core::{Model, Server};
use nereid_protocol::EXTENSIONS;

use crate::proto::model_metadata_response::TensorMetadata;
use crate::proto::{ModelConfigResponse, ModelMetadataResponse, ServerMetadataResponse};

/// The version that a request names; `None` if it leaves the choice to the server.
///
/// # Errors
/// `InvalidArg` if it is not a number that there is.
pub(crate) fn version(text: &str, model: &str) -> Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        Error::invalid_arg(format!(
            "'{text}' is not a version of model '{model}': a version is a whole number within 64 bits"
        ))
    })
}

fn find(server: &Server, name: &str, text: &str) -> Result<Arc<Model>> {
    server.model(name, version(text, name)?)
}

pub(crate) fn server(server: &Server) -> ServerMetadataResponse {
    let options = server.options();
    ServerMetadataResponse {
        name: options.name.clone(),
        version: options.version.clone(),
        extensions: EXTENSIONS.iter().map(|&name| name.into()).collect(),
    }
}

/// Whether a model can be asked.
///
/// # Errors
/// `InvalidArg` for a version that is no number.
pub(crate) async fn model_ready(server: &Server, name: &str, text: &str) -> Result<bool> {
    Ok(server.model_ready(name, version(text, name)?).await.is_ok())
}

/// What a model takes and gives.
///
/// # Errors
/// There is no such model, or it is not ready.
pub(crate) fn model(server: &Server, name: &str, text: &str) -> Result<ModelMetadataResponse> {
    let version = version(text, name)?;
    let models = server.models();
    let model = models.find(name, version)?;
    let signature = model.signature();
    let tensor = |name: &str, data_type: DataType, dims: &Shape| TensorMetadata {
        name: name.into(),
        datatype: data_type.protocol_name().into(),
        shape: signature.full_dims(dims).to_vec(),
    };
    let versions = match version {
        Some(version) => vec![version.to_string()],
        None => models.ready_versions(name).map(|version| version.to_string()).collect(),
    };
    let (inputs, outputs) = (signature.inputs.iter(), signature.outputs.iter());
    Ok(ModelMetadataResponse {
        name: model.name().into(),
        versions,
        platform: platform_name(model.config()).into(),
        inputs: inputs.map(|input| tensor(&input.name, input.data_type, &input.dims)).collect(),
        outputs: outputs.map(|output| tensor(&output.name, output.data_type, &output.dims)).collect(),
    })
}

/// The configuration with its defaults filled in, as the model is served with it.
///
/// # Errors
/// There is no such model, or it is not ready.
pub(crate) fn configuration(server: &Server, name: &str, text: &str) -> Result<ModelConfigResponse> {
    let model = find(server, name, text)?;
    Ok(ModelConfigResponse { config: Some(model.config().clone()) })
}
