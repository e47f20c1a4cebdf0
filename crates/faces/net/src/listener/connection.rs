//! A connection that is ready to be served, encrypted or not.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::listener::tls;

/// A connection that is ready to be served.
#[derive(Debug)]
pub enum Connection {
    /// In clear text.
    Plain(TcpStream),
    /// A TLS connection, after the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// The name of the client by its certificate, if it had to show one.
    pub fn client(&self) -> Option<String> {
        let Self::Tls(stream) = self else { return None };
        tls::client::name(stream.get_ref().1.peer_certificates()?.first()?)
    }
}

/// Runs the same code for either stream.
macro_rules! with_stream {
    ($connection:expr, $stream:ident => $what:expr) => {
        match $connection.get_mut() {
            Connection::Plain(stream) => {
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
            Self::Plain(stream) => stream.is_write_vectored(),
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
