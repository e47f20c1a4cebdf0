//! A limited number of connections. When all are taken, the one that has been idle longest gives up its slot, so that idle
//! clients lock nobody out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::pace::Pace;

/// How long to wait for a slot before a further idle connection is closed.
const RETRY: Duration = Duration::from_millis(100);

/// How long a new connection keeps its slot in any case: its first request may have arrived and not be read yet.
const GRACE: Duration = Duration::from_secs(1);

/// The slots of a listener.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    open: Mutex<Open>,
}

/// The connections that have slots.
#[derive(Debug, Default)]
struct Open {
    /// In the order in which they were opened.
    connections: BTreeMap<u64, Connection>,
    opened: u64,
}

#[derive(Debug)]
struct Connection {
    pace: Pace,
    since: Instant,
    evicted: CancellationToken,
}

/// A connection's slot. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    evicted: CancellationToken,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Slots {
    /// That many slots.
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a connection with this pace, as soon as there is one.
    pub(crate) async fn take(self: &Arc<Self>, pace: &Pace) -> Slot {
        let mut next = std::pin::pin!(Arc::clone(&self.free).acquire_owned());
        let permit = loop {
            tokio::select! {
                biased;
                // The semaphore is never closed.
                permit = &mut next => break permit.ok(),
                () = self.evict() => {}
            }
        };
        let evicted = CancellationToken::new();
        let mut open = self.lock();
        let id = open.opened;
        open.opened += 1;
        let connection = Connection { pace: pace.clone(), since: Instant::now(), evicted: evicted.clone() };
        open.connections.insert(id, connection);
        drop(open);
        Slot { slots: Arc::clone(self), id, evicted, _permit: permit }
    }

    /// Closes the connection that has been idle longest, if one is idle, and lets it end.
    async fn evict(&self) {
        let longest = {
            let open = self.lock();
            let old = open.connections.iter().filter(|(_, it)| it.since.elapsed() >= GRACE);
            let idle = old.filter(|(_, it)| !it.evicted.is_cancelled());
            let idle = idle.filter_map(|(id, it)| Some((it.pace.idle_checks()?, Reverse(*id), &it.evicted)));
            idle.max_by_key(|(checks, id, _)| (*checks, *id)).map(|(_, _, evicted)| evicted.clone())
        };
        if let Some(evicted) = longest {
            evicted.cancel();
        }
        sleep(RETRY).await;
    }
}

impl Slot {
    /// Returns when the connection has to make room for another.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().connections.remove(&self.id);
    }
}
