//! How far the fetches in progress are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ModelId;
use crate::events::Events;

/// Reports how far a fetch is. Every report is a change that subscribers hear of.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    counts: Arc<Counts>,
    events: Events,
}

#[derive(Debug, Default)]
struct Counts {
    fetched: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Adds to the bytes to be fetched.
    pub fn expect(&self, bytes: u64) {
        self.counts.total.fetch_add(bytes, Ordering::Relaxed);
        self.events.notify();
    }

    /// Adds to the bytes fetched.
    pub fn advance(&self, bytes: u64) {
        self.counts.fetched.fetch_add(bytes, Ordering::Relaxed);
        self.events.notify();
    }

    /// How many bytes are fetched, and of how many.
    pub fn bytes(&self) -> (u64, u64) {
        (self.counts.fetched.load(Ordering::Relaxed), self.counts.total.load(Ordering::Relaxed))
    }
}

/// A fetch in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchStatus {
    /// The model.
    pub id: ModelId,
    /// How many bytes are there.
    pub fetched: u64,
    /// How many bytes are to be fetched, as far as the source knows.
    pub total: u64,
}

/// All fetches in progress.
#[derive(Debug)]
pub(crate) struct Fetches {
    models: Mutex<BTreeMap<ModelId, Progress>>,
    events: Events,
}

impl Fetches {
    pub(crate) fn new(events: Events) -> Self {
        Self { models: Mutex::default(), events }
    }

    /// A fetch begins, and is in progress as long as what this returns is there.
    pub(crate) fn begin<'a>(&'a self, id: &'a ModelId) -> Fetching<'a> {
        let progress = Progress { counts: Arc::default(), events: self.events.clone() };
        self.lock().insert(id.clone(), progress.clone());
        self.events.notify();
        Fetching { fetches: self, id, progress }
    }

    pub(crate) fn status(&self) -> Vec<FetchStatus> {
        let status = |(id, progress): (&ModelId, &Progress)| {
            let (fetched, total) = progress.bytes();
            FetchStatus { id: id.clone(), fetched, total }
        };
        self.lock().iter().map(status).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, Progress>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them.
pub(crate) struct Fetching<'a> {
    fetches: &'a Fetches,
    id: &'a ModelId,
    pub(crate) progress: Progress,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.fetches.lock().remove(self.id);
        self.fetches.events.notify();
    }
}
