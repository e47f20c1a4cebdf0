//! Connections: accepting them, and serving gRPC on each.

use std::io::ErrorKind;
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::calls::Calls;

/// How long to wait before accepting again when the process is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers `calls` on `listener` until `shutdown`, then lets calls in progress end.
///
/// Returns when the last connection is closed; whoever awaits it decides how long that may take.
pub async fn serve(listener: TcpListener, calls: Calls, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Answers are written whole; waiting for more to send would only delay them.
                let _ = stream.set_nodelay(true);
                connections.spawn(converse(stream, calls.clone(), shutdown.clone()));
            }
            // The client was gone before it was accepted.
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                tracing::warn!("cannot accept a gRPC connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

async fn converse(stream: TcpStream, calls: Calls, shutdown: CancellationToken) {
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
