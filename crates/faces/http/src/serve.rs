//! Connections: accepts them and serves HTTP/1.1 or HTTP/2 on each, depending on the client's first bytes.

use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nereid_net::http2::Draining;
use nereid_net::io_runtime::when_woken;
use nereid_net::listener::{Activity as _, Arrival, Listener};
use nereid_net::slow_clients::{TimedBody, TimedReplies, TimedWrites, client_stalled};
use nereid_protocol::{Identity, LoggedRequest, Principal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pace::{Pace, PacedConnection};
use crate::router::Router;
use crate::slots::{Slot, Slots};

/// The protocols that are served, best first, as TLS clients name them.
pub const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

/// Interval of pings on an HTTP/2 connection, and the time limit of their answer.
const PING: Duration = Duration::from_secs(30);

/// Most requests that an HTTP/2 client may reset between two polls of its connection. Clients with short timeouts reset
/// some hundreds while the server is busy; one that resets them as fast as it opens them reaches thousands.
const MAX_PENDING_RESETS: usize = 1024;

/// Limits of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportOptions {
    /// The most connections at a time; `None` for any number. Beyond it, the connection that has been idle longest is
    /// closed, and clients wait if none is idle.
    pub max_connections: Option<usize>,
    /// Idle limit of a connection of HTTP/1.1; `None` for none.
    pub idle_timeout: Option<Duration>,
    /// Whether clients may speak HTTP/2.
    pub http2: bool,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self { max_connections: None, idle_timeout: None, http2: true }
    }
}

/// How long connections are still accepted at shutdown: clients may already have connected and sent requests.
const LAST_ARRIVALS: Duration = Duration::from_millis(20);

/// The stages of a transport's shutdown. A token alone stands for both.
#[derive(Clone, Debug)]
pub struct End {
    /// Cancelled when no further connections are accepted. Those that are open are served as before.
    pub closing: CancellationToken,
    /// Cancelled when connections end, once they have answered the requests that have arrived.
    pub shutdown: CancellationToken,
}

impl From<CancellationToken> for End {
    fn from(shutdown: CancellationToken) -> Self {
        Self { closing: shutdown.clone(), shutdown }
    }
}

/// Serves the faces of `router` on `listener` until its `end`.
///
/// Returns when the last connection is closed; the caller decides how long to wait for that. A connection of HTTP/1.1
/// is closed after its next reply, which announces the close, or after an idle period; on HTTP/2, a GOAWAY frame names
/// the requests that are still answered.
pub async fn serve(
    listener: Listener,
    router: impl Into<Router>,
    options: TransportOptions,
    end: impl Into<End>,
) {
    let End { closing, shutdown } = end.into();
    let ending = AtomicBool::new(false);
    let transport =
        Arc::new(Transport { router: router.into(), options, shutdown: shutdown.clone(), ending });
    let slots = options.max_connections.map(|count| Slots::new(count, listener.connections().clone()));
    let connections = TaskTracker::new();
    let end_of_arrivals = async {
        closing.cancelled().await;
        sleep(LAST_ARRIVALS).await;
    };
    let mut end_of_arrivals = pin!(end_of_arrivals);
    loop {
        let (arrival, slot) = tokio::select! {
            accepted = accept(&listener, slots.as_ref()) => accepted,
            () = &mut end_of_arrivals => break,
        };
        let pace = Pace::new(transport.router.keeps_spelling(), options.idle_timeout);
        let evicted = CancellationToken::new();
        let transport = Arc::clone(&transport);
        let registered = listener.connections().register(Arc::new(pace.clone()), evicted.clone());
        connections.spawn(nereid_net::io_runtime::relayed(async move {
            let _registered = (registered, slot);
            tokio::select! {
                () = open(transport, arrival, pace) => {}
                () = when_woken(evicted.cancelled()) => {
                    tracing::debug!("closed an idle HTTP connection to make room");
                }
            }
        }));
    }
    drop(listener);
    connections.close();
    shutdown.cancelled().await;
    transport.ending.store(true, Ordering::Release);
    connections.wait().await;
}

/// Accepts the next connection, with a slot if there is a limit.
async fn accept(listener: &Listener, slots: Option<&Slots>) -> (Arrival, Slot) {
    let arrival = listener.accept().await;
    let slot = match slots {
        Some(slots) => slots.take().await,
        None => None,
    };
    (arrival, slot)
}

