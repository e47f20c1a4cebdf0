//! TLS configuration, reloaded while the server runs.
//!
//! Tools replace certificates on disk without notice, long before they expire. So the files are polled every second,
//! and new connections use what changed. Open connections are not affected.

mod files;

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use files::{TlsError, TlsFiles};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long a client and the server may take to agree.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// How connections are encrypted. Clones are the same.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: TlsFiles,
    /// The names of protocols that clients may choose, best first.
    protocols: Vec<Vec<u8>>,
    state: Mutex<State>,
}

struct State {
    config: Arc<ServerConfig>,
    /// How the files were when they were last tried, whatever came of it.
    tried: files::Stamp,
    /// How they were at the last look.
    seen: files::Stamp,
}

impl Tls {
    /// Reads the files. `protocols` are the names of what is spoken on the connections, as registered for ALPN, best first.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn new(files: TlsFiles, protocols: &[&str]) -> Result<Self, TlsError> {
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        // Before they are read: what changes meanwhile is read again.
        let stamp = files.stamp();
        let config = files.config(&protocols)?;
        let state = Mutex::new(State { config, tried: stamp.clone(), seen: stamp });
        Ok(Self(Arc::new(Shared { files, protocols, state })))
    }

    /// Follows the files for as long as anybody holds this.
    pub(crate) fn follow(&self) {
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut look = interval(LOOK);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                look.tick().await;
                let shared = Weak::clone(&shared);
                // Files may lie on a network.
                let looked = spawn_blocking(move || shared.upgrade().map(|shared| shared.look()));
                if let Ok(None) = looked.await {
                    return;
                }
            }
        });
    }

    /// Agrees with a client.
    pub(crate) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.0.lock().config);
        timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await.unwrap_or_else(|_| {
            let reason =
                format!("the client did not complete the TLS handshake in {} s", HANDSHAKE.as_secs());
            Err(io::Error::new(ErrorKind::TimedOut, reason))
        })
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up files that have changed, once two looks in a row have seen the same of them: a copy takes time, and a key
    /// comes after its certificate.
    fn look(&self) {
        let stamp = self.files.stamp();
        {
            let mut state = self.lock();
            let settled = state.seen == stamp;
            state.seen = stamp.clone();
            if !settled || state.tried == stamp {
                return;
            }
            state.tried = stamp;
        }
        match self.files.config(&self.protocols) {
            Ok(config) => {
                self.lock().config = config;
                tracing::info!("took up the changed TLS files: {}", self.files);
            }
            Err(error) => tracing::warn!("TLS stays with the certificate it has: {error}"),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.0.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
