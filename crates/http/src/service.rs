//! Connections: accepting them, and serving HTTP/1.1 or HTTP/2 on each, whichever its client begins with.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use nereid_core::Server;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pace::{Pace, Paced};
use crate::{HttpOptions, routes};

/// How long to wait before accepting again when the process is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often a connection of HTTP/2 is pinged, and how long its answer may take.
const PING: Duration = Duration::from_secs(30);

/// What every request is answered from.
pub(crate) struct Face {
    pub server: Arc<Server>,
    pub options: HttpOptions,
}

pub(crate) async fn accept(
    listener: TcpListener,
    face: Arc<Face>,
    connections: &TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                // Answers are written whole; waiting for more to send would only delay them.
                let _ = stream.set_nodelay(true);
                connections.spawn(converse(stream, Arc::clone(&face), shutdown.clone()));
            }
            // The client was gone before it was accepted.
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                tracing::warn!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
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
