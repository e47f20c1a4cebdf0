//! A response cache in Redis, which several servers may share.
//!
//! A cache whose login or database Redis refuses cannot be made; a Redis that is unavailable is tried again.
//!
//! Lookups have a short time limit. When Redis exceeds it, or the connection ends, all lookups miss immediately until Redis
//! answers again; requests do not wait for reconnection. Requests share connections, and commands are pipelined.
//!
//! A separate thread runs the connections. Entries written by other clients are not trusted: see
//! [`decode_entry`](crate::decode_entry).

mod connection;
mod exchange;
mod files;
mod resp;
mod settings;
mod tls;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use crate::cache::{CacheLookup, CacheScope, ResponseCache};
use crate::entry::CacheEntry;
use crate::key::CacheKey;
use nereid_core::backend_api::{Error, Result};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use self::connection::{ConnectError, Link, Place};
use self::exchange::{Command, Share};
pub use self::settings::{RedisSettings, TlsSettings};

/// The largest entry, in bytes.
const MAX_ENTRY: usize = 64 << 20;

/// Maximum bytes of entries waiting to be sent. Further ones are not stored.
const MAX_UNSENT: usize = 128 << 20;

/// Maximum number of commands waiting for a connection's task.
const MAX_WAITING: usize = 256;

/// See the module. Its connections end when it is dropped.
pub struct RedisCache {
    place: Arc<Place>,
    links: Vec<(Arc<Link>, mpsc::Sender<Command>)>,
    next: AtomicUsize,
    unsent: Arc<AtomicUsize>,
}

impl RedisCache {
    /// Connects, and blocks for as long as that may take. Redis may be unavailable: further attempts follow.
    ///
    /// # Errors
    /// Redis refuses the login or the database; files of TLS that cannot be used; no thread.
    pub fn new(settings: RedisSettings) -> std::result::Result<Self, String> {
        let place = Arc::new(Place::new(settings)?);
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let no_thread = |error: io::Error| format!("cannot start the thread of the response cache: {error}");
        let runtime = runtime.map_err(no_thread)?;
        let mut links = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..place.settings.pool_size {
            let (sender, commands) = mpsc::channel(MAX_WAITING);
            let link = Arc::<Link>::default();
            ends.push((Arc::clone(&link), commands));
            links.push((link, sender));
        }
        let (refusal, refused) = sync_channel(1);
        let shared = Arc::clone(&place);
        let body = move || {
            runtime.block_on(async {
                let mut first = match shared.connect().await {
                    // The receiver waits for it.
                    Err(ConnectError::Settings(why)) => return drop(refusal.send(why)),
                    other => Some(other),
                };
                drop(refusal);
                let connect =
                    |(link, commands)| connection::run(Arc::clone(&shared), link, commands, first.take());
                let tasks: Vec<_> = ends.into_iter().map(connect).map(tokio::spawn).collect();
                for task in tasks {
                    // A panic in one ends that connection alone.
                    let _ = task.await;
                }
            });
        };
        thread::Builder::new().name("response-cache".into()).spawn(body).map_err(no_thread)?;
        if let Ok(why) = refused.recv() {
            return Err(format!(
                "the response cache in Redis at {} refuses its settings: {why}",
                place.name()
            ));
        }
        Ok(Self { place, links, next: AtomicUsize::new(0), unsent: Arc::default() })
    }

    /// Passes a command to one of the open connections; `false` if all are full.
    fn send(&self, mut command: Command) -> bool {
        let start = self.next.fetch_add(1, Relaxed);
        for offset in 0..self.links.len() {
            let (link, sender) = &self.links[start.wrapping_add(offset) % self.links.len()];
            if link.is_up() {
                match sender.try_send(command) {
                    Ok(()) => return true,
                    Err(refused) => command = refused.into_inner(),
                }
            }
        }
        false
    }
}

impl ResponseCache for RedisCache {
    fn scope(&self) -> CacheScope {
        CacheScope::Shared
    }

    fn lookup(&self, key: &CacheKey) -> CacheLookup {
        let (reply, found) = oneshot::channel();
        let deadline = Instant::now() + self.place.settings.socket_timeout;
        if !self.send(Command::Get { key: *key, reply, deadline: deadline.into() }) {
            return CacheLookup::Ready(None);
        }
        CacheLookup::Wait(Box::pin(async { found.await.ok().flatten() }))
    }

    fn insert(&self, key: &CacheKey, entry: CacheEntry) {
        if let Some(share) = Share::take(&self.unsent, entry.byte_size(), MAX_UNSENT) {
            self.send(Command::Set { key: *key, entry, share });
        }
    }

    fn max_entry_size(&self) -> usize {
        MAX_ENTRY
    }

    fn identify(&self, directory: &Path, version: u64) -> Result<[u8; 32]> {
        files::digest(directory, version).map_err(|error| {
            Error::unavailable(format!(
                "cannot compute the response-cache identity of '{}': {error}",
                directory.display()
            ))
        })
    }

    fn is_available(&self) -> Option<bool> {
        Some(self.links.iter().any(|(link, _)| link.is_up()))
    }
}

#[cfg(test)]
mod tests;
