//! Health, metadata and statistics of the server and its models.

use hyper::StatusCode;
use nereid_core::Server;
use nereid_core::backend_api::Result;
use nereid_core::model_config::to_json;
use nereid_http_transport::{Reply, reply};
use nereid_protocol::as_invalid_arg;
use nereid_protocol::documents::{ModelMetadata, ServerMetadata, Statistics};

use crate::routes::Target;

pub(crate) fn server_live(server: &Server) -> Reply {
    // The reference's status for a server that is not live.
    reply::empty(if server.is_live() { StatusCode::OK } else { StatusCode::BAD_REQUEST })
}

pub(crate) async fn server_ready(server: &Server) -> Reply {
    if server.ready().await {
        reply::empty(StatusCode::OK)
    } else {
        // The reference's status for a server that is not ready.
        reply::empty(StatusCode::BAD_REQUEST)
    }
}

pub(crate) fn server(server: &Server) -> Reply {
    reply::json(StatusCode::OK, &ServerMetadata::of(server))
}

pub(crate) async fn model_ready(server: &Server, target: &Target<'_>) -> Result<Reply> {
    Ok(match server.model_ready(&target.model, target.version()?).await {
        Ok(()) => reply::empty(StatusCode::OK),
        // The reference's status, also for unknown models.
        Err(error) => reply::error_text(StatusCode::BAD_REQUEST, error.message()),
    })
}

pub(crate) fn model(server: &Server, target: &Target<'_>) -> Result<Reply> {
    let metadata = ModelMetadata::of(server, &target.model, target.version()?)?;
    Ok(reply::json(StatusCode::OK, &metadata))
}

/// The configuration that the model is served with, defaults filled in. It is the same for all versions.
pub(crate) fn configuration(server: &Server, target: &Target<'_>) -> Result<Reply> {
    let version = target.version()?;
    let models = server.models();
    let model = models.find(&target.model, version)?;
    Ok(reply::json_bytes(StatusCode::OK, to_json(model.config())))
}

/// Statistics of the model that the path names, or of all without a target.
pub(crate) fn statistics(server: &Server, target: Option<&Target<'_>>) -> Result<Reply> {
    let statistics = match target {
        None => Statistics::of_all(server),
        // The reference's code for unknown models.
        Some(target) => Statistics::of(server, &target.model, target.version()?).map_err(as_invalid_arg)?,
    };
    Ok(reply::json(StatusCode::OK, &statistics))
}
