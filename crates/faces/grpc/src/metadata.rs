//! Health, metadata and configurations of the server and its models.

use std::collections::BTreeMap;

use nereid_core::backend_api::Result;
use nereid_core::{RequestHead, ScopedName, Server};
use nereid_protocol::documents::{self, ModelMetadata};
use nereid_protocol::parse_version;

use crate::proto::model_metadata_response::TensorMetadata;
use crate::proto::{ModelConfigResponse, ModelMetadataResponse, ServerMetadataResponse};

/// The version that a request names; `None` if it leaves the choice to the server.
///
/// # Errors
/// `InvalidArg` if it is not a number of 64 bits.
pub(crate) fn version(text: &str, model: &str) -> Result<Option<u64>> {
    if text.is_empty() { Ok(None) } else { parse_version(text, model).map(Some) }
}

pub(crate) fn server(server: &Server) -> ServerMetadataResponse {
    let metadata = documents::ServerMetadata::of(server);
    ServerMetadataResponse {
        name: metadata.name.into(),
        version: metadata.version.into(),
        extensions: metadata.extensions.iter().map(|&name| name.into()).collect(),
    }
}

/// Whether a model is ready.
///
/// # Errors
/// `InvalidArg` for a malformed version.
pub(crate) async fn model_ready(server: &Server, name: ScopedName<'_>, text: &str) -> Result<bool> {
    Ok(server.model_ready(name, version(text, name.name)?).await.is_ok())
}

/// A model's inputs and outputs. A model that is loaded on demand is loaded for them.
///
/// # Errors
/// The model is unknown or not ready.
pub(crate) async fn model(
    server: &Server,
    name: ScopedName<'_>,
    text: &str,
    head: impl FnOnce() -> RequestHead,
) -> Result<ModelMetadataResponse> {
    let version = version(text, name.name)?;
    server.resolve_with(name, version, head).await?;
    let ModelMetadata { name, versions, platform, inputs, outputs } =
        ModelMetadata::of(server, name, version)?;
    let tensors = |tensors: Vec<documents::TensorMetadata>| {
        let wire = |documents::TensorMetadata { name, datatype, shape }| TensorMetadata {
            name,
            datatype: datatype.into(),
            shape,
        };
        tensors.into_iter().map(wire).collect()
    };
    let (inputs, outputs) = (tensors(inputs), tensors(outputs));
    Ok(ModelMetadataResponse { name, versions, platform, inputs, outputs, properties: BTreeMap::new() })
}

/// The configuration that the model is served with, defaults filled in. A model that is loaded on demand is loaded for it.
///
/// # Errors
/// The model is unknown or not ready.
pub(crate) async fn configuration(
    server: &Server,
    name: ScopedName<'_>,
    text: &str,
    head: impl FnOnce() -> RequestHead,
) -> Result<ModelConfigResponse> {
    let model = server.resolve_with(name, version(text, name.name)?, head).await?;
    Ok(ModelConfigResponse { config: Some(model.config().clone()) })
}
