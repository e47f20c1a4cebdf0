//! The HTTP socket: taken before the models are loaded, served once they are.

use std::io;
use std::sync::Arc;

use nereid_core::Server;
use nereid_http::HttpOptions as FaceOptions;
use nereid_shared_memory::Regions;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::options::http::HttpOptions;
use crate::socket::Socket;

/// The socket of HTTP, and what the face on it is told.
pub(crate) struct Http {
    socket: Socket,
    options: FaceOptions,
}

impl Http {
    /// Takes the address, if HTTP is served at all.
    ///
    /// # Errors
    /// Why the address cannot be taken, or what is wrong with the options.
    pub(crate) fn bind(
        options: &HttpOptions,
        regions: Arc<Regions>,
        runtime: &Runtime,
    ) -> Result<Option<Self>, String> {
        if !options.allow_http {
            return Ok(None);
        }
        let face = options.face(regions)?;
        let _context = runtime.enter();
        let cannot = |error: io::Error| {
            format!("cannot serve HTTP at {}:{}: {error}", options.http_address, options.http_port)
        };
        let socket = Socket::bind(&options.http_address, options.http_port, options.reuse_http_port)
            .map_err(cannot)?;
        Ok(Some(Self { socket, options: face }))
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
        let cannot = |error| format!("cannot serve HTTP: {error}");
        let listener = self.socket.listen().map_err(cannot)?;
        tracing::info!("Started HTTPService at {}", listener.local_addr().map_err(cannot)?);
        Ok(runtime.spawn(nereid_http::serve(listener, Arc::clone(server), self.options, shutdown.clone())))
    }
}
