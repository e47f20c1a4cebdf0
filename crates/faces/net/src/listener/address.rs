//! Addresses to listen on: TCP ports and Unix sockets.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use tokio::net::{TcpListener, TcpSocket, UnixListener};

use super::BACKLOG;
use super::connection::Arrival;
use super::tls::Tls;
use super::unix::{self, SocketFile, UnixAddress};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp(TcpAddress),
    /// A Unix socket.
    Unix(UnixAddress),
}

/// A TCP port to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpAddress {
    /// A host name, or an IPv4 or IPv6 address.
    pub host: String,
    /// The port; 0 for any free one.
    pub port: u16,
    /// Whether other processes that set this, too, may listen on the same port.
    pub share: bool,
}

/// A host to listen on, or a Unix socket in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A host name, or an IPv4 or IPv6 address.
    Name(String),
    /// A Unix socket, `unix:/path` or `unix:/path?mode=0660`.
    Unix(UnixAddress),
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            None => Ok(Self::Name(text.to_owned())),
            Some(path) => UnixAddress::parse(path).map(Self::Unix),
        }
    }
}

impl Host {
    /// This port of the host, or the Unix socket, which has no ports.
    pub fn at(&self, port: u16, share: bool) -> Address {
        match self {
            Self::Name(host) => Address::Tcp(TcpAddress { host: host.clone(), port, share }),
            Self::Unix(address) => Address::Unix(address.clone()),
        }
    }
}

impl Address {
    /// A port that is not shared.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp(TcpAddress { host: host.into(), port, share: false })
    }

    /// The TCP port, if it is one.
    pub fn as_tcp(&self) -> Option<&TcpAddress> {
        match self {
            Self::Tcp(address) => Some(address),
            Self::Unix(_) => None,
        }
    }

    /// Whether both use the same port or socket. Sharing a port makes no difference: it is for processes that serve the same.
    pub fn collides(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                one.port != 0 && (&one.host, one.port) == (&other.host, other.port)
            }
            (Self::Unix(one), Self::Unix(other)) => one.path == other.path,
            _ => false,
        }
    }

    /// Binds the address; connections to a port are refused until listening, connections to a Unix socket wait. Resolves the
    /// name, which may block.
    ///
    /// # Errors
    /// None of the name's addresses can be bound, or the socket's file cannot be made.
    pub fn bind(&self) -> io::Result<BoundAddress> {
        match self {
            Self::Tcp(address) => address.bind().map(BoundAddress::Tcp),
            Self::Unix(address) => address.bind().map(BoundAddress::Unix),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(TcpAddress { host, port, .. }) => write!(f, "{host}:{port}"),
            Self::Unix(address) => write!(f, "unix:{}", address.path.display()),
        }
    }
}

impl TcpAddress {
    fn bind(&self) -> io::Result<TcpSocket> {
        let mut outcome = Err(io::Error::other("the host name has no address"));
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            outcome = bound(address, self.share);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
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
pub enum BoundAddress {
    /// A TCP port.
    Tcp(TcpSocket),
    /// A Unix socket.
    Unix(unix::BoundSocket),
}

impl BoundAddress {
    /// Starts to listen. Call it within a tokio runtime.
    pub(super) fn accepting(self, tls: Option<Tls>) -> io::Result<Accepting> {
        match (self, tls) {
            (Self::Tcp(socket), tls) => {
                if let Some(tls) = &tls {
                    tls.watch();
                }
                Ok(Accepting::Tcp(socket.listen(BACKLOG)?, tls))
            }
            (Self::Unix(socket), None) => {
                let (listener, file) = socket.listen()?;
                Ok(Accepting::Unix(listener, file))
            }
            (Self::Unix(_), Some(_)) => {
                Err(io::Error::new(ErrorKind::InvalidInput, "TLS is for ports, not for Unix sockets"))
            }
        }
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(super) enum Accepting {
    Tcp(TcpListener, Option<Tls>),
    /// Removes the file when it is dropped.
    Unix(UnixListener, SocketFile),
}

impl Accepting {
    /// Accepts the next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Arrival> {
        match self {
            Self::Tcp(listener, tls) => {
                let (stream, _) = listener.accept().await?;
                // Replies are written whole; waiting for more data would only delay them.
                let _ = stream.set_nodelay(true);
                Ok(Arrival::Tcp(stream, tls.clone()))
            }
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Arrival::Unix(stream)),
        }
    }

    pub(super) fn local_addr(&self) -> io::Result<LocalAddress> {
        match self {
            Self::Tcp(listener, _) => listener.local_addr().map(LocalAddress::Tcp),
            Self::Unix(_, file) => Ok(LocalAddress::Unix(file.path().to_owned())),
        }
    }
}

/// The address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddress {
    /// A TCP port; never 0.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl LocalAddress {
    /// The TCP port, if it is one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(path: &str, mode: u32) -> Host {
        Host::Unix(UnixAddress { path: path.into(), mode })
    }

    #[test]
    fn hosts_are_names_or_unix_sockets() {
        for (text, expected) in [
            ("0.0.0.0", Some(Host::Name("0.0.0.0".into()))),
            ("::1", Some(Host::Name("::1".into()))),
            ("unix", Some(Host::Name("unix".into()))),
            ("unix:/run/n.sock", Some(unix("/run/n.sock", 0o660))),
            ("unix:///run/n.sock", Some(unix("/run/n.sock", 0o660))),
            ("unix:n.sock", Some(unix("n.sock", 0o660))),
            ("unix:/n?mode=0600", Some(unix("/n", 0o600))),
            ("unix:/n?mode=666", Some(unix("/n", 0o666))),
            ("unix:", None),
            ("unix:?mode=0600", None),
            ("unix://host/n", None),
            ("unix:/n?mode=", None),
            ("unix:/n?mode=0680", None),
            ("unix:/n?mode=1777", None),
            ("unix:/n?mode=+600", None),
            ("unix:/n?mod=0600", None),
            ("unix:/n?mode=0600&x=1", None),
        ] {
            assert_eq!(text.parse::<Host>().ok(), expected, "{text}");
        }
    }

    #[test]
    fn addresses_collide_where_a_client_could_not_tell_them_apart() {
        let host = |text: &str| text.parse::<Host>().unwrap();
        for (one, port, other, other_port, expected) in [
            ("a", 1, "a", 1, true),
            ("a", 1, "a", 2, false),
            ("a", 1, "b", 1, false),
            ("a", 0, "a", 0, false),
            ("unix:/a", 1, "unix:/a?mode=0600", 2, true),
            ("unix:/a", 1, "unix:/b", 1, false),
            ("unix:/a", 1, "/a", 1, false),
        ] {
            let (first, second) = (host(one).at(port, false), host(other).at(other_port, true));
            assert_eq!(
                (first.collides(&second), second.collides(&first)),
                (expected, expected),
                "{one} {other}"
            );
        }
    }
}
