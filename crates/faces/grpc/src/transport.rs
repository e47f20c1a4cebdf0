//! Connections: accepts them, serves gRPC on each, and ends them gracefully: at shutdown, at their maximum age, when
//! their client disappears, does not speak HTTP/2, or pings too often.

mod pings;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nereid_http2::{Connection, Options, Pings};
use nereid_net::io_runtime::{spawn_connection, when_woken};
use nereid_net::listener::{Activity, Awaited, Listener};
use nereid_net::slow_clients::{Requests, TAKING, TimedWrites, client_stalled};
use nereid_protocol::{Identity, Origin, Principal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::pings::PingLimits;
pub use self::pings::PingRules;
use crate::calls::Calls;
use crate::observed::ObservedCalls;

/// The ALPN protocols of the connections.
pub const PROTOCOLS: &[&str] = &["h2"];

/// The time within which a client must send its first frame.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for the first frame once the connection of a client that has sent none is being closed.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_millis(500);

/// Most calls in progress on one connection. The reference has no limit, and clients hold back calls beyond it, so it is
/// far above what clients open.
const MAX_CALLS: u32 = 1 << 16;

/// Flow-control window of a call: what it may have sent and not had read.
const CALL_WINDOW: u32 = 1 << 20;

/// Flow-control window of a connection, over all its calls.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// Largest head of a call.
const MAX_HEAD: u32 = 16 << 10;

/// Longest frame that a client may send. Each costs a system call and a wake-up of its call: with 256 KiB instead of
/// 64, a request of 1 MiB takes 15 % less CPU time, and 1 MiB saves no more. A partial frame counts neither as memory
/// nor as progress of its call.
const MAX_FRAME: u32 = 256 << 10;

/// Most calls that a client may reset between two polls of its connection. Clients with short deadlines reset thousands
/// while a busy machine keeps the server off the CPU for a second. A client that resets calls as fast as it opens them
/// reaches any limit; this one takes 8 to 14 MB.
const MAX_PENDING_RESETS: usize = 1 << 14;

/// Most calls of one connection, over its life, that this side resets because frames arrived too late for them or broke
/// the protocol. Every early answer leaves such frames behind, so the limit has to be large.
const MAX_ERROR_RESETS: usize = 1 << 20;

/// Keepalive and lifetime settings of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportOptions {
    /// Interval of pings to an idle client; `None` for never.
    pub keepalive_time: Option<Duration>,
    /// How long the client may take to answer a ping.
    pub keepalive_timeout: Duration,
    /// Limits on the client's pings; `None` for none.
    pub pings: Option<PingRules>,
    /// The age at which a connection accepts no further calls; `None` for none.
    pub max_age: Option<Duration>,
    /// The further time after which it is closed with its calls; `None` for none.
    pub max_age_grace: Option<Duration>,
    /// Delay of answers to calls other than inference, for tests of clients; `None` for none.
    pub delay: Option<Duration>,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            keepalive_time: Some(Duration::from_secs(2 * 3600)),
            keepalive_timeout: Duration::from_secs(20),
            pings: None,
            max_age: None,
            max_age_grace: None,
            delay: None,
        }
    }
}

/// Serves `calls` on `listener` until `shutdown`, then drains its connections.
///
/// Returns when the last connection is closed; the caller decides how long that may take.
pub async fn serve(listener: Listener, calls: Calls, options: TransportOptions, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let arrival = tokio::select! {
            arrival = listener.accept() => arrival,
            () = shutdown.cancelled() => break,
        };
        let (calls, shutdown) = (calls.clone(), shutdown.clone());
        let (requests, evicted) = (Arc::new(Requests::default()), CancellationToken::new());
        let activity = Arc::new(Idleness(Arc::clone(&requests)));
        let registered = listener.connections().register(activity, evicted.clone());
        let connection = async move {
            let opened = tokio::select! {
                opened = arrival.open() => opened,
                () = shutdown.cancelled() => return,
                () = evicted.cancelled() => return,
            };
            match opened {
                Ok(connection) => {
                    let calls = calls.of(Identity::of_connection(Origin {
                        certificate: connection.certificate().map(Principal::new),
                        user: connection.user(),
                        address: connection.address(),
                        remote: connection.is_remote(),
                    }));
                    tokio::select! {
                        () = serve_connection(connection, calls, options, requests, shutdown) => {}
                        () = when_woken(evicted.cancelled()) => {
                            tracing::debug!("closed an idle gRPC connection to make room");
                        }
                    }
                }
                Err(error) => tracing::debug!("a gRPC connection failed to open: {error}"),
            }
        };
        spawn_connection(&connections, connection, registered);
    }
    connections.close();
    connections.wait().await;
}

