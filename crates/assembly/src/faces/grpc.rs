//! gRPC: KServe's service with Triton's extensions.

use nereid_grpc::{Calls, GrpcOptions, PROTOCOLS, TransportOptions};
use nereid_listener::{Address, Listener, TlsFiles};

use super::{Face, FaceContext, Serving};

/// gRPC: KServe's service with Triton's extensions.
#[derive(Clone, Debug)]
pub struct Grpc {
    /// Where it listens.
    pub address: Address,
    /// The files of TLS; `None` serves clear text.
    pub tls: Option<TlsFiles>,
    /// The face itself. Its `regions`, `log` and `load_reports` are the server's.
    pub options: GrpcOptions,
    /// How connections are kept and ended.
    pub transport: TransportOptions,
}

impl Default for Grpc {
    /// On every interface, at Triton's port, in clear text.
    fn default() -> Self {
        Self {
            address: Address { host: "0.0.0.0".to_owned(), port: 8001, share: false },
            tls: None,
            options: GrpcOptions::default(),
            transport: TransportOptions::default(),
        }
    }
}

impl Face for Grpc {
    fn protocol(&self) -> &'static str {
        "gRPC"
    }

    fn service(&self) -> &'static str {
        "GRPCInferenceService"
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn tls(&self) -> Option<(&TlsFiles, &'static [&'static str])> {
        self.tls.as_ref().map(|files| (files, PROTOCOLS))
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let FaceContext { regions, log, load_reports, .. } = context;
        let options = GrpcOptions { regions, log, load_reports, ..self.options };
        let calls = Calls::new(context.server, options, context.shutdown.clone());
        Box::pin(nereid_grpc::serve(listener, calls, self.transport, context.shutdown))
    }
}
