//! Clients that watch whether the server is ready.
//!
//! Changes of the model table and of announcing backends are events. All other backends are polled here, in one place, and
//! only while there is a watcher; a changed answer is an event like any other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use nereid_backend_api::ReadinessReports;

use crate::events::Changes;
use crate::model::Model;
use crate::server::Server;
use crate::table::ModelTable;
use nereid_scheduling::timer::{Alarm, Ring, Timer};

/// The time between two polls of a backend.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A subscription to the readiness of a server, see [`Server::watch_readiness`].
pub struct ReadinessWatch {
    server: Arc<Server>,
    changes: Changes,
    known: Option<bool>,
    /// Keeps backends polled, where their answers count.
    watcher: Option<Watcher>,
}

impl ReadinessWatch {
    pub(crate) fn new(server: Arc<Server>, poll: &Arc<ReadinessPoll>) -> Self {
        let watcher = server.options().strict_readiness.then(|| Watcher::new(poll));
        Self { changes: server.changes(), server, known: None, watcher }
    }

    /// Whether the server is [ready](Server::ready): at once the first time, and later as soon as that has changed. Safe to drop
    /// before it completes: no change is lost.
    pub async fn next(&mut self) -> bool {
        loop {
            // What changes from here on leads to another round.
            self.changes.generation();
            let is_ready = self.server.ready().await;
            if self.known.replace(is_ready) != Some(is_ready) {
                return is_ready;
            }
            if let Some(Watcher(poll)) = &self.watcher {
                poll.schedule();
            }
            // The subscription ends with the server, which this holds.
            self.changes.next().await;
        }
    }
}

/// Counts as one that watches.
struct Watcher(Arc<ReadinessPoll>);

impl Watcher {
    fn new(poll: &Arc<ReadinessPoll>) -> Self {
        poll.lock().watchers += 1;
        Self(Arc::clone(poll))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.lock().watchers -= 1;
    }
}

/// Polls the backends that announce nothing.
pub(crate) struct ReadinessPoll {
    models: Weak<ArcSwap<ModelTable>>,
    alarm: Alarm,
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watchers: usize,
    /// The alarm is set.
    is_scheduled: bool,
}

impl ReadinessPoll {
    pub(crate) fn new(models: Weak<ArcSwap<ModelTable>>, timer: &Timer, interval: Duration) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let alarm = timer.alarm(Weak::<Self>::clone(this));
            Self { models, alarm, interval, state: Mutex::default() }
        })
    }

    /// Polls after the interval, if there is any backend to poll.
    fn schedule(&self) {
        if self.has_work() && !std::mem::replace(&mut self.lock().is_scheduled, true) {
            self.alarm.set(Instant::now() + self.interval);
        }
    }

    /// Starts a check of the backends, if there is a watcher, and returns their number. Changed answers are announced.
    pub(crate) fn poll(&self) -> usize {
        if self.lock().watchers == 0 {
            return 0;
        }
        let Some(table) = self.table() else { return 0 };
        polled(&table).map(|model| drop(model.ready())).count()
    }

    fn has_work(&self) -> bool {
        self.table().is_some_and(|table| polled(&table).next().is_some())
    }

    fn table(&self) -> Option<Arc<ModelTable>> {
        self.models.upgrade().map(|models| models.load_full())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring for ReadinessPoll {
    fn ring(&self) {
        self.lock().is_scheduled = false;
        if self.poll() > 0 {
            self.schedule();
        }
    }
}

/// The models whose backends announce nothing.
fn polled(table: &ModelTable) -> impl Iterator<Item = &Arc<Model>> {
    table.ready().filter(|model| model.executor().readiness() == ReadinessReports::WhenAsked)
}
