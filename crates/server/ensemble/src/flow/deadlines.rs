//! The deadlines of steps: one alarm for all requests to an ensemble.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use nereid_core::timer::{Alarm, Ring, Timer};

/// The deadlines of an ensemble's requests. Its thread starts with the first one.
pub(crate) struct Deadlines {
    shared: Arc<Shared>,
    _timer: Timer,
}

struct Shared {
    state: Mutex<State>,
    alarm: Alarm,
}

#[derive(Default)]
struct State {
    /// The wakers, by deadline.
    waiting: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    /// When the alarm rings. Not later than the first deadline.
    set: Option<Instant>,
}

/// Completes at a time.
pub(crate) struct Deadline {
    shared: Arc<Shared>,
    key: (Instant, u64),
}

impl Default for Deadlines {
    fn default() -> Self {
        let timer = Timer::default();
        let shared = Arc::new_cyclic(|shared| {
            let target: std::sync::Weak<Shared> = shared.clone();
            Shared { state: Mutex::default(), alarm: timer.alarm(target) }
        });
        Self { shared, _timer: timer }
    }
}

impl Deadlines {
    /// A deadline at this time.
    pub(crate) fn at(&self, end: Instant) -> Deadline {
        let mut state = self.shared.lock();
        let number = state.next;
        state.next += 1;
        drop(state);
        Deadline { shared: Arc::clone(&self.shared), key: (end, number) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the alarm to the first deadline, unless it rings before.
    fn wind(&self, state: &mut State) {
        let Some(&(first, _)) = state.waiting.keys().next() else { return };
        if state.set.is_none_or(|set| first < set) {
            state.set = Some(first);
            self.alarm.set(first);
        }
    }
}

impl State {
    /// Takes out who has waited until now.
    fn expire(&mut self, now: Instant) -> Vec<Waker> {
        let mut expired = Vec::new();
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            expired.push(first.remove());
        }
        expired
    }
}

impl Ring for Shared {
    fn ring(&self) {
        let mut state = self.lock();
        state.set = None;
        let expired = state.expire(Instant::now());
        self.wind(&mut state);
        drop(state);
        expired.into_iter().for_each(Waker::wake);
    }
}

impl Future for Deadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        let mut state = self.shared.lock();
        match state.waiting.get_mut(&self.key) {
            Some(waker) => waker.clone_from(context.waker()),
            None => {
                state.waiting.insert(self.key, context.waker().clone());
                self.shared.wind(&mut state);
            }
        }
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let waker = self.shared.lock().waiting.remove(&self.key);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    proptest! {
        /// Deadlines far away, so that no thread looks at them.
        #[test]
        fn whoever_waits_is_woken_once_its_time_is_over(
            ends in prop::collection::vec(1_000..2_000_u64, 1..50),
            dropped in prop::collection::vec(any::<bool>(), 50),
            times in prop::collection::vec(1_000..2_000_u64, 1..10),
        ) {
            let (deadlines, start) = (Deadlines::default(), Instant::now());
            let at = |seconds: u64| start + Duration::from_secs(seconds);
            let woken: Vec<_> = ends.iter().map(|_| Arc::<Woken>::default()).collect();
            let mut waiting = Vec::new();
            for (index, &end) in ends.iter().enumerate() {
                let waker = Waker::from(Arc::clone(&woken[index]));
                let mut deadline = deadlines.at(at(end));
                for _ in 0..2 {
                    let poll = Pin::new(&mut deadline).poll(&mut Context::from_waker(&waker));
                    prop_assert!(poll.is_pending());
                }
                if !dropped[index] {
                    waiting.push(deadline);
                }
            }
            let mut last = 0;
            for time in times {
                let first = deadlines.shared.lock().waiting.keys().next().map(|key| key.0);
                prop_assert!(first.is_none() || deadlines.shared.lock().set <= first);
                last = last.max(time);
                let expired = deadlines.shared.lock().expire(at(time));
                expired.into_iter().for_each(Waker::wake);
                for (index, &end) in ends.iter().enumerate() {
                    let expected = usize::from(!dropped[index] && end <= last);
                    prop_assert_eq!(woken[index].0.load(Ordering::Relaxed), expected);
                }
            }
            drop(waiting);
            prop_assert!(deadlines.shared.lock().waiting.is_empty());
        }
    }
}
