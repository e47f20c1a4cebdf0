//! The timer: one thread for deadlines that no other thread waits for, such as queue timeouts while all instances
//! execute.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

/// The target of an alarm.
pub trait Ring: Send + Sync {
    /// Called at the set time. Must not block.
    fn ring(&self);
}

/// The thread, which starts with the first alarm and ends when the timer is dropped.
#[derive(Default)]
pub struct Timer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    alarms: BinaryHeap<Reverse<Due>>,
    running: bool,
    closed: bool,
}

struct Due {
    at: Instant,
    target: Weak<dyn Ring>,
}

impl Timer {
    /// An alarm that rings `target`.
    pub fn alarm(&self, target: Weak<dyn Ring>) -> Alarm {
        Alarm { shared: Arc::clone(&self.0), target }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

/// Rings one target, as often as it is set.
pub struct Alarm {
    shared: Arc<Shared>,
    target: Weak<dyn Ring>,
}

impl Alarm {
    /// Rings at that time, and replaces an earlier one.
    pub fn set(&self, at: Instant) {
        let mut state = self.shared.lock();
        let first = state.alarms.peek().is_none_or(|Reverse(due)| at < due.at);
        state.alarms.push(Reverse(Due { at, target: Weak::clone(&self.target) }));
        if !state.running && !state.closed {
            state.running = true;
            let shared = Arc::clone(&self.shared);
            let spawned = thread::Builder::new().name("nereid-timer".into()).spawn(move || shared.run());
            if let Err(error) = spawned {
                // Tried again with the next alarm; until then instances see to what has expired.
                state.running = false;
                tracing::error!("cannot start the timer thread: {error}");
            }
        }
        drop(state);
        if first {
            self.shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            state = match state.alarms.peek() {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Reverse(due)) if due.at > now => {
                    let left = due.at - now;
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let due = state.alarms.pop();
                    drop(state);
                    if let Some(target) = due.and_then(|Reverse(due)| due.target.upgrade()) {
                        target.ring();
                    }
                    self.lock()
                }
            };
        }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    struct Bell(&'static str, Sender<(&'static str, Instant)>);

    impl Ring for Bell {
        fn ring(&self) {
            self.1.send((self.0, Instant::now())).unwrap();
        }
    }

    #[test]
    fn alarms_ring_in_the_order_of_their_times_and_never_early() {
        let (sender, rung) = channel();
        let timer = Timer::default();
        let bells = ["late", "early"].map(|name| Arc::new(Bell(name, sender.clone())) as Arc<dyn Ring>);
        let [late, early] = [0, 1].map(|bell| timer.alarm(Arc::downgrade(&bells[bell])));
        let start = Instant::now();
        late.set(start + Duration::from_millis(500));
        early.set(start + Duration::from_millis(10));
        late.set(start + Duration::from_millis(20));
        for (name, millis) in [("early", 10), ("late", 20), ("late", 500)] {
            let (rang, at) = rung.recv().unwrap();
            assert_eq!(rang, name);
            assert!(at >= start + Duration::from_millis(millis));
        }
    }

    #[test]
    fn an_alarm_for_something_that_is_gone_is_let_be() {
        let (sender, rung) = channel();
        let timer = Timer::default();
        let gone: Arc<dyn Ring> = Arc::new(Bell("gone", sender.clone()));
        let here: Arc<dyn Ring> = Arc::new(Bell("here", sender));
        let alarm = timer.alarm(Arc::downgrade(&gone));
        drop(gone);
        alarm.set(Instant::now());
        timer.alarm(Arc::downgrade(&here)).set(Instant::now() + Duration::from_millis(1));
        assert_eq!(rung.recv().unwrap().0, "here");
    }
}
