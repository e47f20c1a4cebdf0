//! The listing of the source: a snapshot for callers that must not wait for files to be read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use nereid_backend_api::{Error, Result, block_on};
use tokio::sync::watch;

use crate::scope::ScopedName;
use crate::source::{ModelSource, SourceEntry};

/// The models of a source, ascending by name.
pub(crate) type Listing = Result<Vec<SourceEntry>>;

/// The last listing of a source.
pub(crate) struct Catalog {
    source: Arc<dyn ModelSource>,
    last: ArcSwapOption<Dated>,
    refreshes: Mutex<Refreshes>,
    /// How many refreshes have ended.
    ended: watch::Sender<u64>,
}

/// A listing, and when it began.
struct Dated {
    began: Instant,
    listing: Arc<Listing>,
}

#[derive(Default)]
struct Refreshes {
    /// How many have begun, each on a thread that does the next one, too.
    begun: u64,
    is_running: bool,
    /// Somebody wants one that begins later than the running one.
    again: bool,
}

impl Catalog {
    pub(crate) fn new(source: Arc<dyn ModelSource>) -> Arc<Self> {
        let (last, refreshes) = (ArcSwapOption::empty(), Mutex::default());
        Arc::new(Self { source, last, refreshes, ended: watch::Sender::new(0) })
    }

    /// Lists the source on this thread, which may block.
    pub(crate) fn refresh(&self) -> Arc<Listing> {
        let began = Instant::now();
        self.keep(began, block_on(self.source.list()))
    }

    fn keep(&self, began: Instant, listing: Listing) -> Arc<Listing> {
        let listing = Arc::new(listing);
        self.last.store(Some(Arc::new(Dated { began, listing: Arc::clone(&listing) })));
        listing
    }

    /// The last listing, if there is one.
    pub(crate) fn last(&self) -> Option<Arc<Listing>> {
        self.last.load().as_ref().map(|last| Arc::clone(&last.listing))
    }

    /// Whether the last listing has a model of this name. `None` without a listing that began at `since` or later.
    pub(crate) fn has(&self, name: ScopedName<'_>, since: Instant) -> Option<Result<bool>> {
        let last = self.last.load();
        let last = last.as_ref().filter(|last| last.began >= since)?;
        let names = last.listing.as_ref().as_ref();
        let is_visible = |entry: &SourceEntry| match &entry.ids {
            Ok(ids) => ids.iter().any(|id| name.scope.contains(id)),
            Err(_) => name.scope.has(&entry.name, ""),
        };
        let is_it = |entry: &SourceEntry| entry.name == name.name && is_visible(entry);
        Some(names.map(|all| all.iter().any(is_it)).map_err(Error::clone))
    }

    /// A listing that begins after this call, on another thread. Callers that arrive while one runs share the next one.
    pub(crate) fn refreshed(self: &Arc<Self>) -> impl Future<Output = Arc<Listing>> + Send + use<> {
        let mut ended = self.ended.subscribe();
        let awaited = self.request();
        let this = Arc::clone(self);
        async move {
            // The sender is as long-lived as `this`.
            let _ = ended.wait_for(|ended| *ended >= awaited).await;
            this.last().unwrap_or_else(|| Arc::new(Err(Error::internal("the model source was not listed"))))
        }
    }

    /// The number of the refresh to wait for.
    fn request(self: &Arc<Self>) -> u64 {
        let mut refreshes = self.lock();
        if refreshes.is_running {
            refreshes.again = true;
            return refreshes.begun + 1;
        }
        (refreshes.is_running, refreshes.begun) = (true, refreshes.begun + 1);
        let begun = refreshes.begun;
        drop(refreshes);
        let this = Arc::clone(self);
        if let Err(error) = Builder::new().name("nereid-list".into()).spawn(move || this.run()) {
            let error = Error::unavailable(format!("cannot start a thread to list the models: {error}"));
            self.keep(Instant::now(), Err(error));
            while self.end() {}
        }
        begun
    }

    fn run(&self) {
        loop {
            self.refresh();
            if !self.end() {
                return;
            }
        }
    }

    /// A refresh has ended. Whether the next one begins.
    fn end(&self) -> bool {
        let mut refreshes = self.lock();
        let ended = refreshes.begun;
        let again = std::mem::take(&mut refreshes.again);
        if again {
            refreshes.begun += 1;
        } else {
            refreshes.is_running = false;
        }
        drop(refreshes);
        self.ended.send_modify(|last| *last = ended.max(*last));
        again
    }

    /// Lets all calls, also later ones, have the last listing: the server is stopping, and a source may never answer.
    pub(crate) fn release(&self) {
        self.ended.send_replace(u64::MAX);
    }

    fn lock(&self) -> MutexGuard<'_, Refreshes> {
        self.refreshes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
