//! Metadata of the server and of models.

use nereid_backend_api::{DataType, Result, Shape};
use nereid_core::model_config::platform_name;
use nereid_core::{ScopedName, Server};
use serde::Serialize;

use crate::EXTENSIONS;

/// The server's name, version and extensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerMetadata<'s> {
    /// The server's name.
    pub name: &'s str,
    /// The server's version.
    pub version: &'s str,
    /// The protocol extensions it offers.
    pub extensions: &'static [&'static str],
}

impl<'s> ServerMetadata<'s> {
    /// The metadata of this server.
    pub fn of(server: &'s Server) -> Self {
        let options = server.options();
        Self { name: &options.name, version: &options.version, extensions: EXTENSIONS }
    }
}

/// A model's inputs and outputs, and its versions that are ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelMetadata {
    /// The model's name.
    pub name: String,
    /// The requested version, or all that are ready.
    pub versions: Vec<String>,
    /// The platform or the backend it runs on.
    pub platform: String,
    /// The model's inputs.
    pub inputs: Vec<TensorMetadata>,
    /// The model's outputs.
    pub outputs: Vec<TensorMetadata>,
}

/// An input or an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorMetadata {
    /// The tensor's name.
    pub name: String,
    /// The name of its data type.
    pub datatype: &'static str,
    /// The tensor's shape with the batch dimension; -1 for variable sizes.
    pub shape: Vec<i64>,
}

impl ModelMetadata {
    /// The metadata of a model, or of one of its versions.
    ///
    /// # Errors
    /// The model is unknown or not ready.
    pub fn of(server: &Server, name: ScopedName<'_>, version: Option<u64>) -> Result<Self> {
        let models = server.models();
        let model = models.find(name, version)?;
        let signature = model.signature();
        let tensor = |name: &str, data_type: DataType, dims: &Shape| TensorMetadata {
            name: name.to_owned(),
            datatype: data_type.protocol_name(),
            shape: signature.full_dims(dims).to_vec(),
        };
        let (inputs, outputs) = (signature.inputs.iter(), signature.outputs.iter());
        Ok(Self {
            name: model.name().to_owned(),
            versions: match version {
                Some(version) => vec![version.to_string()],
                None => models.ready_versions(name).map(|version| version.to_string()).collect(),
            },
            platform: platform_name(model.config()).to_owned(),
            inputs: inputs.map(|input| tensor(&input.name, input.data_type, &input.dims)).collect(),
            outputs: outputs.map(|output| tensor(&output.name, output.data_type, &output.dims)).collect(),
        })
    }
}
