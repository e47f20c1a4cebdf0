//! A limited number of connections. When all are taken, the one that has been idle longest gives up its slot, so that idle
//! clients lock nobody out.

use std::sync::Arc;
use std::time::Duration;

use nereid_listener::{Connections, Registered};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::pace::Pace;

/// How long to wait for a slot before a further idle connection is closed.
const RETRY: Duration = Duration::from_millis(100);

/// The slots of a listener.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    connections: Connections,
}

/// A connection's slot. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Slot {
    _registered: Registered,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Slots {
    /// That many slots.
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), connections: Connections::default() }
    }

    /// A slot for a connection with this pace, as soon as there is one. The connection gives it up when `evicted` is
    /// cancelled.
    pub(crate) async fn take(&self, pace: &Pace, evicted: CancellationToken) -> Slot {
        let mut next = std::pin::pin!(Arc::clone(&self.free).acquire_owned());
        let permit = loop {
            tokio::select! {
                biased;
                // The semaphore is never closed.
                permit = &mut next => break permit.ok(),
                () = self.evict() => {}
            }
        };
        let registered = self.connections.register(Arc::new(pace.clone()), evicted);
        Slot { _registered: registered, _permit: permit }
    }

    /// Closes the connection that has been idle longest, if one is idle, and lets it end.
    async fn evict(&self) {
        self.connections.evict();
        sleep(RETRY).await;
    }
}
