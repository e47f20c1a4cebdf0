//! The woken requests of a connection. The first one wakes the connection's task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// The place of a connection's timers, distinct from those of requests.
pub(crate) const TIMERS: u32 = u32::MAX;

/// The woken places.
#[derive(Debug, Default)]
pub(crate) struct Woken {
    places: Mutex<Vec<u32>>,
    connection: AtomicWaker,
}

/// Wakes one place, which serves one request after the other.
#[derive(Debug)]
pub(crate) struct PlaceWaker {
    place: u32,
    /// Whether the place is in the list.
    is_listed: AtomicBool,
    woken: Arc<Woken>,
}

impl Woken {
    /// The waker of a place, and its other end.
    pub(crate) fn waker(self: &Arc<Self>, place: u32) -> (Waker, Arc<PlaceWaker>) {
        let waker =
            Arc::new(PlaceWaker { place, is_listed: AtomicBool::new(false), woken: Arc::clone(self) });
        (Waker::from(Arc::clone(&waker)), waker)
    }

    /// The task of the connection, to be called before [`take`](Self::take).
    pub(crate) fn register(&self, task: &Waker) {
        self.connection.register(task);
    }

    /// Swaps the list with an empty one.
    pub(crate) fn take(&self, places: &mut Vec<u32>) {
        std::mem::swap(&mut *self.places.lock().unwrap_or_else(PoisonError::into_inner), places);
    }
}

impl PlaceWaker {
    /// Called before the place is polled: it may be woken again from now on.
    pub(crate) fn taken(&self) {
        self.is_listed.swap(false, Ordering::AcqRel);
    }
}

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_listed.swap(true, Ordering::AcqRel) {
            self.woken.places.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
            self.woken.connection.wake();
        }
    }
}
