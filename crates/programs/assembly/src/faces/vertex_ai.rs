//! Google Vertex AI, by the routes that it chooses.

use std::sync::Arc;

use nereid_http::TransportOptions;
use nereid_kserve::{HttpOptions, KserveHttp};
use nereid_metrics::Metrics;
use nereid_net::listener::Listener;
use nereid_vertex_ai::VertexAiOptions;

use super::{Endpoint, Face, FaceContext, Serving};

/// Google Vertex AI, by the routes that it chooses.
#[derive(Clone, Debug)]
pub struct VertexAi {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The face itself.
    pub options: VertexAiOptions,
    /// Options of the underlying KServe face. Its `regions`, `log` and `load_reports` are the server's.
    pub http: HttpOptions,
}

impl Face for VertexAi {
    fn protocol(&self) -> &'static str {
        "Vertex AI"
    }

    fn service(&self) -> &'static str {
        "Vertex AI HTTPService"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let (http, end) = (context.http_options(self.http), context.http_end());
        let metrics = Metrics::new(Arc::clone(&context.server), context.exposition, http.access.clone());
        let face =
            nereid_vertex_ai::VertexAi::new(KserveHttp::new(context.server, http), metrics, self.options);
        Box::pin(nereid_http::serve(listener, face, TransportOptions::default(), end))
    }
}
