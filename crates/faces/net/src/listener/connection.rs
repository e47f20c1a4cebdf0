//! A connection that is ready to be served, encrypted or not.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::io_runtime::is_in_lane;
use crate::listener::tls::{self, Tls};

/// An accepted connection, before any handshake.
#[derive(Debug)]
pub enum Arrival {
    /// At a port, with the TLS settings if it is for TLS.
    Tcp(TcpStream, Option<Tls>),
    /// At a Unix socket.
    Unix(UnixStream),
}

impl Arrival {
    /// Prepares the connection for serving by the task that calls. With TLS this waits for the client, so call it in a separate task.
    ///
    /// # Errors
    /// The TLS handshake failed or timed out, or the system cannot watch the connection.
    pub async fn open(self) -> io::Result<Connection> {
        Ok(match if is_in_lane() { self.moved_here()? } else { self } {
            Self::Tcp(stream, None) => Connection::Tcp(stream),
            Self::Tcp(stream, Some(tls)) => Connection::Tls(Box::new(tls.accept(stream).await?)),
            Self::Unix(stream) => Connection::Unix(stream),
        })
    }

    /// Has the runtime of the caller watch the connection, instead of the one that accepted it.
    fn moved_here(self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream, tls) => Self::Tcp(TcpStream::from_std(stream.into_std()?)?, tls),
            Self::Unix(stream) => Self::Unix(UnixStream::from_std(stream.into_std()?)?),
        })
    }
}

/// A connection that is ready to be served.
#[derive(Debug)]
pub enum Connection {
    /// In clear text, at a port.
    Tcp(TcpStream),
    /// In clear text, at a Unix socket.
    Unix(UnixStream),
    /// A TLS connection, after the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    /// Whether the connection comes from another machine, judged by its addresses.
    pub fn is_remote(&self) -> bool {
        let Some(stream) = self.tcp() else { return false };
        // Closed connections have no addresses, and send no more requests.
        let (Ok(client), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else { return true };
        is_remote(client.ip(), here.ip())
    }

    /// The client's address, unless it is at a Unix socket.
    pub fn address(&self) -> Option<IpAddr> {
        Some(self.tcp()?.peer_addr().ok()?.ip().to_canonical())
    }

    /// The user of the client's process when it connected, if it is at a Unix socket.
    pub fn user(&self) -> Option<u32> {
        let Self::Unix(stream) = self else { return None };
        stream.peer_cred().ok().map(|credentials| credentials.uid())
    }

    /// The name of the client by its certificate, if it had to show one.
    pub fn certificate(&self) -> Option<String> {
        let Self::Tls(stream) = self else { return None };
        tls::client::name(stream.get_ref().1.peer_certificates()?.first()?)
    }
}

/// Whether a client at this address is on another machine than the server, which it reached at the address `here`.
fn is_remote(client: IpAddr, here: IpAddr) -> bool {
    let client = client.to_canonical();
    !client.is_loopback() && client != here.to_canonical()
}

/// Runs the same code for either stream.
macro_rules! with_stream {
    ($connection:expr, $stream:ident => $what:expr) => {
        match $connection.get_mut() {
            Connection::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $what
            }
            Connection::Unix(stream) => {
                let $stream = Pin::new(stream);
                $what
            }
            Connection::Tls(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $what
            }
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_this_machine_are_told_from_others() {
        for (client, here, remote) in [
            ("127.0.0.1", "127.0.0.1", false),
            ("127.3.2.1", "127.0.0.1", false),
            ("::1", "::1", false),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", false),
            ("192.0.2.7", "192.0.2.7", false),
            ("::ffff:192.0.2.7", "192.0.2.7", false),
            ("fe80::1", "fe80::1", false),
            ("192.0.2.8", "192.0.2.7", true),
            ("::ffff:192.0.2.8", "::ffff:192.0.2.7", true),
            ("172.17.0.1", "172.17.0.2", true),
            ("fe80::2", "fe80::1", true),
            ("0.0.0.0", "127.0.0.1", true),
        ] {
            assert_eq!(
                is_remote(client.parse().unwrap(), here.parse().unwrap()),
                remote,
                "{client} at {here}"
            );
        }
    }
}
