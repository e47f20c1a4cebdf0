//! Listening sockets: binds an address and accepts connections, in clear text or with TLS.
//!
//! All faces use it. It knows no protocol, except the names by which TLS clients choose one.

#![forbid(unsafe_code)]

mod connection;
#[cfg(test)]
mod testing;
mod tls;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub use connection::Connection;
pub use tls::{Tls, TlsError, TlsFiles};

/// Accepted connections that wait for a thread to serve them, as the reference has it.
const BACKLOG: u32 = 1024;

/// How long to wait before accepting again when the process is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A name, or an address of IPv4 or IPv6.
    pub host: String,
    /// The port; 0 for any free one.
    pub port: u16,
    /// Whether other servers that want this, too, may listen on the same port.
    pub share: bool,
}

impl Address {
    /// Whether both mean the same port. Sharing is for servers that answer alike, so it makes no difference.
    pub fn collides(&self, other: &Self) -> bool {
        self.port != 0 && (&self.host, self.port) == (&other.host, other.port)
    }

    /// Takes the address; nobody can connect yet. Looks the name up, which may block.
    ///
    /// # Errors
    /// Why none of the addresses of that name can be taken.
    pub fn bind(&self) -> io::Result<Bound> {
        let mut outcome = Err(io::Error::other("the name has no address"));
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            outcome = bound(address, self.share);
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map(|socket| Bound { socket })
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

/// An address that is taken.
#[derive(Debug)]
pub struct Bound {
    socket: TcpSocket,
}

impl Bound {
    /// Begins to listen; with `tls`, to nothing else. To be called within a tokio runtime.
    ///
    /// # Errors
    /// Why the address cannot be listened on.
    pub fn listen(self, tls: Option<Tls>) -> io::Result<Listener> {
        if let Some(tls) = &tls {
            tls.follow();
        }
        Ok(Listener { listener: self.socket.listen(BACKLOG)?, tls })
    }
}

/// Where connections arrive.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    tls: Option<Tls>,
}

impl Listener {
    /// The address, with the port that the system chose.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. Waits out what keeps the process from accepting; nothing is lost if it is no longer awaited.
    pub async fn accept(&self) -> Arrival {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    // Answers are written whole; waiting for more to send would only delay them.
                    let _ = stream.set_nodelay(true);
                    return Arrival { stream, tls: self.tls.clone() };
                }
                // The client was gone before it was accepted.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// A connection that arrived, and on which nothing was said yet.
#[derive(Debug)]
pub struct Arrival {
    stream: TcpStream,
    tls: Option<Tls>,
}

impl Arrival {
    /// Makes the connection ready to be served; with TLS this waits for the client, so it is for a task of its own.
    ///
    /// # Errors
    /// Why there is no agreement with the client, or that it took too long.
    pub async fn open(self) -> io::Result<Connection> {
        match self.tls {
            None => Ok(Connection::Plain(self.stream)),
            Some(tls) => Ok(Connection::Tls(Box::new(tls.accept(self.stream).await?))),
        }
    }
}

#[cfg(test)]
mod tests;
