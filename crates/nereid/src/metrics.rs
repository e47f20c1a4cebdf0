//! The socket of metrics: taken before the models are loaded, served once they are.

use std::io;
use std::sync::Arc;

use nereid_core::Server;
use nereid_listener::{Address, Bound};
use nereid_metrics::{Exposition, TRANSPORT};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::options::Options;

/// The socket of metrics.
pub(crate) struct Metrics {
    socket: Bound,
}

impl Metrics {
    /// Takes the address, if metrics are served at all.
    ///
    /// # Errors
    /// Why the address cannot be taken.
    pub(crate) fn bind(options: &Options) -> Result<Option<Self>, String> {
        if !options.metrics.allow_metrics {
            return Ok(None);
        }
        for advice in options.metrics.advice() {
            tracing::warn!("{advice}");
        }
        let address = options.metrics_address();
        let Address { host, port, .. } = &address;
        let socket =
            address.bind().map_err(|error| format!("cannot serve metrics at {host}:{port}: {error}"))?;
        Ok(Some(Self { socket }))
    }

    /// Begins to answer; what is returned ends after `shutdown`, when the last connection is closed.
    ///
    /// # Errors
    /// Why the socket cannot be listened on.
    pub(crate) fn serve(
        self,
        runtime: &Runtime,
        server: &Arc<Server>,
        exposition: Arc<Exposition>,
        shutdown: &CancellationToken,
    ) -> Result<JoinHandle<()>, String> {
        let _context = runtime.enter();
        let cannot = |error: io::Error| format!("cannot serve metrics: {error}");
        let listener = self.socket.listen(None).map_err(cannot)?;
        tracing::info!("Started Metrics Service at {}", listener.local_addr().map_err(cannot)?);
        let face = nereid_metrics::Metrics::new(Arc::clone(server), exposition);
        Ok(runtime.spawn(nereid_http_transport::serve(listener, face, TRANSPORT, shutdown.clone())))
    }
}
