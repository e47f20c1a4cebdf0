//! Serves the text over HTTP/1.1.
//!
//! As with the reference, `/metrics` and `/metrics/` have it, any other path is an empty answer, and any method but GET is
//! refused. Whoever floods this port takes nothing from those who ask models: connections are limited, a client has to
//! bring its request in time, and few texts are made at a time, on threads of their own.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nereid_core::Server;
use nereid_listener::{Arrival, Listener};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Exposition;

/// So many connections at a time; further ones wait to be accepted.
const CONNECTIONS: usize = 256;

/// So many texts are made at a time.
const TEXTS: usize = 2;

/// How long a client may take to bring the head of its next request. Collectors that keep a connection ask once a minute
/// or more often.
const PATIENCE: Duration = Duration::from_secs(150);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const GET: HeaderValue = HeaderValue::from_static("GET");

struct Face {
    server: Arc<Server>,
    exposition: Arc<Exposition>,
    texts: Semaphore,
}

/// Answers on `listener` until `shutdown`, then lets answers in progress end.
///
/// Returns when the last connection is closed; whoever awaits it decides how long that may take.
pub async fn serve(
    listener: Listener,
    server: Arc<Server>,
    exposition: Arc<Exposition>,
    shutdown: CancellationToken,
) {
    let face = Arc::new(Face { server, exposition, texts: Semaphore::new(TEXTS) });
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let arrival = async {
            // The semaphore is never closed.
            let place = Arc::clone(&room).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, arrival) = tokio::select! {
            arrival = arrival => arrival,
            () = shutdown.cancelled() => break,
        };
        let (face, shutdown) = (Arc::clone(&face), shutdown.clone());
        connections.spawn(async move {
            converse(arrival, face, shutdown).await;
            drop(place);
        });
    }
    connections.close();
    connections.wait().await;
}

async fn converse(arrival: Arrival, face: Arc<Face>, shutdown: CancellationToken) {
    let stream = match arrival.open().await {
        Ok(stream) => TokioIo::new(stream),
        Err(error) => return tracing::debug!("a connection for metrics was not opened: {error}"),
    };
    let service = service_fn(|request| {
        let face = Arc::clone(&face);
        async move { Ok::<_, Infallible>(answer(&face, &request).await) }
    });
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let mut connection = pin!(protocol.serve_connection(stream, service));
    let outcome = tokio::select! {
        biased;
        outcome = connection.as_mut() => outcome,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!("a connection for metrics ended: {error}");
    }
}

async fn answer(face: &Face, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        let mut refusal = Response::new(Full::from(r#"{"error":"Method Not Allowed"}"#));
        *refusal.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        refusal.headers_mut().insert(ALLOW, GET);
        refusal.headers_mut().insert(CONTENT_TYPE, JSON);
        return refusal;
    }
    let mut answer = match request.uri().path() {
        "/metrics" | "/metrics/" => text(face).await,
        _ => Response::default(),
    };
    answer.headers_mut().insert(CONTENT_TYPE, TEXT);
    answer
}

async fn text(face: &Face) -> Response<Full<Bytes>> {
    // The semaphore is never closed.
    let _turn = face.texts.acquire().await;
    let (server, exposition) = (Arc::clone(&face.server), Arc::clone(&face.exposition));
    match spawn_blocking(move || exposition.text(&server)).await {
        Ok(text) => Response::new(Full::from(text)),
        Err(error) => {
            tracing::error!("the metrics could not be told: {error}");
            let mut failure = Response::default();
            *failure.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            failure
        }
    }
}
