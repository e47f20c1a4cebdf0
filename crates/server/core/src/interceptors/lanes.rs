//! Orders the requests of each sequence: they pass the interceptors one after the other.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nereid_backend_api::CorrelationId;
use tokio::sync::{Mutex as Lane, OwnedMutexGuard};

/// The sequences with requests that have not been queued yet.
#[derive(Default)]
pub(super) struct Lanes(Mutex<State>);

#[derive(Default)]
struct State {
    lanes: HashMap<CorrelationId, Arc<Lane<()>>>,
    /// Called once no lane is left.
    when_empty: Option<Box<dyn FnOnce() + Send>>,
}

impl Lanes {
    /// A turn after all requests that entered before; `None` for a request without a sequence.
    pub(super) fn enter(self: &Arc<Self>, sequence: &CorrelationId) -> Option<Turn> {
        if *sequence == CorrelationId::None {
            return None;
        }
        let mut state = self.lock();
        let lane = Arc::clone(state.lanes.entry(sequence.clone()).or_default());
        let mut acquiring: Acquiring = Box::pin(lane.lock_owned());
        // The first poll takes a place in the lane, which is fair.
        let (acquiring, guard) = match acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => (None, Some(guard)),
            Poll::Pending => (Some(acquiring), None),
        };
        Some(Turn { acquiring, guard, lanes: Arc::clone(self), sequence: sequence.clone() })
    }

    /// Whether a request of this sequence has not been queued yet.
    pub(super) fn contains(&self, sequence: &CorrelationId) -> bool {
        self.lock().lanes.contains_key(sequence)
    }

    /// Calls `done` once all requests of sequences have been queued, possibly at once. Only the latest callback is called.
    pub(super) fn when_empty(&self, done: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        if !state.lanes.is_empty() {
            state.when_empty = Some(done);
            return;
        }
        drop(state);
        done();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Acquiring = Pin<Box<dyn Future<Output = OwnedMutexGuard<()>> + Send>>;

/// A request's turn in its sequence. When it is dropped, the turn of the next request starts.
pub(super) struct Turn {
    acquiring: Option<Acquiring>,
    guard: Option<OwnedMutexGuard<()>>,
    lanes: Arc<Lanes>,
    sequence: CorrelationId,
}

impl Turn {
    /// Whether the turn has started.
    pub(super) fn is_current(&self) -> bool {
        self.guard.is_some()
    }

    /// Waits until the turn starts.
    pub(super) async fn wait(&mut self) {
        if let Some(acquiring) = &mut self.acquiring {
            self.guard = Some(acquiring.await);
            self.acquiring = None;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The next request's task may run here; nothing is locked.
        (self.acquiring, self.guard) = (None, None);
        let mut state = self.lanes.lock();
        // Entering takes the same lock, so no request can enter now.
        if state.lanes.get(&self.sequence).is_some_and(|lane| Arc::strong_count(lane) == 1) {
            state.lanes.remove(&self.sequence);
        }
        let emptied = if state.lanes.is_empty() { state.when_empty.take() } else { None };
        drop(state);
        if let Some(emptied) = emptied {
            emptied();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_start_in_order_of_entry_and_empty_lanes_are_removed() {
        let lanes = Arc::new(Lanes::default());
        let (one, other) = (CorrelationId::Number(1), CorrelationId::Number(2));
        assert!(lanes.enter(&CorrelationId::None).is_none());
        let first = lanes.enter(&one).unwrap();
        let mut turns = [lanes.enter(&one).unwrap(), lanes.enter(&one).unwrap()];
        assert!(first.is_current() && turns.iter().all(|turn| !turn.is_current()));
        assert!(lanes.enter(&other).unwrap().is_current() && !lanes.contains(&other));
        let mut context = Context::from_waker(Waker::noop());
        let mut is_next = |turn: &mut Turn| Box::pin(turn.wait()).as_mut().poll(&mut context).is_ready();
        assert!(!is_next(&mut turns[1]));
        drop(first);
        let [mut second, mut third] = turns;
        assert!(is_next(&mut second) && !is_next(&mut third));
        drop(second);
        assert!(is_next(&mut third));
        drop(third);
        assert!(!lanes.contains(&one));
    }

    #[test]
    fn the_end_of_the_last_turn_is_reported_once() {
        let lanes = Arc::new(Lanes::default());
        let (ends, ended) = std::sync::mpsc::channel();
        let report = |number: u32| {
            let ends = ends.clone();
            Box::new(move || ends.send(number).unwrap()) as Box<dyn FnOnce() + Send>
        };
        lanes.when_empty(report(1));
        assert_eq!(ended.try_recv(), Ok(1));
        let first = lanes.enter(&CorrelationId::Number(1)).unwrap();
        let second = lanes.enter(&CorrelationId::Number(2)).unwrap();
        lanes.when_empty(report(2));
        drop(first);
        assert!(ended.try_recv().is_err());
        drop(second);
        assert_eq!(ended.try_recv(), Ok(2));
        drop(lanes.enter(&CorrelationId::Number(3)));
        assert!(ended.try_recv().is_err());
    }

    #[test]
    fn abandoned_turn_does_not_delay_others() {
        let lanes = Arc::new(Lanes::default());
        let sequence = CorrelationId::Text("s".into());
        let first = lanes.enter(&sequence).unwrap();
        let second = lanes.enter(&sequence).unwrap();
        let mut third = lanes.enter(&sequence).unwrap();
        drop(second);
        drop(first);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Box::pin(third.wait()).as_mut().poll(&mut context).is_ready());
    }
}
