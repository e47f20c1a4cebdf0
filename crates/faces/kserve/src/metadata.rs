//! Health, metadata and statistics of the server and its models.

use hyper::header::ACCEPT;
use hyper::{HeaderMap, StatusCode};
use nereid_core::Server;
use nereid_core::backend_api::Result;
use nereid_core::model_config::to_json;
use nereid_http::{Reply, reply};
use nereid_protocol::as_invalid_arg;
use nereid_protocol::documents::{ModelMetadata, ServerMetadata, Statistics};

use crate::routes::Target;

pub(crate) fn server_live(server: &Server, headers: &HeaderMap) -> Reply {
    health(server.is_live(), headers, r#"{"live":true}"#)
}

pub(crate) async fn server_ready(server: &Server, headers: &HeaderMap) -> Reply {
    health(server.ready().await, headers, r#"{"ready":true}"#)
}

/// Triton's replies to health checks have no body. KServe's have one, which its clients read: clients that say they take
/// JSON, as Triton's do not, get it.
fn health(is_good: bool, headers: &HeaderMap, body: &'static str) -> Reply {
    match is_good {
        true if accepts_json(headers) => reply::json_bytes(StatusCode::OK, body),
        true => reply::empty(StatusCode::OK),
        // The reference's status for a server that is not live, or not ready.
        false => reply::empty(StatusCode::BAD_REQUEST),
    }
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(ACCEPT).iter().filter_map(|list| list.to_str().ok());
    let mut ranges = lists.flat_map(|list| list.split(',')).filter_map(|range| range.split(';').next());
    let json = ["*/*", "application/*", "application/json"];
    ranges.any(|range| json.iter().any(|json| json.eq_ignore_ascii_case(range.trim())))
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

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_clients_that_take_json_get_the_body_of_a_health_check() {
        for (accepted, expected) in [
            (&[][..], false),
            (&["*/*"], true),
            (&["application/json"], true),
            (&["Application/JSON; q=0.5"], true),
            (&["text/html, application/*;q=0.8"], true),
            (&["text/html", "*/*"], true),
            (&["text/html, application/jsonl"], false),
            (&[""], false),
        ] {
            let headers = accepted.iter().map(|list| (ACCEPT, HeaderValue::from_static(list)));
            let headers: HeaderMap = headers.collect();
            assert_eq!(accepts_json(&headers), expected, "{accepted:?}");
        }
    }
}
