//! Listening sockets: binds an address and accepts connections, in clear text or with TLS.
//!
//! All faces use this module. It depends on no protocol, except for the ALPN names by which TLS clients choose one.

mod address;
mod connection;
mod connections;
#[cfg(test)]
mod testing;
mod tls;
mod unix;

use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::address::Accepting;
use crate::listener::connections::CHECK_INTERVAL;
pub use address::{Address, BoundAddress, Host, LocalAddress, TcpAddress};
pub use connection::{Arrival, Connection};
pub use connections::{Activity, Awaited, ConnectionGuard, Connections};
pub use tls::{Tls, TlsError, TlsFiles};
pub use unix::UnixAddress;

/// Connections that wait to be accepted, as in the reference.
const BACKLOG: u32 = 1024;

/// Pause before accepting again when the process is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Number of idle connections closed when the process is out of file descriptors, and the time limit for that.
const EVICTED_AT_ONCE: usize = 16;
const EVICTION_PAUSE: Duration = Duration::from_millis(5);

/// Minimum interval between logged accept failures: while descriptors are out, twenty occur per second.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

impl BoundAddress {
    /// Starts to listen; with `tls`, for TLS only. Call it within a tokio runtime.
    ///
    /// # Errors
    /// The system's error, or TLS for a Unix socket.
    pub fn listen(self, tls: Option<Tls>) -> io::Result<Listener> {
        let (socket, connections) = (self.accepting(tls)?, Connections::default());
        Ok(Listener { socket, connections, complaints: Complaints::default() })
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: Accepting,
    connections: Connections,
    complaints: Complaints,
}

/// Time of the last logged accept failure.
#[derive(Debug, Default)]
struct Complaints(Mutex<Option<Instant>>);

impl Complaints {
    /// Whether to log another failure.
    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

impl Listener {
    /// Shares the registry of open connections with other listeners.
    #[must_use]
    pub fn among(self, connections: &Connections) -> Self {
        Self { connections: connections.for_another_port(), ..self }
    }

    /// The registry of connections from which an idle one is closed when descriptors run out. The face that serves a
    /// connection registers it.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The local address, with the port chosen by the system.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<LocalAddress> {
        self.socket.local_addr()
    }

    /// Accepts the next connection. Waits out temporary failures: when descriptors run out, the connection that has been
    /// idle longest is closed. Cancel safe.
    pub async fn accept(&self) -> Arrival {
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = sleep(CHECK_INTERVAL) => {
                    self.connections.look();
                    continue;
                }
            };
            match accepted {
                Ok(arrival) => return arrival,
                // The client disconnected before it was accepted.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                Err(error) => {
                    if self.complaints.is_due() {
                        tracing::warn!("cannot accept connections: {error}");
                    }
                    // Several at once, as several clients wait. They are closed at once, or within the next pauses.
                    let evicted = self.connections.evict_of_all(EVICTED_AT_ONCE);
                    sleep(if evicted > 0 { EVICTION_PAUSE } else { ACCEPT_PAUSE }).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
