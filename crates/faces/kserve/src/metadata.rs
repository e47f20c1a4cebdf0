//! Health, metadata and statistics of the server and its models.

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use nereid_core::Server;
use nereid_core::backend_api::Result;
use nereid_core::model_config::to_json;
use nereid_http::{Reply, accepts, reply};
use nereid_protocol::documents::{ModelMetadata, ServerMetadata, Statistics};
use nereid_protocol::{Action, as_invalid_arg};
use serde_json::json;

use crate::call::Call;

pub(crate) fn server_live(server: &Server, headers: &HeaderMap) -> Reply {
    health(server.is_live(), headers, r#"{"live":true}"#)
}

/// Whether the server accepts requests. If the access policy's files are broken, it does, and the body says so.
pub(crate) async fn server_ready(server: &Server, call: &Call<'_>) -> Reply {
    let body = match call.http.access_trouble() {
        None => r#"{"ready":true}"#.into(),
        Some(trouble) => json!({"ready": true, "reason": trouble}).to_string(),
    };
    health(server.ready().await, call.headers, body)
}

/// Health checks are answered without a body, as scripts expect that print a body and a status together. KServe's replies have
/// a body: clients get it if `Accept` names JSON. curl, wget and most libraries send `*/*`, which does not.
fn health(is_good: bool, headers: &HeaderMap, body: impl Into<Bytes>) -> Reply {
    match is_good {
        true if accepts(headers, "application/json") => reply::json_bytes(StatusCode::OK, body),
        true => reply::empty(StatusCode::OK),
        // The reference's status for a server that is not live, or not ready.
        false => reply::empty(StatusCode::BAD_REQUEST),
    }
}

pub(crate) fn server(server: &Server) -> Reply {
    reply::json(StatusCode::OK, &ServerMetadata::of(server))
}

pub(crate) async fn model_ready(call: &Call<'_>) -> Result<Reply> {
    Ok(match call.face.server.model_ready(call.model(), call.target.version()?).await {
        Ok(()) => reply::empty(StatusCode::OK),
        // The reference's status, also for unknown models.
        Err(error) => reply::error_text(StatusCode::BAD_REQUEST, error.message()),
    })
}

/// The model's inputs and outputs. A model that is loaded on demand is loaded for them.
pub(crate) async fn model(call: &Call<'_>) -> Result<Reply> {
    let (server, version) = (&call.face.server, call.target.version()?);
    server.resolve(call.model(), version).await?;
    let metadata = ModelMetadata::of(server, call.model(), version)?;
    Ok(reply::json(StatusCode::OK, &metadata))
}

/// The configuration that the model is served with, defaults filled in. It is the same for all versions. A model that is loaded on
/// demand is loaded for it.
pub(crate) async fn configuration(call: &Call<'_>) -> Result<Reply> {
    let model = call.face.server.resolve(call.model(), call.target.version()?).await?;
    Ok(reply::json_bytes(StatusCode::OK, to_json(model.config())))
}

/// Statistics of the model that the path names, or of all without a target.
pub(crate) fn statistics(call: &Call<'_>) -> Result<Reply> {
    // The reference's code for unknown models.
    let statistics = Statistics::of(&call.face.server, call.model(), call.target.version()?);
    let statistics = statistics.map_err(as_invalid_arg)?;
    Ok(reply::json(StatusCode::OK, &statistics))
}

/// The statistics of all models that the caller may see.
pub(crate) fn all_statistics(call: &Call<'_>) -> Result<Reply> {
    let statistics =
        Statistics::of_all(&call.face.server, |model| call.http.shows(Action::Statistics, model));
    Ok(reply::json(StatusCode::OK, &statistics))
}

#[cfg(test)]
mod tests {
    use hyper::body::Body;
    use hyper::header::{ACCEPT, HeaderValue};

    use super::*;

    #[test]
    fn unhealthy_server_is_reported_without_a_body() {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
        let unhealthy = health(false, &headers, "{}");
        assert_eq!(
            (unhealthy.status(), unhealthy.body().size_hint().exact()),
            (StatusCode::BAD_REQUEST, Some(0))
        );
    }
}