/// Reports to the listener whether a connection is idle.
struct Idleness(Arc<Requests>);

impl Activity for Idleness {
    fn awaited(&self) -> Option<Awaited> {
        self.0.idle_after().map(Awaited::Request)
    }
}

/// The limits of a connection.
pub(crate) fn limits(options: &TransportOptions) -> Options {
    Options {
        max_streams: MAX_CALLS,
        stream_window: CALL_WINDOW,
        connection_window: CONNECTION_WINDOW,
        max_frame: MAX_FRAME,
        max_head: MAX_HEAD,
        max_pending_resets: MAX_PENDING_RESETS,
        max_error_resets: MAX_ERROR_RESETS,
        keepalive: options.keepalive_time.map(|time| (time, options.keepalive_timeout)),
        taking: TAKING,
    }
}

async fn serve_connection<S>(
    stream: S,
    calls: Calls,
    options: TransportOptions,
    requests: Arc<Requests>,
    shutdown: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TimedWrites::new(stream);
    let backlog = stream.backlog();
    let calls = ObservedCalls { calls, delay: options.delay };
    let pings = options.pings.map(|rules| Box::new(PingLimits::new(rules)) as Box<dyn Pings>);
    let mut connection = Connection::new(stream, calls, limits(&options), pings, Arc::clone(&requests));
    let has_started = connection.has_started();
    // Each of these events occurs at most once, but the connection is polled for every frame.
    let ending = when_woken(async {
        tokio::select! {
            () = after(options.max_age.map(with_jitter)) => {}
            () = shutdown.cancelled() => {}
        }
    });
    let is_silent = when_woken(silent(&has_started, FIRST_FRAME_TIMEOUT));
    let served = async {
        let old = async {
            tokio::select! {
                outcome = &mut connection => Some(outcome),
                () = ending => None,
            }
        };
        match old.await {
            Some(outcome) => outcome,
            None => {
                connection.drain();
                tokio::select! {
                    outcome = &mut connection => outcome,
                    () = when_woken(silent(&has_started, LAST_FRAME_TIMEOUT)) => Ok(()),
                    () = when_woken(client_stalled(|| requests.idle_after().filter(|_| !backlog.is_there()))) => Ok(()),
                    () = grace(options, &shutdown) => Ok(()),
                }
            }
        }
    };
    tokio::select! {
        outcome = served => if let Err(error) = outcome {
            tracing::debug!("a gRPC connection ended: {error}");
        },
        () = is_silent => tracing::debug!("a gRPC connection was closed: its client sent no HTTP/2 frame"),
    }
}

/// Returns after this time, or never.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Returns when the grace of an aged connection is over. A server that shuts down has its own limit.
async fn grace(options: TransportOptions, shutdown: &CancellationToken) {
    if options.max_age.is_none() || shutdown.is_cancelled() {
        std::future::pending().await
    } else {
        after(options.max_age_grace).await;
    }
}

/// Returns if the client sends no frame in time.
async fn silent(has_started: &AtomicBool, time: Duration) {
    sleep(time).await;
    if has_started.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

/// An age with up to a tenth of jitter, so that connections opened together do not all reconnect together.
fn with_jitter(age: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    age.mul_f64(0.9 + 0.2 * random)
}

#[cfg(test)]
mod tests;
