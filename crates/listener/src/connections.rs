//! Open connections, of which the one that has been idle longest makes room for another.
//!
//! A process has a limited number of file descriptors, and a port may have a limit of its own. Clients pool connections and
//! leave them open, so at a limit the idle ones go first, and clients that ask for something are never locked out by clients
//! that do not.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a new connection stays in any case: its first request may have arrived and not be read yet.
const GRACE: Duration = Duration::from_secs(1);

/// A connection, as far as it is known whether it is idle.
pub trait Activity: Send + Sync {
    /// How many requests have begun on it, which may wrap around, if none is in progress.
    fn idle_after(&self) -> Option<u32>;
}

/// How often it is looked which connections are idle.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The open connections of a port, which may be among those of several.
#[derive(Clone, Debug)]
pub struct Connections {
    open: Arc<Mutex<Open>>,
    port: u64,
}

struct Open {
    /// In the order in which they were opened.
    connections: BTreeMap<u64, Connection>,
    opened: u64,
    ports: u64,
    looked: Instant,
}

struct Connection {
    port: u64,
    activity: Arc<dyn Activity>,
    opened: Instant,
    /// When it was first seen idle after its last request.
    idle: Option<(u32, Instant)>,
    evicted: CancellationToken,
}

/// A connection among the open ones. Dropped, it is none any more.
#[derive(Debug)]
pub struct ConnectionGuard {
    connections: Connections,
    id: u64,
}

impl Default for Connections {
    fn default() -> Self {
        let open = Open { connections: BTreeMap::new(), opened: 0, ports: 1, looked: Instant::now() };
        Self { open: Arc::new(Mutex::new(open)), port: 0 }
    }
}

impl Connections {
    /// Those of another port among these.
    #[must_use]
    pub fn of_another_port(&self) -> Self {
        let mut open = self.lock();
        let port = open.ports;
        open.ports += 1;
        drop(open);
        Self { open: Arc::clone(&self.open), port }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Each change is one insertion, removal or assignment.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. It has to close when `evicted` is cancelled.
    pub fn register(&self, activity: Arc<dyn Activity>, evicted: CancellationToken) -> ConnectionGuard {
        let mut open = self.lock();
        // Those who accept look while nobody connects.
        open.look_in_time();
        let id = open.opened;
        open.opened += 1;
        let connection =
            Connection { port: self.port, activity, opened: Instant::now(), idle: None, evicted };
        open.connections.insert(id, connection);
        ConnectionGuard { connections: self.clone(), id }
    }

    /// Looks which connections are idle, if that was long ago.
    pub(crate) fn look(&self) {
        self.lock().look_in_time();
    }

    /// Closes the connection of this port that has been idle longest. Returns whether there was an idle one.
    pub fn evict(&self) -> bool {
        let port = self.port;
        self.evict_up_to(1, |connection| connection.port == port) > 0
    }

    /// Closes up to `count` connections of all ports, those idle longest first. Returns how many it closed.
    pub(crate) fn evict_of_all(&self, count: usize) -> usize {
        self.evict_up_to(count, |_| true)
    }

    fn evict_up_to(&self, count: usize, may_go: impl Fn(&Connection) -> bool) -> usize {
        let mut open = self.lock();
        open.look();
        let staying = |it: &&Connection| it.opened.elapsed() < GRACE || it.evicted.is_cancelled();
        let old = open.connections.values().filter(|it| may_go(it) && !staying(it));
        let mut idle: Vec<_> = old.filter_map(|it| Some((it.idle?.1, &it.evicted))).collect();
        // The sort is stable: of several, those go that were opened first.
        idle.sort_by_key(|(since, _)| *since);
        let longest: Vec<_> = idle.into_iter().take(count).map(|(_, evicted)| evicted.clone()).collect();
        drop(open);
        longest.iter().for_each(CancellationToken::cancel);
        longest.len()
    }
}

impl Open {
    fn look_in_time(&mut self) {
        if self.looked.elapsed() >= LOOK_INTERVAL {
            self.look();
        }
    }

    /// Looks which connections are idle. Since when is known as exactly as this is called often.
    fn look(&mut self) {
        let now = Instant::now();
        self.looked = now;
        for connection in self.connections.values_mut() {
            let idle = connection.activity.idle_after();
            connection.idle = idle.map(|requests| match connection.idle {
                Some((seen, since)) if seen == requests => (seen, since),
                _ => (requests, now),
            });
        }
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("connections", &self.connections.len()).finish_non_exhaustive()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.lock().connections.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use tokio::time::advance;

    use super::*;

    #[derive(Default)]
    struct Client {
        requests: AtomicU32,
        is_busy: AtomicBool,
    }

    impl Activity for Client {
        fn idle_after(&self) -> Option<u32> {
            (!self.is_busy.load(Ordering::Relaxed)).then(|| self.requests.load(Ordering::Relaxed))
        }
    }

    /// Connections, and the order in which they are evicted.
    struct Fixture {
        connections: Connections,
        clients: Vec<(Arc<Client>, CancellationToken, ConnectionGuard)>,
    }

    impl Fixture {
        fn new(count: usize) -> Self {
            let connections = Connections::default();
            let clients = (0..count).map(|_| {
                let (client, evicted) = (Arc::new(Client::default()), CancellationToken::new());
                let registered = connections.register(client.clone(), evicted.clone());
                (client, evicted, registered)
            });
            Self { clients: clients.collect(), connections }
        }

        fn evicted(&self) -> Vec<usize> {
            (0..self.clients.len()).filter(|client| self.clients[*client].1.is_cancelled()).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_has_been_idle_longest_goes_first() {
        for used in [vec![], vec![0], vec![0, 1], vec![2, 0], vec![1, 2, 0, 1]] {
            let fixture = Fixture::new(3);
            for client in &used {
                advance(Duration::from_secs(5)).await;
                fixture.connections.lock().look();
                fixture.clients[*client].0.requests.fetch_add(1, Ordering::Relaxed);
            }
            advance(Duration::from_secs(5)).await;
            // The last use of each counts; those that were never used go first.
            let last = |client: &usize| used.iter().rposition(|used| used == client).map(|at| at + 1);
            let mut order = [0, 1, 2];
            order.sort_by_key(|client| last(client).unwrap_or(0));
            for count in 1..=3 {
                assert!(fixture.connections.evict());
                let mut expected = order[..count].to_vec();
                expected.sort_unstable();
                assert_eq!(fixture.evicted(), expected, "{used:?}");
            }
            assert!(!fixture.connections.evict());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn busy_and_new_ones_stay() {
        let fixture = Fixture::new(2);
        assert!(!fixture.connections.evict(), "they are new");
        advance(GRACE).await;
        fixture.clients[0].0.is_busy.store(true, Ordering::Relaxed);
        assert!(fixture.connections.evict() && !fixture.connections.evict());
        assert_eq!(fixture.evicted(), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn several_go_at_once() {
        for (count, expected) in [(0, 0), (1, 1), (3, 3), (9, 5)] {
            let fixture = Fixture::new(5);
            advance(GRACE).await;
            assert_eq!(fixture.connections.evict_of_all(count), expected);
            assert_eq!(fixture.evicted(), (0..expected).collect::<Vec<_>>());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_closed_is_not_evicted() {
        let mut fixture = Fixture::new(2);
        advance(GRACE).await;
        let (_, evicted, registered) = fixture.clients.remove(0);
        drop(registered);
        assert!(fixture.connections.evict() && !fixture.connections.evict());
        assert!(!evicted.is_cancelled() && fixture.evicted() == [0]);
    }
}
