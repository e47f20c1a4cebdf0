//! A limited number of connections. When all slots are taken, the connection that has been idle longest is closed, so
//! that idle clients lock out no others.

use std::sync::Arc;
use std::time::Duration;

use nereid_net::listener::Connections;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// How long to wait for a slot before a further idle connection is closed.
const RETRY: Duration = Duration::from_millis(100);

/// The slots of a listener.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    connections: Connections,
}

/// A connection's slot. Dropped, it is free again.
pub(crate) type Slot = Option<OwnedSemaphorePermit>;

impl Slots {
    /// Creates `count` slots for these connections.
    pub(crate) fn new(count: usize, connections: Connections) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), connections }
    }

    /// Waits for a slot.
    pub(crate) async fn take(&self) -> Slot {
        let mut next = std::pin::pin!(Arc::clone(&self.free).acquire_owned());
        loop {
            tokio::select! {
                biased;
                // The semaphore is never closed.
                permit = &mut next => return permit.ok(),
                () = self.evict() => {}
            }
        }
    }

    /// Closes the connection that has been idle longest, if one is idle, and lets it end.
    async fn evict(&self) {
        self.connections.evict();
        sleep(RETRY).await;
    }
}
