//! TLS configuration, reloaded while the server runs.
//!
//! Tools replace certificates on disk without notice, long before they expire. So the files are polled every second,
//! and new connections use what changed. Open connections are not affected.

pub(crate) mod client;
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

/// Interval of the checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// TLS settings of a listener. Clones share their state.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: TlsFiles,
    /// The ALPN names of protocols that clients may choose, best first.
    protocols: Vec<Vec<u8>>,
    state: Mutex<State>,
}

struct State {
    config: Arc<ServerConfig>,
    /// The files' stamp when they were last loaded, successfully or not.
    loaded: files::Stamp,
    /// The files' stamp at the last check.
    seen: files::Stamp,
}

impl Tls {
    /// Reads the files. `protocols` are the ALPN names of the protocols that are served, best first.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn new(files: TlsFiles, protocols: &[&str]) -> Result<Self, TlsError> {
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        // Taken before the files are read, so that concurrent changes are noticed at the next check.
        let stamp = files.stamp();
        let config = files.config(&protocols)?;
        let state = Mutex::new(State { config, loaded: stamp.clone(), seen: stamp });
        Ok(Self(Arc::new(Shared { files, protocols, state })))
    }

    /// Reloads changed files until the last clone of this is dropped.
    pub(crate) fn watch(&self) {
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut check = interval(CHECK_INTERVAL);
            check.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                check.tick().await;
                let shared = Weak::clone(&shared);
                // Files may be on a network file system.
                let checked = spawn_blocking(move || shared.upgrade().map(|shared| shared.check()));
                if let Ok(None) = checked.await {
                    return;
                }
            }
        });
    }

    /// Does the handshake with a client.
    pub(crate) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.0.lock().config);
        timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await.unwrap_or_else(|_| {
            let reason = format!(
                "the client did not complete the TLS handshake within {} s",
                HANDSHAKE_TIMEOUT.as_secs()
            );
            Err(io::Error::new(ErrorKind::TimedOut, reason))
        })
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads changed files once two checks in a row find them the same: copying takes time, and a key follows its
    /// certificate.
    fn check(&self) {
        let stamp = self.files.stamp();
        {
            let mut state = self.lock();
            let settled = state.seen == stamp;
            state.seen = stamp.clone();
            if !settled || state.loaded == stamp {
                return;
            }
            state.loaded = stamp;
        }
        match self.files.config(&self.protocols) {
            Ok(config) => {
                self.lock().config = config;
                tracing::info!("reloaded the TLS files {}", self.files);
            }
            Err(error) => tracing::warn!("cannot reload the TLS files; keeping the previous ones: {error}"),
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
