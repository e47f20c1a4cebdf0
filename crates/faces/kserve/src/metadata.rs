//! Health, metadata and statistics of the server and its models.

use hyper::header::ACCEPT;
use hyper::{HeaderMap, StatusCode};
use nereid_core::Server;
use nereid_core::backend_api::Result;
use nereid_core::model_config::to_json;
use nereid_http::{Reply, reply};
use nereid_protocol::documents::{ModelMetadata, ServerMetadata, Statistics};
use nereid_protocol::{Action, as_invalid_arg};

use crate::call::{Call, Target};

pub(crate) fn server_live(server: &Server, headers: &HeaderMap) -> Reply {
    health(server.is_live(), headers, r#"{"live":true}"#)
}

pub(crate) async fn server_ready(server: &Server, headers: &HeaderMap) -> Reply {
    health(server.ready().await, headers, r#"{"ready":true}"#)
}

/// Health checks are answered without a body, as scripts expect that print a body and a status together. KServe's replies have
/// a body: clients get it if `Accept` names JSON. curl, wget and most libraries send `*/*`, which does not.
fn health(is_good: bool, headers: &HeaderMap, body: &'static str) -> Reply {
    match is_good {
        true if wants_json(headers) => reply::json_bytes(StatusCode::OK, body),
        true => reply::empty(StatusCode::OK),
        // The reference's status for a server that is not live, or not ready.
        false => reply::empty(StatusCode::BAD_REQUEST),
    }
}

/// Whether `Accept` names JSON, wildcards not counted.
fn wants_json(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(ACCEPT).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let names_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
        names_json && !parts.any(has_no_weight)
    })
}

/// Whether a parameter of a media range is a weight of 0: the client does not accept that type.
fn has_no_weight(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, weight)| {
        name.trim().eq_ignore_ascii_case("q") && weight.trim().parse() == Ok(0.0_f32)
    })
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
pub(crate) fn statistics(server: &Server, target: &Target<'_>) -> Result<Reply> {
    // The reference's code for unknown models.
    let statistics = Statistics::of(server, &target.model, target.version()?).map_err(as_invalid_arg)?;
    Ok(reply::json(StatusCode::OK, &statistics))
}

/// The statistics of all models that the caller may see.
pub(crate) fn all_statistics(call: &Call<'_>) -> Result<Reply> {
    let mut statistics = Statistics::of_all(&call.face.server);
    statistics.model_stats.retain(|model| call.http.may(Action::Statistics, Some(&model.name)));
    Ok(reply::json(StatusCode::OK, &statistics))
}

#[cfg(test)]
mod tests {
    use hyper::body::Body;
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn health_check_has_a_body_only_if_accept_names_json() {
        for (accepted, expected) in [
            (&[][..], false),
            (&[""], false),
            (&["*/*"], false),
            (&["application/*"], false),
            (&["*/*;q=0.8, application/*"], false),
            (&["text/html, */*"], false),
            (&["text/html", "*/*"], false),
            (&["text/html, application/jsonl"], false),
            (&["application/problem+json", "text/json", "json", "application"], false),
            (&["application/json;q=0"], false),
            (&["application/json; Q=0.000, */*"], false),
            (&["application/json;charset=utf-8;q=0."], false),
            (&["application/json"], true),
            (&["Application/JSON; q=0.5"], true),
            (&["application/json;q=0.001"], true),
            (&["application/json;charset=utf-8"], true),
            (&["application/json;q=1;version=0"], true),
            (&["*/*, application/json;q=0.9"], true),
            (&["text/html,\tapplication/json ,*/*"], true),
            (&["application/json, text/plain, */*"], true),
            (&["text/html", "*/*", "application/json"], true),
            (&["application/json;q=0", "application/json"], true),
        ] {
            let headers = accepted.iter().map(|list| (ACCEPT, HeaderValue::from_static(list)));
            let headers: HeaderMap = headers.collect();
            assert_eq!(wants_json(&headers), expected, "{accepted:?}");
        }
    }

    #[test]
    fn accept_header_that_is_not_ascii_does_not_hide_the_others() {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_bytes(b"text/\xff").unwrap());
        assert!(!wants_json(&headers));
        headers.append(ACCEPT, HeaderValue::from_static("application/json"));
        assert!(wants_json(&headers));
    }

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
