//! Connections: accepting them, and serving HTTP/1.1 or HTTP/2 on each, whichever its client begins with.

use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
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
    let mut stream = Paced::new(stream, pace.clone());
    let served = async {
        let http2 = tokio::select! {
            http2 = stream.speaks_http2() => http2?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let stream = TokioIo::new(stream);
        if http2 {
            let mut protocol = http2::Builder::new(TokioExecutor::new());
            // A client that is gone without a word is found out by pings.
            protocol.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
            let connection = protocol.serve_connection(stream, service);
            until(&shutdown, connection, http2::Connection::graceful_shutdown).await?;
        } else {
            let connection = http1::Builder::new().serve_connection(stream, service);
            until(&shutdown, connection, http1::Connection::graceful_shutdown).await?;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    tokio::select! {
        biased;
        outcome = served => if let Err(error) = outcome {
            tracing::debug!("an HTTP connection ended: {error}");
        },
        () = pace.lost() => tracing::debug!("an HTTP connection was closed: its client did not go on with a request"),
    }
}

/// Serves a connection until its client ends it, or `shutdown`: then it is told to `end` with the answers in progress.
async fn until<C: Future>(shutdown: &CancellationToken, connection: C, end: fn(Pin<&mut C>)) -> C::Output {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        outcome = connection.as_mut() => outcome,
        () = shutdown.cancelled() => {
            end(connection.as_mut());
            connection.await
        }
    }
}

#[cfg(test)]
mod http2_tests;
#[cfg(test)]
mod tests;
