//! The gRPC socket: taken before the models are loaded, served once they are.

use std::io;
use std::sync::Arc;

use nereid_core::Server;
use nereid_grpc::{Calls, GrpcOptions as FaceOptions, PROTOCOLS, TransportOptions};
use nereid_listener::{Address, Bound, Tls};
use nereid_protocol::LogControl;
use nereid_shared_memory::Regions;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::options::grpc::GrpcOptions;

/// The socket of gRPC, and what the face on it is told.
pub(crate) struct Grpc {
    socket: Bound,
    tls: Option<Tls>,
    options: FaceOptions,
    transport: TransportOptions,
}

impl Grpc {
    /// Takes the address, if gRPC is served at all.
    ///
    /// # Errors
    /// Why the address cannot be taken, or what is wrong with the options or the files they name.
    pub(crate) fn bind(
        options: &GrpcOptions,
        regions: Arc<Regions>,
        log: Arc<LogControl>,
    ) -> Result<Option<Self>, String> {
        if !options.allow_grpc {
            return Ok(None);
        }
        for name in options.unused() {
            tracing::warn!("{name} changes nothing: there are no such threads, pools and counts here");
        }
        let face = options.face(regions, log)?;
        let tls = options.tls()?.map(|files| Tls::new(files, PROTOCOLS)).transpose();
        let tls = tls.map_err(|error| format!("cannot serve gRPC with TLS: {error}"))?;
        let Address { host, port, .. } = options.address();
        let socket = options.address().bind();
        let socket = socket.map_err(|error| format!("cannot serve gRPC at {host}:{port}: {error}"))?;
        Ok(Some(Self { socket, tls, options: face, transport: options.transport() }))
    }

    /// Begins to answer; what is returned ends after `shutdown`, when the last connection is closed.
    ///
    /// # Errors
    /// Why the socket cannot be listened on.
    pub(crate) fn serve(
        self,
        runtime: &Runtime,
        server: &Arc<Server>,
        shutdown: &CancellationToken,
    ) -> Result<JoinHandle<()>, String> {
        let _context = runtime.enter();
        let cannot = |error: io::Error| format!("cannot serve gRPC: {error}");
        let listener = self.socket.listen(self.tls).map_err(cannot)?;
        tracing::info!("Started GRPCInferenceService at {}", listener.local_addr().map_err(cannot)?);
        let calls = Calls::new(Arc::clone(server), self.options, shutdown.clone());
        Ok(runtime.spawn(nereid_grpc::serve(listener, calls, self.transport, shutdown.clone())))
    }
}
