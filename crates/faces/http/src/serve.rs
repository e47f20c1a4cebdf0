//! Connections: accepts them and serves HTTP/1.1 or HTTP/2 on each, depending on the client's first bytes.

mod direct;

use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use nereid_net::http2::Draining;
use nereid_net::io_runtime::{spawn_connection, when_woken};
use nereid_net::listener::{Activity as _, Arrival, Listener};
use nereid_net::slow_clients::{TimedBody, TimedReplies, TimedWrites, client_stalled};
use nereid_protocol::{Identity, LoggedRequest, Origin, Principal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::direct::Ended;
use crate::body::ArrivingBody;
use crate::pace::{Pace, PacedConnection};
use crate::reply::{Contents, Reply};
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
        spawn_connection(&connections, open(transport, arrival, pace, evicted), (registered, slot));
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
        Box::pin(pace.quiet()).await;
    }
}

// Idle connections are mostly their tasks. An `async fn` has space for each argument twice, so functions with large ones return blocks,
// and boxes have what few connections need.

#[expect(clippy::manual_async_fn, reason = "see above")]
fn open(
    transport: Arc<Transport>,
    arrival: Arrival,
    pace: Pace,
    evicted: CancellationToken,
) -> impl Future<Output = ()> {
    async move {
        let opened = tokio::select! {
            opened = arrival.open() => opened,
            () = transport.shutdown.cancelled() => return,
            () = evicted.cancelled() => return,
        };
        match opened {
            Ok(connection) => {
                let identity = Identity::of_connection(Origin {
                    certificate: connection.certificate().map(Principal::new),
                    user: connection.user(),
                    address: connection.address(),
                    remote: connection.is_remote(),
                });
                converse(connection, transport, pace, identity, evicted).await;
            }
            Err(error) => tracing::debug!("cannot open an HTTP connection: {error}"),
        }
    }
}

/// The state of a connection that its requests share.
#[derive(Clone)]
struct Conversation {
    transport: Arc<Transport>,
    pace: Pace,
    identity: Identity,
}

impl Conversation {
    /// Answers a request. `head` is what `parts` were read from, if that is known.
    async fn answer(&self, parts: &Parts, head: Option<&[u8]>, body: ArrivingBody<'_>) -> Reply {
        let Self { transport, pace, identity } = self;
        let call = || format!("HTTP {} {}", parts.method, parts.uri.path());
        let logged = LoggedRequest::begin(identity.principal.as_ref(), call);
        let mut reply = transport.router.answer(parts, head, body, pace, identity).await;
        if let Some(mut logged) = logged {
            logged.identify(reply.extensions_mut().remove());
            logged.answered(reply.status().as_u16(), reply.body().size_hint().exact());
        }
        if transport.ending.load(Ordering::Acquire) && pace.is_enforced() {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }

    /// Forgets the heads that the connection has kept for hyper.
    fn forget_heads(&self) {
        if self.transport.router.keeps_spelling() {
            self.pace.take_head();
        }
    }

    /// Answers requests that hyper reads. `body` makes what hyper sends of a reply's body.
    fn into_service<B: Body>(
        self,
        body: impl Fn(Contents) -> B + Copy,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<B>,
        Error = Infallible,
        Future = impl Future<Output = Result<Response<B>, Infallible>>,
    > {
        let own = Arc::new(self);
        service_fn(move |request: Request<Incoming>| {
            let own = Arc::clone(&own);
            async move {
                let (parts, arriving) = request.into_parts();
                Ok(own.answer(&parts, None, ArrivingBody::Pieces(arriving)).await.map(body))
            }
        })
    }
}

fn converse<S>(
    stream: S,
    transport: Arc<Transport>,
    pace: Pace,
    identity: Identity,
    evicted: CancellationToken,
) -> impl Future<Output = ()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TimedWrites::new(stream);
    let backlog = stream.backlog();
    let mut stream = Some(PacedConnection::new(stream, pace.clone()));
    let conversation = Conversation { transport, pace, identity };
    async move {
        let Conversation { transport, pace, .. } = &conversation;
        // Each of these events occurs at most once, but the connection is polled for every request.
        let mut quiet = pin!(when_woken(transport.quiet(pace)));
        let given_up = when_woken(async {
            let unresponsive = async {
                transport.shutdown.cancelled().await;
                Box::pin(client_stalled(|| pace.awaited().filter(|_| !backlog.is_there()))).await;
            };
            tokio::select! {
                () = evicted.cancelled() => "closed an idle HTTP connection to make room",
                () = pace.stalled() => "closed an HTTP connection: its client stalled",
                () = unresponsive => "closed an HTTP connection at shutdown: its client did not close it",
            }
        });
        let served = serve_requests(&mut stream, &conversation, quiet.as_mut());
        tokio::select! {
            biased;
            outcome = served => if let Err(error) = outcome {
                tracing::debug!("an HTTP connection failed: {error}");
            },
            reason = given_up => tracing::debug!("{reason}"),
        }
    }
}

/// Serves a connection, which is taken out if hyper serves it.
async fn serve_requests<S>(
    connection: &mut Option<PacedConnection<S>>,
    conversation: &Conversation,
    mut quiet: Pin<&mut impl Future<Output = ()>>,
) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(stream) = connection else { return Ok(()) };
    let http2 = conversation.transport.options.http2
        && tokio::select! {
            http2 = stream.detect_http2() => http2?,
            () = &mut quiet => return Ok(()),
        };
    if !http2 && let Ended::Closed = direct::converse(stream, conversation, quiet.as_mut()).await? {
        return Ok(());
    }
    let Some(stream) = connection.take() else { return Ok(()) };
    let conversation = conversation.clone();
    if http2 {
        Box::pin(serve_http2(stream, conversation)).await
    } else {
        Box::pin(serve_http1(stream, conversation, quiet)).await
    }
}

type Served = Result<(), Box<dyn Error + Send + Sync>>;

async fn serve_http1<S>(
    stream: PacedConnection<S>,
    conversation: Conversation,
    quiet: impl Future<Output = ()>,
) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = conversation.into_service(|body| body);
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    Ok(until(quiet, connection, http1::Connection::graceful_shutdown).await?)
}

async fn serve_http2<S>(stream: PacedConnection<S>, conversation: Conversation) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shutdown = conversation.transport.shutdown.clone();
    let replies = TimedReplies::new(nereid_net::io_runtime::Spawner, conversation.pace.requests());
    let service = conversation.into_service(TimedBody::new);
    let mut protocol = http2::Builder::new(replies);
    // Detects clients that vanished without closing the connection.
    protocol.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
    protocol.max_pending_accept_reset_streams(MAX_PENDING_RESETS);
    let (stream, drain) = Draining::new(stream);
    let connection = protocol.serve_connection(TokioIo::new(stream), service);
    let end = |connection: Pin<&mut http2::Connection<_, _, _>>| {
        drain.begin();
        connection.graceful_shutdown();
    };
    Ok(until(when_woken(shutdown.cancelled()), connection, end).await?)
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
