//! Connections: accepting them, and serving gRPC on each.

use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nereid_listener::{Connection, Listener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::calls::Calls;

/// Answers `calls` on `listener` until `shutdown`, then lets calls in progress end.
///
/// Returns when the last connection is closed; whoever awaits it decides how long that may take.
pub async fn serve(listener: Listener, calls: Calls, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let arrival = tokio::select! {
            arrival = listener.accept() => arrival,
            () = shutdown.cancelled() => break,
        };
        let (calls, shutdown) = (calls.clone(), shutdown.clone());
        connections.spawn(async move {
            let opened = tokio::select! {
                opened = arrival.open() => opened,
                () = shutdown.cancelled() => return,
            };
            match opened {
                Ok(connection) => converse(connection, calls, shutdown).await,
                Err(error) => tracing::debug!("a gRPC connection was not opened: {error}"),
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn converse(stream: Connection, calls: Calls, shutdown: CancellationToken) {
    let mut protocol = Builder::new(TokioExecutor::new());
    protocol.timer(TokioTimer::new());
    let connection = protocol.serve_connection(TokioIo::new(stream), TowerToHyperService::new(calls));
    tokio::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!("a gRPC connection ended: {error}");
    }
}
