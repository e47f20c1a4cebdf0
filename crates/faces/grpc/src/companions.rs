//! The services next to inference: health, and reflection, which describes the protocol to clients.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use nereid_core::Server;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;

use crate::health::Health;
use crate::proto;

/// The prefix of every call of health.
pub(crate) const HEALTH: &str = "/grpc.health.v1.Health/";

type Handler = Box<dyn Fn(Request<Body>) -> BoxFuture<Response<Body>, Infallible> + Send + Sync>;

/// The services next to inference, by name.
pub(crate) struct Companions(Vec<(&'static str, Handler)>);

impl Companions {
    #[expect(clippy::expect_used, reason = "the descriptors are compiled in, and a test reads them")]
    pub(crate) fn new(server: &Arc<Server>, shutdown: &CancellationToken) -> Self {
        let reflection = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let sound = "descriptors that were compiled in are sound";
        let health = Health { server: Arc::clone(server), shutdown: shutdown.clone() };
        Self(vec![
            (HEALTH, handler(HealthServer::new(health))),
            (
                "/grpc.reflection.v1.ServerReflection/",
                ending(handler(reflection().build_v1().expect(sound)), shutdown),
            ),
            (
                "/grpc.reflection.v1alpha.ServerReflection/",
                ending(handler(reflection().build_v1alpha().expect(sound)), shutdown),
            ),
        ])
    }

    /// The service that has this call, if any of these has.
    pub(crate) fn find(&self, path: &str) -> Option<&Handler> {
        self.0.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, handler)| handler)
    }
}

fn handler<S>(service: S) -> Handler
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    Box::new(move |request| service.clone().call(request))
}

/// A service of streams, which clients may keep open as long as they like: they end when the server does.
fn ending(handler: Handler, shutdown: &CancellationToken) -> Handler {
    let shutdown = shutdown.clone();
    Box::new(move |request| {
        let answer = handler(request);
        let shutdown = Some(Box::pin(shutdown.clone().cancelled_owned()));
        Box::pin(async {
            answer.await.map(|answer| answer.map(|body| Body::new(UntilShutdown { body, shutdown })))
        })
    })
}

/// A stream that ends when the server shuts down.
struct UntilShutdown {
    body: Body,
    /// Completes when the server stops; `None` after that was reported.
    shutdown: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl http_body::Body for UntilShutdown {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(shutdown) = &mut self.shutdown else { return Poll::Ready(None) };
        if shutdown.as_mut().poll(context).is_pending() {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        self.shutdown = None;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(
            Status::unavailable("the server is stopping")
                .add_header(&mut trailers)
                .map(|()| Frame::trailers(trailers)),
        ))
    }
}
