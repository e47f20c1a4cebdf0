//! The metrics as an HTTP face.
//!
//! As in the reference, `/metrics` and `/metrics/` return the text, any other path an empty reply, and methods other
//! than GET are refused. A flood on this port does not slow down inference: connections are limited, idle ones are
//! closed, and few texts are written at a time, on blocking threads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_core::Server;
use nereid_http::{
    Call, Face, PendingReply, Properties, Reply, RequestBody, Route, RouteId, RouteMatch, Routes,
    TransportOptions, reply,
};
use nereid_protocol::{Access, Action};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::Exposition;

/// Number of texts written concurrently.
const MAX_TEXTS: usize = 2;

const TEXT: &str = "text/plain; charset=utf-8";

/// Transport options of the metrics port. Collectors with persistent connections poll at least once a minute.
pub const TRANSPORT: TransportOptions = TransportOptions {
    max_connections: Some(256),
    idle_timeout: Some(Duration::from_secs(150)),
    http2: false,
};

/// The metrics of a server, to be mounted on a transport.
pub struct Metrics {
    server: Arc<Server>,
    exposition: Arc<Exposition>,
    texts: Semaphore,
    properties: Properties,
}

/// Whether a path serves the metrics or an empty reply.
#[derive(Clone, Copy, Debug)]
enum Page {
    Text,
    Empty,
}

static ROUTES: Routes<Page> = Routes::new({
    const ALL: &[Route<Page>] = &[
        Route::new(Method::GET, "/metrics", Action::Metrics, Page::Text),
        Route::new(Method::GET, "/metrics/", Action::Metrics, Page::Text),
        Route::new(Method::GET, "*", Action::Metrics, Page::Empty),
    ];
    ALL
});

impl Metrics {
    /// The metrics of `server`.
    pub fn new(server: Arc<Server>, exposition: Arc<Exposition>, access: Access) -> Self {
        let properties = Properties { access, ..Properties::default() };
        Self { server, exposition, texts: Semaphore::new(MAX_TEXTS), properties }
    }

    /// The metrics that the caller may read.
    pub async fn text(&self, call: &Call<'_>) -> Reply {
        // The semaphore is never closed.
        let _slot = self.texts.acquire().await;
        let (server, exposition) = (Arc::clone(&self.server), Arc::clone(&self.exposition));
        let may_read_all = call.may(Action::MachineMetrics, None);
        let models = (!may_read_all).then(|| {
            let models = server.models();
            let ids = models.index().map(|status| status.id);
            ids.filter(|id| call.shows(Action::Metrics, id)).collect::<BTreeSet<_>>()
        });
        let write = move || match models {
            None => exposition.text(&server),
            Some(models) => exposition.text_of(&server, |model| models.contains(model)),
        };
        match spawn_blocking(write).await {
            Ok(text) => reply::bytes(StatusCode::OK, TEXT, text),
            Err(error) => {
                tracing::error!("cannot write the metrics: {error}");
                reply::bytes(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "")
            }
        }
    }
}

/// The method, path and action of each route.
pub fn routes() -> impl Iterator<Item = (&'static Method, &'static str, Action)> {
    ROUTES.all().iter().map(|route| (&route.method, route.path, route.action))
}

impl Face for Metrics {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        ROUTES.find(head)
    }

    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, _: RequestBody) -> PendingReply<'a> {
        Box::pin(async move {
            match ROUTES.handler(route) {
                Some(Page::Text) => self.text(call).await,
                _ => reply::bytes(StatusCode::OK, TEXT, ""),
            }
        })
    }
}
