//! What the tests need: two faces, a server of both, and connections to it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::{Method, StatusCode};
use nereid_net::listener::{Address, Listener};
use nereid_protocol::{ApiGroup, BodyBudget, Restrictions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::mount::Mount;
use crate::{
    Busy, Call, Cors, Encoding, End, Face, Limit, Reply, RequestBody, Route, TransportOptions, compress,
    decompress, reply, serve, unknown_encoding,
};

/// The longest body that [`Echo`] takes.
pub(crate) const MAX_BODY: usize = 4096;

/// Sends bodies back.
#[derive(Default)]
pub(crate) struct Echo {
    pub budget: BodyBudget,
    pub cors: Cors,
    /// Notified when a request to `/hold` is in progress.
    pub held: Arc<Notify>,
    /// Lets it go on.
    pub release: Arc<Notify>,
}

#[derive(Clone, Copy)]
pub(crate) enum EchoAction {
    Live,
    Echo,
    Hold,
    Stream,
    Headers,
    Principal,
}

impl Face for Echo {
    type Action = EchoAction;

    const ROUTES: &'static [Route<EchoAction>] = &[
        Route::new(Method::GET, "/live", ApiGroup::Health, EchoAction::Live),
        Route::open(Method::POST, "/echo", EchoAction::Echo),
        Route::open(Method::POST, "/hold", EchoAction::Hold),
        Route::open(Method::GET, "/stream", EchoAction::Stream),
        Route::open(Method::POST, "/headers", EchoAction::Headers),
        Route::open(Method::GET, "/principal", EchoAction::Principal),
    ];

    fn body_limit(&self) -> Limit {
        Limit { bytes: MAX_BODY, option: "--max-body" }
    }

    fn body_budget(&self) -> Option<&BodyBudget> {
        Some(&self.budget)
    }

    fn cors(&self) -> Option<&Cors> {
        Some(&self.cors)
    }

    fn keeps_spelling(&self) -> bool {
        true
    }

    async fn perform(&self, action: EchoAction, call: &Call<'_>, mut body: RequestBody) -> Reply {
        match action {
            EchoAction::Live => reply::empty(StatusCode::OK),
            EchoAction::Hold => {
                self.held.notify_one();
                self.release.notified().await;
                reply::empty(StatusCode::OK)
            }
            EchoAction::Stream => {
                let events = Events { left: 3, _busy: call.busy() };
                reply::stream(StatusCode::OK, "text/event-stream", events)
            }
            EchoAction::Headers => {
                let names: Vec<_> = call.spelled_headers().map(|(name, _)| name).collect();
                reply::bytes(StatusCode::OK, "text/plain", names.join(" "))
            }
            EchoAction::Principal => {
                let name = call.principal.map_or_else(String::new, ToString::to_string);
                reply::bytes(StatusCode::OK, "text/plain", name)
            }
            EchoAction::Echo => {
                match Encoding::of_request(call.headers) {
                    Ok(Encoding::Identity) => {}
                    Ok(_) => match decompress(body, Face::body_limit(self), &self.budget).await {
                        Ok(plain) => body = plain,
                        Err(error) => return reply::error(&error),
                    },
                    Err(unknown) => return unknown_encoding(&unknown),
                }
                let contents = body.take_joined(body.len()).unwrap();
                let reply = reply::bytes(StatusCode::OK, "text/plain", contents);
                compress(reply, Encoding::of_reply(call.headers), &self.budget).await
            }
        }
    }
}

/// A body of three pieces.
struct Events {
    left: usize,
    _busy: Busy,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"data: x\n\n")))))
    }
}

/// Pages under a restricted group, and a second method for a path of [`Echo`].
pub(crate) struct Admin(pub Restrictions);

impl Admin {
    /// One whose pages require header `key` with value `v`.
    pub(crate) fn restricted() -> Self {
        Self(Restrictions::new(["logging:key=v".parse().unwrap()]).unwrap())
    }
}

#[derive(Clone, Copy)]
pub(crate) enum AdminAction {
    Page,
    Ping,
}

impl Face for Admin {
    type Action = AdminAction;

    const ROUTES: &'static [Route<AdminAction>] = &[
        Route::new(Method::GET, "/pages/{page}/versions/{version}", ApiGroup::Logging, AdminAction::Page),
        Route::open(Method::POST, "/live", AdminAction::Ping),
    ];

    fn accepts(parameter: &str, segment: &str) -> bool {
        parameter != "version" || segment.parse::<u32>().is_ok()
    }

    fn restrictions(&self) -> Option<&Restrictions> {
        Some(&self.0)
    }

    fn body_limit(&self) -> Limit {
        Limit::NOTHING
    }

    async fn perform(&self, action: AdminAction, call: &Call<'_>, _: RequestBody) -> Reply {
        match action {
            AdminAction::Page => {
                let page = call.params.get("page").unwrap();
                let version = call.params.get("version").unwrap();
                reply::bytes(StatusCode::OK, "text/plain", format!("{page} {version}"))
            }
            AdminAction::Ping => reply::bytes(StatusCode::OK, "text/plain", "pong"),
        }
    }
}

/// A server on a port of its own.
pub(crate) struct Serving {
    pub address: SocketAddr,
    pub closing: CancellationToken,
    pub shutdown: CancellationToken,
    pub serving: JoinHandle<()>,
}

fn listener() -> Listener {
    Address { host: "127.0.0.1".into(), port: 0, share: false }.bind().unwrap().listen(None).unwrap()
}

pub(crate) fn serving(mount: impl Mount) -> Serving {
    serving_with(mount, TransportOptions::default())
}

pub(crate) fn serving_with(mount: impl Mount, options: TransportOptions) -> Serving {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let closing = shutdown.child_token();
    let end = End { closing: closing.clone(), shutdown: shutdown.clone() };
    let serving = tokio::spawn(serve(listener, mount, options, end));
    Serving { address, closing, shutdown, serving }
}

impl Serving {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// The whole reply to one request on a connection of its own.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let mut stream = self.connect().await;
        let head = request_head(method, path, &format!("Connection: close\r\n{headers}"), body.len());
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        reply
    }

    /// The same as text.
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
