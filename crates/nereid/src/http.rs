//! The HTTP socket: taken before the models are loaded, served once they are.

use std::io;
use std::sync::Arc;

use nereid_core::Server;
use nereid_http_transport::{PROTOCOLS, TransportOptions};
use nereid_kserve_http::{HttpOptions as FaceOptions, KserveHttp};
use nereid_listener::{Address, Bound, Tls};
use nereid_protocol::LogControl;
use nereid_shared_memory::Regions;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::options::http::HttpOptions;

/// The socket of HTTP, and what the face on it is told.
pub(crate) struct Http {
    socket: Bound,
    tls: Option<Tls>,
    options: FaceOptions,
}

impl Http {
    /// Takes the address, if HTTP is served at all.
    ///
    /// # Errors
    /// Why the address cannot be taken, or what is wrong with the options or the files they name.
    pub(crate) fn bind(
        options: &HttpOptions,
        regions: Arc<Regions>,
        log: Arc<LogControl>,
    ) -> Result<Option<Self>, String> {
        if !options.allow_http {
            return Ok(None);
        }
        let face = options.face(regions, log)?;
        let tls = options.tls()?.map(|files| Tls::new(files, PROTOCOLS)).transpose();
        let tls = tls.map_err(|error| format!("cannot serve HTTP with TLS: {error}"))?;
        let Address { host, port, .. } = options.address();
        let socket = options.address().bind();
        let socket = socket.map_err(|error| format!("cannot serve HTTP at {host}:{port}: {error}"))?;
        Ok(Some(Self { socket, tls, options: face }))
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
        let cannot = |error: io::Error| format!("cannot serve HTTP: {error}");
        let listener = self.socket.listen(self.tls).map_err(cannot)?;
        tracing::info!("Started HTTPService at {}", listener.local_addr().map_err(cannot)?);
        let face = KserveHttp::new(Arc::clone(server), self.options);
        let transport = TransportOptions::default();
        Ok(runtime.spawn(nereid_http_transport::serve(listener, face, transport, shutdown.clone())))
    }
}
