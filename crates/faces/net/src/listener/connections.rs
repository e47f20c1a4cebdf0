//! Registry of open connections; closes the one that has been idle longest to make room for another.
//!
//! A process has a limited number of file descriptors, and a port may have a limit of its own. Clients pool connections
//! and leave them open, so at a limit idle ones are closed first. Clients with requests are never locked out by clients
//! without, or by clients that stop in the middle of a request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Minimum lifetime of a new connection: its first request may have arrived without being read yet. Also the time limit
/// for the rest of a request.
const GRACE: Duration = Duration::from_secs(1);

/// A connection that can report whether it is idle.
pub trait Activity: Send + Sync {
    /// The pending input from the client, if nothing else keeps the connection open.
    fn awaited(&self) -> Option<Awaited>;
}

/// Input expected from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Another request, after this many. The count may wrap around.
    Request(u32),
    /// The rest of the last of this many requests.
    Rest(u32),
}

/// Interval of the check for idle connections.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The open connections of a port; several ports may share a limit.
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
    checked: Instant,
}

struct Connection {
    port: u64,
    activity: Arc<dyn Activity>,
    opened: Instant,
    /// When the connection was first seen idle, waiting for this input.
    idle: Option<(Awaited, Instant)>,
    evicted: CancellationToken,
}

impl Connection {
    /// When the connection became idle, if it may be closed.
    fn may_go(&self) -> Option<Instant> {
        let (awaited, since) = self.idle?;
        let is_new = self.opened.elapsed() < GRACE;
        let is_arriving = matches!(awaited, Awaited::Rest(_)) && since.elapsed() < GRACE;
        (!is_new && !is_arriving && !self.evicted.is_cancelled()).then_some(since)
    }
}

/// A connection among the open ones. Dropped, it is none any more.
#[derive(Debug)]
pub struct ConnectionGuard {
    connections: Connections,
    id: u64,
}

impl Default for Connections {
    fn default() -> Self {
        let open = Open { connections: BTreeMap::new(), opened: 0, ports: 1, checked: Instant::now() };
        Self { open: Arc::new(Mutex::new(open)), port: 0 }
    }
}

impl Connections {
    /// The connections of another port, under the same limit.
    #[must_use]
    pub fn for_another_port(&self) -> Self {
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

    /// Adds a connection, which must close when `evicted` is cancelled.
    pub fn register(&self, activity: Arc<dyn Activity>, evicted: CancellationToken) -> ConnectionGuard {
        let mut open = self.lock();
        // While no client connects, the accept loop performs this check.
        open.check_if_due();
        let id = open.opened;
        open.opened += 1;
        let connection =
            Connection { port: self.port, activity, opened: Instant::now(), idle: None, evicted };
        open.connections.insert(id, connection);
        ConnectionGuard { connections: self.clone(), id }
    }

    /// Looks which connections are idle, if that was long ago.
    pub(crate) fn look(&self) {
        self.lock().check_if_due();
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

    fn evict_up_to(&self, count: usize, is_meant: impl Fn(&Connection) -> bool) -> usize {
        let mut open = self.lock();
        open.look();
        let meant = open.connections.values().filter(|it| is_meant(it));
        let mut idle: Vec<_> = meant.filter_map(|it| Some((it.may_go()?, &it.evicted))).collect();
        // The sort is stable: of several, those go that were opened first.
        idle.sort_by_key(|(since, _)| *since);
        let longest: Vec<_> = idle.into_iter().take(count).map(|(_, evicted)| evicted.clone()).collect();
        drop(open);
        longest.iter().for_each(CancellationToken::cancel);
        longest.len()
    }
}

impl Open {
    fn check_if_due(&mut self) {
        if self.checked.elapsed() >= CHECK_INTERVAL {
            self.look();
        }
    }

    /// Looks which connections are idle. Since when is known as exactly as this is called often.
    fn look(&mut self) {
        let now = Instant::now();
        self.checked = now;
        for connection in self.connections.values_mut() {
            let awaited = connection.activity.awaited();
            connection.idle = awaited.map(|awaited| match connection.idle {
                Some((seen, since)) if seen == awaited => (seen, since),
                _ => (awaited, now),
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
        has_begun: AtomicBool,
    }

    impl Activity for Client {
        fn awaited(&self) -> Option<Awaited> {
            let requests = self.requests.load(Ordering::Relaxed);
            let has_begun = self.has_begun.load(Ordering::Relaxed);
            let awaited = if has_begun { Awaited::Rest(requests) } else { Awaited::Request(requests) };
            (!self.is_busy.load(Ordering::Relaxed)).then_some(awaited)
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
    async fn longest_idle_connection_is_evicted_first() {
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
    async fn connection_sending_a_request_has_a_grace_period() {
        for (moment, requests) in [(999, 1), (1000, 1), (60_000, 3)] {
            let fixture = Fixture::new(1);
            let client = &fixture.clients[0].0;
            advance(60 * GRACE).await;
            fixture.connections.lock().look();
            for _ in 0..requests {
                client.has_begun.store(true, Ordering::Relaxed);
                client.requests.fetch_add(1, Ordering::Relaxed);
                assert!(!fixture.connections.evict(), "it has just begun");
            }
            advance(Duration::from_millis(moment)).await;
            assert_eq!(fixture.connections.evict(), moment >= 1000, "{moment}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn several_connections_are_evicted_at_once() {
        for (count, expected) in [(0, 0), (1, 1), (3, 3), (9, 5)] {
            let fixture = Fixture::new(5);
            advance(GRACE).await;
            assert_eq!(fixture.connections.evict_of_all(count), expected);
            assert_eq!(fixture.evicted(), (0..expected).collect::<Vec<_>>());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closed_connection_is_not_evicted() {
        let mut fixture = Fixture::new(2);
        advance(GRACE).await;
        let (_, evicted, registered) = fixture.clients.remove(0);
        drop(registered);
        assert!(fixture.connections.evict() && !fixture.connections.evict());
        assert!(!evicted.is_cancelled() && fixture.evicted() == [0]);
    }
}
