//! Metrics, in Prometheus's text format.

use nereid_metrics::TRANSPORT;
use nereid_net::listener::Listener;
use nereid_protocol::Access;

use super::{Endpoint, Face, FaceContext, Serving};

/// Metrics, in Prometheus's text format.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The endpoint.
    pub endpoint: Endpoint,
}

impl Default for Metrics {
    /// On every interface, at Triton's port, in clear text.
    fn default() -> Self {
        Self { endpoint: Endpoint::every_interface(8002) }
    }
}

impl Face for Metrics {
    fn protocol(&self) -> &'static str {
        "metrics"
    }

    fn service(&self) -> &'static str {
        "Metrics Service"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let access = context.guarded(Access::default());
        let face = nereid_metrics::Metrics::new(context.server, context.exposition, access);
        Box::pin(nereid_http::serve(listener, face, TRANSPORT, context.shutdown))
    }
}
