//! Listening sockets: binds an address and accepts connections, in clear text or with TLS.
//!
//! All faces use this module. It depends on no protocol, except for the ALPN names by which TLS clients choose one.

mod connection;
mod connections;
#[cfg(test)]
mod testing;
mod tls;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, sleep};

use crate::listener::connections::CHECK_INTERVAL;
pub use connection::Connection;
pub use connections::{Activity, Awaited, ConnectionGuard, Connections};
pub use tls::{Tls, TlsError, TlsFiles};

/// Connections that wait to be accepted, as in the reference.
const BACKLOG: u32 = 1024;

/// Pause before accepting again when the process is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Number of idle connections closed when the process is out of file descriptors, and the time limit for that.
const EVICTED_AT_ONCE: usize = 16;
const EVICTION_PAUSE: Duration = Duration::from_millis(5);

/// Minimum interval between logged accept failures: while descriptors are out, twenty occur per second.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A host name, or an IPv4 or IPv6 address.
    pub host: String,
    /// The port; 0 for any free one.
    pub port: u16,
    /// Whether other processes that set this, too, may listen on the same port.
    pub share: bool,
}

impl Address {
    /// Whether both use the same port. Sharing a port makes no difference: it is for processes that serve the same.
    pub fn collides(&self, other: &Self) -> bool {
        self.port != 0 && (&self.host, self.port) == (&other.host, other.port)
    }

    /// Binds the address; connections are refused until listening. Resolves the name, which may block.
    ///
    /// # Errors
    /// None of the name's addresses can be bound.
    pub fn bind(&self) -> io::Result<BoundAddress> {
        let mut outcome = Err(io::Error::other("the host name has no address"));
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            outcome = bound(address, self.share);
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map(|socket| BoundAddress { socket })
    }
}

fn bound(address: SocketAddr, share: bool) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    if share {
        socket.set_reuseport(true)?;
    }
    socket.bind(address)?;
    Ok(socket)
}

/// A bound address.
#[derive(Debug)]
pub struct BoundAddress {
    socket: TcpSocket,
}

impl BoundAddress {
    /// Starts to listen; with `tls`, for TLS only. Call it within a tokio runtime.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(self, tls: Option<Tls>) -> io::Result<Listener> {
        if let Some(tls) = &tls {
            tls.watch();
        }
        let (listener, connections) = (self.socket.listen(BACKLOG)?, Connections::default());
        Ok(Listener { listener, tls, connections, complaints: Complaints::default() })
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    tls: Option<Tls>,
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
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts the next connection. Waits out temporary failures: when descriptors run out, the connection that has been
    /// idle longest is closed. Cancel safe.
    pub async fn accept(&self) -> Arrival {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = sleep(CHECK_INTERVAL) => {
                    self.connections.look();
                    continue;
                }
            };
            match accepted {
                Ok((stream, _)) => {
                    // Replies are written whole; waiting for more data would only delay them.
                    let _ = stream.set_nodelay(true);
                    return Arrival { stream, tls: self.tls.clone() };
                }
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

/// An accepted connection, before any handshake.
#[derive(Debug)]
pub struct Arrival {
    stream: TcpStream,
    tls: Option<Tls>,
}

impl Arrival {
    /// Prepares the connection for serving. With TLS this waits for the client, so call it in a separate task.
    ///
    /// # Errors
    /// The TLS handshake failed or timed out.
    pub async fn open(self) -> io::Result<Connection> {
        match self.tls {
            None => Ok(Connection::Plain(self.stream)),
            Some(tls) => Ok(Connection::Tls(Box::new(tls.accept(self.stream).await?))),
        }
    }
}

#[cfg(test)]
mod tests;
