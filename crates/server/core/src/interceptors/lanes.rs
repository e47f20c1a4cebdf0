//! Requests of one sequence pass the interceptors one after the other.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nereid_backend_api::CorrelationId;
use tokio::sync::{Mutex as Lane, OwnedMutexGuard};

/// The sequences that have a request on its way.
#[derive(Default)]
pub(super) struct Lanes(Mutex<State>);

#[derive(Default)]
struct State {
    lanes: HashMap<CorrelationId, Arc<Lane<()>>>,
    /// Called once there is none.
    when_empty: Option<Box<dyn FnOnce() + Send>>,
}

impl Lanes {
    /// A turn behind all that entered before; `None` for a request of no sequence.
    pub(super) fn enter(self: &Arc<Self>, sequence: &CorrelationId) -> Option<Turn> {
        if *sequence == CorrelationId::None {
            return None;
        }
        let mut state = self.lock();
        let lane = Arc::clone(state.lanes.entry(sequence.clone()).or_default());
        let mut acquiring: Acquiring = Box::pin(lane.lock_owned());
        // The first poll is what takes a place in the lane, which is fair.
        let (acquiring, guard) = match acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => (None, Some(guard)),
            Poll::Pending => (Some(acquiring), None),
        };
        Some(Turn { acquiring, guard, lanes: Arc::clone(self), sequence: sequence.clone() })
    }

    /// Whether a request of that sequence is on its way.
    pub(super) fn contains(&self, sequence: &CorrelationId) -> bool {
        self.lock().lanes.contains_key(sequence)
    }

    /// Calls `done` once no request of any sequence is on its way, perhaps at once. Only the latest one is called.
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

/// A request's turn in its sequence. Dropped, the next one's comes.
pub(super) struct Turn {
    acquiring: Option<Acquiring>,
    guard: Option<OwnedMutexGuard<()>>,
    lanes: Arc<Lanes>,
    sequence: CorrelationId,
}

impl Turn {
    /// Whether the turn has come.
    pub(super) fn has_come(&self) -> bool {
        self.guard.is_some()
    }

    /// Waits until the turn has come.
    pub(super) async fn come(&mut self) {
        if let Some(acquiring) = &mut self.acquiring {
            self.guard = Some(acquiring.await);
            self.acquiring = None;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The next request's task runs here, perhaps; nothing is locked.
        (self.acquiring, self.guard) = (None, None);
        let mut state = self.lanes.lock();
        // Who enters takes the lane under the same lock, so nobody is about to.
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
    fn turns_come_in_the_order_of_entry_and_lanes_go_when_they_are_empty() {
        let lanes = Arc::new(Lanes::default());
        let (one, other) = (CorrelationId::Number(1), CorrelationId::Number(2));
        assert!(lanes.enter(&CorrelationId::None).is_none());
        let first = lanes.enter(&one).unwrap();
        let mut turns = [lanes.enter(&one).unwrap(), lanes.enter(&one).unwrap()];
        assert!(first.has_come() && turns.iter().all(|turn| !turn.has_come()));
        assert!(lanes.enter(&other).unwrap().has_come() && !lanes.contains(&other));
        let mut context = Context::from_waker(Waker::noop());
        let mut come = |turn: &mut Turn| Box::pin(turn.come()).as_mut().poll(&mut context).is_ready();
        assert!(!come(&mut turns[1]));
        drop(first);
        let [mut second, mut third] = turns;
        assert!(come(&mut second) && !come(&mut third));
        drop(second);
        assert!(come(&mut third));
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
    fn a_turn_that_is_given_up_holds_up_nobody() {
        let lanes = Arc::new(Lanes::default());
        let sequence = CorrelationId::Text("s".into());
        let first = lanes.enter(&sequence).unwrap();
        let second = lanes.enter(&sequence).unwrap();
        let mut third = lanes.enter(&sequence).unwrap();
        drop(second);
        drop(first);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Box::pin(third.come()).as_mut().poll(&mut context).is_ready());
    }
}
