//! Test fixtures of the face: a server with one scripted model, and connections to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use nereid_core::backend_api::{Backend, Request};
use nereid_core::{ModelId, ModelSpec, Server, ServerOptions};
use nereid_http::TransportOptions;
use nereid_net::listener::Address;
use nereid_testkit::{ScriptedBackend, config, scripts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::HttpOptions;

/// A server on a free port.
pub(crate) struct Serving {
    address: SocketAddr,
}

pub(crate) fn http_options() -> HttpOptions {
    HttpOptions { max_input_size: 1024, max_body_size: 4096, ..HttpOptions::default() }
}

/// A server with model `m` of this configuration, which does `script` with each request.
pub(crate) fn server(text: &str, script: impl Fn(Request) + Send + Sync + 'static) -> Arc<Server> {
    server_with(options(), text, script)
}

/// Like [`server`], with these options.
pub(crate) fn server_with(
    options: ServerOptions,
    text: &str,
    script: impl Fn(Request) + Send + Sync + 'static,
) -> Arc<Server> {
    let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::answering(script));
    let spec = ModelSpec::new(ModelId::plain("m"), "m", config("m", text), [1]);
    let backends = BTreeMap::from([("scripted".to_owned(), backend)]);
    let server = Server::new(options, backends, Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))])));
    assert!(server.start(None).unwrap().is_empty());
    assert!(server.is_ready());
    server
}

/// A server without models.
pub(crate) fn empty_server() -> Arc<Server> {
    Server::new(options(), BTreeMap::new(), Arc::new(BTreeMap::new()))
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions {
        name: "test".into(),
        version: "0".into(),
        strict_readiness: true,
        load_threads: 1,
        ..ServerOptions::default()
    }
}

/// Serves on a free port.
pub(crate) async fn serve(server: Arc<Server>, options: HttpOptions) -> Serving {
    let address = Address::tcp("127.0.0.1", 0);
    let listener = address.bind().unwrap().listen(None).unwrap();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let face = crate::KserveHttp::new(server, options);
    let (transport, shutdown) = (TransportOptions::default(), CancellationToken::new());
    tokio::spawn(nereid_http::serve(listener, face, transport, shutdown));
    Serving { address }
}

impl Serving {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends one request on a new connection and returns the whole reply.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        String::from_utf8(self.send(method, path, headers, body.as_bytes()).await).unwrap()
    }

    /// Like [`ask`](Self::ask), with bytes that need not be UTF-8.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let mut stream = self.connect().await;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> String {
        self.ask("POST", path, "", body).await
    }
}

/// A request as sent. Headers end with a line break each.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

/// Answers with the inputs under the names of outputs, `INn` as `OUTn`, and with the parameters of the request.
pub(crate) fn echo(request: Request) {
    let response = scripts::echoed(&request);
    request.answer(Ok(response));
}
