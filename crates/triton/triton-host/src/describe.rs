//! Documents of the server and its models, as JSON for C.

use nereid_backend_api::{Error, Result};
use nereid_core::{ScopedName, Server};
use nereid_protocol::documents::{ModelMetadata, ServerMetadata, Statistics, blocking_repository_index};
use serde::Serialize;

fn json(document: &impl Serialize) -> Result<String> {
    serde_json::to_string(document).map_err(|error| Error::internal(error.to_string()))
}

pub(crate) fn server(server: &Server) -> Result<String> {
    json(&ServerMetadata::of(server))
}

pub(crate) fn model(server: &Server, name: &str, version: Option<u64>) -> Result<String> {
    json(&ModelMetadata::of(server, ScopedName::everywhere(name), version)?)
}

/// Statistics of one model, or of all models if the name is empty.
pub(crate) fn statistics(server: &Server, name: &str, version: Option<u64>) -> Result<String> {
    json(&match name {
        "" => Statistics::of_all(server, |_| true),
        // As the reference's functions do.
        name => Statistics::of(server, ScopedName::everywhere(name), version)
            .map_err(|error| Error::invalid_arg(error.message().to_owned()))?,
    })
}

pub(crate) fn index(server: &Server, only_ready: bool) -> Result<String> {
    json(&blocking_repository_index(server, only_ready)?)
}
