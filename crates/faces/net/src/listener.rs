//! Listening sockets: binds an address and accepts connections, in clear text or with TLS.
//!
//! All faces use it. It knows no protocol, except the names by which TLS clients choose one.

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

use crate::listener::connections::LOOK_INTERVAL;
pub use connection::Connection;
pub use connections::{Activity, Awaited, ConnectionGuard, Connections};
pub use tls::{Tls, TlsError, TlsFiles};

/// Connections that wait to be accepted, as in the reference.
const BACKLOG: u32 = 1024;

/// How long to wait before accepting again when the process is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How many idle connections are closed when the process is out of file descriptors, and how long that may take.
const EVICTED_AT_ONCE: usize = 16;
const EVICTION_PAUSE: Duration = Duration::from_millis(5);

/// How often failures to accept are logged: there are twenty a second while descriptors are out.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// Where to listen.
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
    /// Whether both name the same port. Sharing makes no difference: it is for processes that answer alike.
    pub fn collides(&self, other: &Self) -> bool {
        self.port != 0 && (&self.host, self.port) == (&other.host, other.port)
    }

    /// Binds the address; nobody can connect yet. Resolves the name, which may block.
    ///
    /// # Errors
    /// Why none of the name's addresses can be bound.
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

/// An address that is bound.
#[derive(Debug)]
pub struct BoundAddress {
    socket: TcpSocket,
}

impl BoundAddress {
    /// Starts to listen; with `tls`, for TLS only. Call it within a tokio runtime.
    ///
    /// # Errors
    /// Why the system refuses.
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

/// When a failure to accept was last logged.
#[derive(Debug, Default)]
struct Complaints(Mutex<Option<Instant>>);

impl Complaints {
    /// Whether another failure is to be logged.
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
    /// The same, whose connections are among those of other listeners.
    #[must_use]
    pub fn among(self, connections: &Connections) -> Self {
        Self { connections: connections.of_another_port(), ..self }
    }

    /// The connections of which an idle one makes room when descriptors run out. Who serves a connection registers it.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The address, with the port that the system chose.
    ///
    /// # Errors
    /// Why the system cannot tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts the next connection. Waits out temporary failures: when descriptors run out, the connection that has been
    /// idle longest is closed. Cancel safe.
    pub async fn accept(&self) -> Arrival {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = sleep(LOOK_INTERVAL) => {
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
                // The client left before it was accepted.
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
    /// Makes the connection ready to be served. With TLS this waits for the client, so call it in a task of its own.
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
