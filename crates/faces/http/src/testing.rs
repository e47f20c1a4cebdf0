//! Test fixtures: two faces, a server with both, and connections to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_net::listener::{Address, Listener};
use nereid_protocol::{Access, Action, Principal, Restrictions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    Call, Cors, Encoding, End, EventSource, Face, Limit, PendingReply, Properties, Reply, RequestBody, Route,
    RouteId, RouteMatch, Router, Routes, TransportOptions, compress, decompress, events, reply, serve,
    unknown_encoding,
};

/// The longest body that [`Echo`] takes.
pub(crate) const MAX_BODY: usize = 4096;

/// Sends bodies back.
pub(crate) struct Echo {
    pub properties: Properties,
    /// Notified when a request to `/hold` is in progress.
    pub held: Arc<Notify>,
    /// Releases that request.
    pub release: Arc<Notify>,
}

impl Default for Echo {
    fn default() -> Self {
        let properties = Properties {
            body_limit: Limit { bytes: MAX_BODY, option: "--max-body" },
            keeps_spelling: true,
            ..Properties::default()
        };
        Self { properties, held: Arc::default(), release: Arc::default() }
    }
}

impl Echo {
    /// A face for web pages.
    pub(crate) fn with_cors(cors: Cors) -> Self {
        let mut face = Self::default();
        face.properties.cors = cors;
        face
    }

    async fn echo(&self, call: &Call<'_>, mut body: RequestBody) -> Reply {
        let budget = &self.properties.body_budget;
        match Encoding::of_request(call.headers) {
            Ok(Encoding::Identity) => {}
            Ok(_) => match decompress(body, self.properties.body_limit, budget).await {
                Ok(plain) => body = plain,
                Err(error) => return reply::error(&error),
            },
            Err(unknown) => return unknown_encoding(&unknown),
        }
        let contents = body.take_joined(body.len()).unwrap();
        let reply = reply::bytes(StatusCode::OK, "text/plain", contents);
        compress(reply, Encoding::of_reply(call.headers), budget).await
    }
}

#[derive(Clone, Copy)]
enum EchoHandler {
    Live,
    Echo,
    Hold,
    Stream,
    Headers,
    Principal,
}

const ECHO: Routes<EchoHandler> = Routes::new(
    const {
        &[
            Route::new(Method::GET, "/live", Action::Health, EchoHandler::Live),
            Route::new(Method::POST, "/echo", Action::Infer, EchoHandler::Echo),
            Route::new(Method::POST, "/hold", Action::Infer, EchoHandler::Hold),
            Route::new(Method::GET, "/stream", Action::Infer, EchoHandler::Stream),
            Route::new(Method::POST, "/headers", Action::Infer, EchoHandler::Headers),
            Route::new(Method::GET, "/principal", Action::Metadata, EchoHandler::Principal),
        ]
    },
);

impl Face for Echo {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        ECHO.find(head)
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, body: RequestBody) -> PendingReply<'a> {
        Box::pin(async move {
            match ECHO.handler(route).unwrap() {
                EchoHandler::Live => reply::empty(StatusCode::OK),
                EchoHandler::Hold => {
                    self.held.notify_one();
                    self.release.notified().await;
                    reply::empty(StatusCode::OK)
                }
                EchoHandler::Stream => events(StatusCode::OK, None, Countdown(3), call.busy()),
                EchoHandler::Headers => {
                    let names: Vec<_> = call.spelled_headers().map(|(name, _)| name).collect();
                    reply::bytes(StatusCode::OK, "text/plain", names.join(" "))
                }
                EchoHandler::Principal => {
                    let name = call.caller.principal.as_ref().map_or("", Principal::name);
                    reply::bytes(StatusCode::OK, "text/plain", name.to_owned())
                }
                EchoHandler::Echo => self.echo(call, body).await,
            }
        })
    }
}

/// A stream of this many events.
struct Countdown(usize);

impl EventSource for Countdown {
    fn poll_event(&mut self, _: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.0 = match self.0.checked_sub(1) {
            Some(left) => left,
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(b"x".to_vec()))
    }
}

/// Pages under a restricted group, and a second method for a path of [`Echo`].
pub(crate) struct Admin(pub Properties);

impl Admin {
    /// A face whose pages require header `key` with value `v`.
    pub(crate) fn restricted() -> Self {
        let restrictions = Restrictions::new(["logging:key=v".parse().unwrap()]).unwrap();
        Self::with_access(restrictions.into())
    }

    pub(crate) fn with_access(access: Access) -> Self {
        Self(Properties { access, ..Properties::default() })
    }
}

#[derive(Clone, Copy)]
enum AdminHandler {
    Page,
    Ping,
}

const ADMIN: Routes<AdminHandler> = Routes::new(
    const {
        &[
            Route::new(Method::GET, "/pages/{page}/versions/{version}", Action::ReadLog, AdminHandler::Page),
            Route::new(Method::POST, "/live", Action::Health, AdminHandler::Ping),
        ]
    },
)
.accepting(|parameter, segment| parameter != "version" || segment.parse::<u32>().is_ok());

impl Face for Admin {
    fn properties(&self) -> &Properties {
        &self.0
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        ADMIN.find(head)
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, _: RequestBody) -> PendingReply<'a> {
        let text = match ADMIN.handler(route).unwrap() {
            AdminHandler::Page => {
                let page = call.params.get("page").unwrap();
                let version = call.params.get("version").unwrap();
                format!("{page} {version}")
            }
            AdminHandler::Ping => "pong".to_owned(),
        };
        Box::pin(async { reply::bytes(StatusCode::OK, "text/plain", text) })
    }
}

/// A server on a free port.
pub(crate) struct Serving {
    pub address: SocketAddr,
    pub closing: CancellationToken,
    pub shutdown: CancellationToken,
    pub serving: JoinHandle<()>,
}

fn listener() -> Listener {
    Address::tcp("127.0.0.1", 0).bind().unwrap().listen(None).unwrap()
}

pub(crate) fn serving(router: impl Into<Router>) -> Serving {
    serving_with(router, TransportOptions::default())
}

pub(crate) fn serving_with(router: impl Into<Router>, options: TransportOptions) -> Serving {
    let listener = listener();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let shutdown = CancellationToken::new();
    let closing = shutdown.child_token();
    let end = End { closing: closing.clone(), shutdown: shutdown.clone() };
    let serving = tokio::spawn(serve(listener, router.into(), options, end));
    Serving { address, closing, shutdown, serving }
}

impl Serving {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends one request on a new connection and returns the whole reply.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let mut stream = self.connect().await;
        let head = request_head(method, path, &format!("Connection: close\r\n{headers}"), body.len());
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        reply
    }

    /// Like `ask`, with the reply as text.
    pub(crate) async fn ask_text(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        String::from_utf8(self.ask(method, path, headers, body.as_bytes()).await).unwrap()
    }
}

/// The head of a request. Headers end with a line break each.
pub(crate) fn request_head(method: &str, path: &str, headers: &str, length: usize) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n")
}

/// The status in a reply.
pub(crate) fn status(reply: &str) -> &str {
    reply.split(' ').nth(1).unwrap()
}