/// State shared by all connections.
struct Transport {
    router: Router,
    options: TransportOptions,
    shutdown: CancellationToken,
    /// Whether replies announce the end of their connection. Every reply reads it, so it is not left to the token,
    /// which takes a lock.
    ending: AtomicBool,
}

impl Transport {
    /// Returns when a connection of HTTP/1.1 may be closed.
    async fn quiet(&self, pace: &Pace) {
        self.shutdown.cancelled().await;
        pace.quiet().await;
    }
}

async fn open(transport: Arc<Transport>, arrival: Arrival, pace: Pace) {
    let opened = tokio::select! {
        opened = arrival.open() => opened,
        () = transport.shutdown.cancelled() => return,
    };
    match opened {
        Ok(connection) => {
            let identity = Identity::of_connection(connection.client().map(Principal::new));
            converse(connection, transport, pace, identity).await;
        }
        Err(error) => tracing::debug!("cannot open an HTTP connection: {error}"),
    }
}

async fn converse<S>(stream: S, transport: Arc<Transport>, pace: Pace, identity: Identity)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Avoids a second reference count per request that all connections share.
    let own = Arc::new((Arc::clone(&transport), pace.clone(), identity));
    let service = service_fn(|request: Request<Incoming>| {
        let own = Arc::clone(&own);
        async move {
            let (transport, pace, identity) = &*own;
            let call = || format!("HTTP {} {}", request.method(), request.uri().path());
            let logged = LoggedRequest::begin(identity.principal.as_ref(), call);
            let mut reply = transport.router.answer(request, pace, identity).await;
            if let Some(mut logged) = logged {
                logged.identify(reply.extensions_mut().remove());
                logged.answered(reply.status().as_u16(), reply.body().size_hint().exact());
            }
            if transport.ending.load(Ordering::Acquire) && pace.is_enforced() {
                reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(reply)
        }
    });
    let stream = TimedWrites::new(stream);
    let backlog = stream.backlog();
    let mut stream = PacedConnection::new(stream, pace.clone());
    // Each of these events occurs at most once, but the connection is polled for every request.
    let mut quiet = pin!(when_woken(transport.quiet(&pace)));
    let stalled = when_woken(pace.stalled());
    let unresponsive = when_woken(async {
        transport.shutdown.cancelled().await;
        client_stalled(|| pace.awaited().filter(|_| !backlog.is_there())).await;
    });
    let served = async {
        let http2 = transport.options.http2
            && tokio::select! {
                http2 = stream.detect_http2() => http2?,
                () = &mut quiet => return Ok(()),
            };
        if http2 {
            let service = service_fn(|request| {
                let reply = service.call(request);
                async move { reply.await.map(|reply| reply.map(TimedBody::new)) }
            });
            let mut protocol =
                http2::Builder::new(TimedReplies::new(nereid_net::io_runtime::Spawner, pace.requests()));
            // Detects clients that vanished without closing the connection.
            protocol.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
            protocol.max_pending_accept_reset_streams(MAX_PENDING_RESETS);
            let (stream, drain) = Draining::new(stream);
            let connection = protocol.serve_connection(TokioIo::new(stream), service);
            let shutdown = when_woken(transport.shutdown.cancelled());
            let end = |connection: Pin<&mut http2::Connection<_, _, _>>| {
                drain.begin();
                connection.graceful_shutdown();
            };
            until(shutdown, connection, end).await?;
        } else {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            until(quiet, connection, http1::Connection::graceful_shutdown).await?;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    tokio::select! {
        biased;
        outcome = served => if let Err(error) = outcome {
            tracing::debug!("an HTTP connection failed: {error}");
        },
        () = stalled => tracing::debug!("closed an HTTP connection: its client stalled"),
        () = unresponsive => tracing::debug!("closed an HTTP connection at shutdown: its client did not close it"),
    }
}

/// Serves a connection until its client closes it, or `last` returns: then `end` closes it after the replies in progress.
async fn until<C: Future>(
    last: impl Future<Output = ()>,
    connection: C,
    end: impl FnOnce(Pin<&mut C>),
) -> C::Output {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        outcome = connection.as_mut() => outcome,
        () = last => {
            end(connection.as_mut());
            connection.await
        }
    }
}

#[cfg(test)]
mod http2_tests;
#[cfg(test)]
mod tests;
