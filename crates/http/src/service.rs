//! Connections: accepting them, and serving HTTP/1.1 or HTTP/2 on each, whichever its client begins with.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use nereid_core::Server;
use nereid_listener::Listener;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pace::{Pace, Paced};
use crate::{HttpOptions, routes};

/// How often a connection of HTTP/2 is pinged, and how long its answer may take.
const PING: Duration = Duration::from_secs(30);

/// What every request is answered from.
pub(crate) struct Face {
    pub server: Arc<Server>,
    pub options: HttpOptions,
}

pub(crate) async fn accept(
    listener: Listener,
    face: Arc<Face>,
    connections: &TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let arrival = tokio::select! {
            arrival = listener.accept() => arrival,
            () = shutdown.cancelled() => return,
        };
        let (face, shutdown) = (Arc::clone(&face), shutdown.clone());
        connections.spawn(async move {
            let opened = tokio::select! {
                opened = arrival.open() => opened,
                () = shutdown.cancelled() => return,
            };
            match opened {
                Ok(connection) => converse(connection, face, shutdown).await,
                Err(error) => tracing::debug!("an HTTP connection was not opened: {error}"),
            }
        });
    }
}

async fn converse<S>(stream: S, face: Arc<Face>, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pace = Pace::new(face.options.forwarded_headers.is_some());
    let service = service_fn(|request: Request<Incoming>| {
        let (face, pace) = (Arc::clone(&face), pace.clone());
        async move { Ok::<_, Infallible>(routes::answer(&face, request, &pace).await) }
    });
    let stream = TokioIo::new(Paced::new(stream, pace.clone()));
    let mut protocol = Builder::new(TokioExecutor::new());
    // A client that is gone without a word is found out by pings.
    protocol.http2().timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
    let connection = protocol.serve_connection(stream, service);
    tokio::pin!(connection);
    let served = async {
        tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        outcome = served => if let Err(error) = outcome {
            tracing::debug!("an HTTP connection ended: {error}");
        },
        () = pace.lost() => tracing::debug!("an HTTP connection was closed: its client did not go on with a request"),
    }
}

#[cfg(test)]
mod http2_tests;
#[cfg(test)]
mod tests;
