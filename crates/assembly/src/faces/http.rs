//! HTTP: KServe's protocol with Triton's extensions.

use nereid_http_transport::{PROTOCOLS, TransportOptions};
use nereid_kserve_http::{HttpOptions, KserveHttp};
use nereid_listener::{Address, Listener, TlsFiles};

use super::{Face, FaceContext, Serving};

/// HTTP: KServe's protocol with Triton's extensions.
#[derive(Clone, Debug)]
pub struct Http {
    /// Where it listens.
    pub address: Address,
    /// The TLS files; `None` serves clear text.
    pub tls: Option<TlsFiles>,
    /// The face itself. Its `regions`, `log` and `load_reports` are the server's.
    pub options: HttpOptions,
    /// How connections are kept and ended.
    pub transport: TransportOptions,
}

impl Default for Http {
    /// On every interface, at Triton's port, in clear text.
    fn default() -> Self {
        Self {
            address: Address { host: "0.0.0.0".to_owned(), port: 8000, share: false },
            tls: None,
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

    fn address(&self) -> &Address {
        &self.address
    }

    fn tls(&self) -> Option<(&TlsFiles, &'static [&'static str])> {
        self.tls.as_ref().map(|files| (files, PROTOCOLS))
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let (options, end) = (context.http_options(self.options), context.http_end());
        let face = KserveHttp::new(context.server, options);
        Box::pin(nereid_http_transport::serve(listener, face, self.transport, end))
    }
}
