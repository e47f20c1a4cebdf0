//! A connection to a server at a Unix socket.

use std::path::Path;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// A connection with one request at a time.
pub(crate) struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    /// # Errors
    /// No server is there.
    pub(crate) async fn open(socket: &Path) -> Result<Self, String> {
        let stream = UnixStream::connect(socket).await.map_err(|error| format!("cannot connect: {error}"))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Ends with the sender, whose answers have the errors of the connection, too.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// The answer to a request without a body.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) async fn ask(&mut self, method: Method, path: &str) -> Result<(StatusCode, Bytes), String> {
        let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        self.send(request.body(Full::default()).map_err(|error| error.to_string())?).await
    }

    /// The answer to a request.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), String> {
        let broken = |error: hyper::Error| format!("the server ended the connection: {error}");
        self.0.ready().await.map_err(broken)?;
        let (head, body) = self.0.send_request(request).await.map_err(broken)?.into_parts();
        Ok((head.status, body.collect().await.map_err(broken)?.to_bytes()))
    }
}
