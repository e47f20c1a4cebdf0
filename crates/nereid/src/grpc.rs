//! The gRPC socket: taken before the models are loaded, served once they are.

use std::io;
use std::sync::Arc;

use nereid_core::Server;
use nereid_grpc::{Calls, GrpcOptions as FaceOptions};
use nereid_listener::{Address, Bound};
use nereid_shared_memory::Regions;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::options::grpc::GrpcOptions;

/// The socket of gRPC, and what the face on it is told.
pub(crate) struct Grpc {
    socket: Bound,
    options: FaceOptions,
}

impl Grpc {
    /// Takes the address, if gRPC is served at all.
    ///
    /// # Errors
    /// Why the address cannot be taken.
    pub(crate) fn bind(options: &GrpcOptions, regions: Arc<Regions>) -> Result<Option<Self>, String> {
        if !options.allow_grpc {
            return Ok(None);
        }
        let (host, port) = (options.grpc_address.clone(), options.grpc_port);
        let socket = Address { host, port, share: false }.bind().map_err(|error| {
            format!("cannot serve gRPC at {}:{}: {error}", options.grpc_address, options.grpc_port)
        })?;
        Ok(Some(Self { socket, options: options.face(regions) }))
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
        let listener = self.socket.listen(None).map_err(cannot)?;
        tracing::info!("Started GRPCInferenceService at {}", listener.local_addr().map_err(cannot)?);
        let calls = Calls::new(Arc::clone(server), self.options, shutdown.clone());
        Ok(runtime.spawn(nereid_grpc::serve(listener, calls, shutdown.clone())))
    }
}
