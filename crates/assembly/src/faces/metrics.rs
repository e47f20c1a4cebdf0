//! Metrics, in Prometheus's text format.

use nereid_listener::{Address, Listener};
use nereid_metrics::TRANSPORT;

use super::{Face, FaceContext, Serving};

/// Metrics, in Prometheus's text format.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Where it listens.
    pub address: Address,
}

impl Default for Metrics {
    /// On every interface, at Triton's port, in clear text.
    fn default() -> Self {
        Self { address: Address { host: "0.0.0.0".to_owned(), port: 8002, share: false } }
    }
}

impl Face for Metrics {
    fn protocol(&self) -> &'static str {
        "metrics"
    }

    fn service(&self) -> &'static str {
        "Metrics Service"
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let face = nereid_metrics::Metrics::new(context.server, context.exposition);
        Box::pin(nereid_http_transport::serve(listener, face, TRANSPORT, context.shutdown))
    }
}
