//! How far the fetches in progress are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::events::{Changes, Events};
use crate::spec::ModelId;

/// Reports the progress of a fetch. Every report is a change that notifies subscribers.
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

    /// Subscribes to reports, including those of the server's other fetches.
    pub fn reports(&self) -> Changes {
        self.events.subscribe()
    }
}

/// A fetch in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchStatus {
    /// The model.
    pub id: ModelId,
    /// The number of bytes received.
    pub fetched: u64,
    /// The number of bytes to fetch, as far as known.
    pub total: u64,
    /// For how long it has been in progress.
    pub elapsed: Duration,
}

impl FetchStatus {
    /// In words: how much is there, how fast it comes, and how long the rest takes at this rate.
    pub fn describe(&self) -> String {
        let (there, total) = (self.fetched >> 10, self.total >> 10);
        let rate = u128::from(self.fetched) * 1000 / self.elapsed.as_millis().max(1);
        let left = u128::from(self.total.saturating_sub(self.fetched)).checked_div(rate);
        let left = left.map_or_else(String::new, |seconds| format!(", {seconds} s left"));
        format!("fetching: {there} of {total} KiB, {} KiB/s{left}", rate >> 10)
    }
}

/// All fetches in progress.
#[derive(Debug)]
pub(crate) struct Fetches {
    models: Mutex<BTreeMap<ModelId, (Instant, Progress)>>,
    events: Events,
}

impl Fetches {
    pub(crate) fn new(events: Events) -> Self {
        Self { models: Mutex::default(), events }
    }

    /// A fetch begins, and is in progress as long as what this returns is there.
    pub(crate) fn begin<'a>(&'a self, id: &'a ModelId) -> FetchInProgress<'a> {
        let progress = Progress { counts: Arc::default(), events: self.events.clone() };
        self.lock().insert(id.clone(), (Instant::now(), progress.clone()));
        self.events.notify();
        FetchInProgress { fetches: self, id, progress }
    }

    pub(crate) fn status(&self) -> Vec<FetchStatus> {
        let status = |(id, (began, progress)): (&ModelId, &(Instant, Progress))| {
            let (fetched, total) = progress.bytes();
            FetchStatus { id: id.clone(), fetched, total, elapsed: began.elapsed() }
        };
        self.lock().iter().map(status).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, (Instant, Progress)>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them.
pub(crate) struct FetchInProgress<'a> {
    fetches: &'a Fetches,
    id: &'a ModelId,
    pub(crate) progress: Progress,
}

impl Drop for FetchInProgress<'_> {
    fn drop(&mut self) {
        self.fetches.lock().remove(self.id);
        self.fetches.events.notify();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn each_report_is_heard() {
        let progress = Progress::default();
        let (heard, mut reports) = (progress.clone(), progress.reports());
        assert_eq!(reports.next().now_or_never(), None);
        for (report, expected) in
            [(Progress::expect as fn(&Progress, u64), (0, 7)), (Progress::advance, (7, 7))]
        {
            report(&progress, 7);
            assert!(reports.next().now_or_never().is_some());
            assert_eq!(heard.bytes(), expected);
            assert_eq!(reports.next().now_or_never(), None);
        }
    }

    #[test]
    fn a_fetch_says_how_far_it_is() {
        for (fetched, total, milliseconds, expected) in [
            (0, 0, 0, "fetching: 0 of 0 KiB, 0 KiB/s"),
            (0, 4096, 500, "fetching: 0 of 4 KiB, 0 KiB/s"),
            (2048, 10_240, 1000, "fetching: 2 of 10 KiB, 2 KiB/s, 4 s left"),
            (10_240, 10_240, 2000, "fetching: 10 of 10 KiB, 5 KiB/s, 0 s left"),
            (
                u64::MAX,
                u64::MAX,
                0,
                "fetching: 18014398509481983 of 18014398509481983 KiB, 18014398509481983999 KiB/s, 0 s left",
            ),
        ] {
            let id = ModelId::plain("m");
            let status = FetchStatus { id, fetched, total, elapsed: Duration::from_millis(milliseconds) };
            assert_eq!(status.describe(), expected);
        }
    }
}
