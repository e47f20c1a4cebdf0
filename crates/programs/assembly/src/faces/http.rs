//! HTTP: KServe's protocol with Triton's extensions.

use nereid_http::TransportOptions;
use nereid_kserve::{HttpOptions, KserveHttp};
use nereid_net::listener::Listener;

use super::{Endpoint, Face, FaceContext, Serving};

/// HTTP: KServe's protocol with Triton's extensions.
#[derive(Clone, Debug)]
pub struct Http {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The face itself. Its `regions`, `log` and `load_reports` are the server's.
    pub options: HttpOptions,
    /// Limits of connections.
    pub transport: TransportOptions,
}

impl Default for Http {
    /// On every interface, at Triton's port, in clear text.
    fn default() -> Self {
        Self {
            endpoint: Endpoint::every_interface(8000),
            options: HttpOptions::default(),
            transport: TransportOptions::default(),
        }
    }
}

impl Face for Http {
    fn protocol(&self) -> &'static str {
        "HTTP"
    }

    fn service(&self) -> &'static str {
        "HTTPService"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let (options, end) = (context.http_options(self.options), context.http_end());
        let face = KserveHttp::new(context.server, options);
        Box::pin(nereid_http::serve(listener, face, self.transport, end))
    }
}
