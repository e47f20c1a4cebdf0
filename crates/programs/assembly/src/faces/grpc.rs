//! gRPC: KServe's service with Triton's extensions.

use nereid_grpc::{Calls, GrpcOptions, PROTOCOLS, TransportOptions};
use nereid_net::listener::Listener;

use super::{Endpoint, Face, FaceContext, Serving};

/// gRPC: KServe's service with Triton's extensions.
#[derive(Clone, Debug)]
pub struct Grpc {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The face itself. Its `regions`, `log` and `load_reports` are the server's.
    pub options: GrpcOptions,
    /// Keepalive and lifetime settings of connections.
    pub transport: TransportOptions,
}

impl Default for Grpc {
    /// On every interface, at Triton's port, in clear text.
    fn default() -> Self {
        Self {
            endpoint: Endpoint::every_interface(8001),
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

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn protocols(&self) -> &'static [&'static str] {
        PROTOCOLS
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        let access = context.guarded(self.options.access.clone());
        let FaceContext { regions, log, load_reports, .. } = context;
        let options = GrpcOptions { access, regions, log, load_reports, ..self.options };
        let calls = Calls::new(context.server, options, context.shutdown.clone());
        Box::pin(nereid_grpc::serve(listener, calls, self.transport, context.shutdown))
    }
}
