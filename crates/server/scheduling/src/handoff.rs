//! Shares a queue between callers and instance threads.
//!
//! States of an instance:
//! - `Executing` -> `Idle`: its thread requests a batch and none may leave;
//! - `Idle` -> `Called`: a batch is ready, or the scheduler closes; its thread wakes up;
//! - `Idle` -> `Claimed`: the caller that enqueued executes with it; `Claimed` -> `Called` or `Idle` when that is done;
//! - `Called` -> `Executing`, or `Idle` again if another instance was faster;
//! - `Idle` -> `Woken` -> `Executing`: an event of the instance's own ended its wait.
//!
//! An instance with continuous batching takes requests by [`try_next`](Handoff::try_next) while it executes others. It is
//! idle while it waits with room for more; without room, it parks until it is woken, and the queue does not call it.
//!
//! While a batch waits for more requests, one idle instance is the watcher: it wakes up when the batch has waited long
//! enough. While all instances execute no watcher is needed, because the first to finish finds the batch. The timer
//! handles requests whose timeout expires, regardless of the instances.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::sync::{Condvar, Mutex, MutexGuard, wait};
use super::{Claim, Enqueued, Item, Pulled, Queue, Readiness, Refusal, Ticket};
use crate::rate_limiter::{Permit, Permits};
use crate::shedding::{ServiceTime, exceeds_patience};
use crate::timer::Alarm;
use crate::{Adaptation, WaitingLevel};

/// A queue, and the instances that take batches from it.
pub struct Handoff<Q> {
    state: Mutex<State<Q>>,
    /// One for each instance: its thread waits there to be called.
    calls: Vec<Condvar>,
    /// Asked before each execution, if executions are limited.
    permits: Option<Permits>,
    /// Rings when a request may not wait any longer.
    alarm: Option<Alarm>,
    /// Execution times, if requests that would wait too long are refused.
    service: Option<Arc<ServiceTime>>,
}

struct State<Q> {
    queue: Q,
    instances: Vec<Activity>,
    /// The instances that were woken by events of their own and have not noticed yet.
    woken: Vec<bool>,
    /// The idle instances. The last one is called first: its caches are the warmest.
    idle: Vec<usize>,
    /// The idle instance that wakes up by itself.
    watcher: Option<usize>,
    /// When the watcher wakes up.
    watched: Option<Instant>,
    /// How many instances are called and not awake yet.
    called: usize,
    closed: bool,
    /// When the alarm rings.
    armed: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Executing,
    Idle,
    Called,
    Woken,
    Claimed,
}

impl<Q: Queue> Handoff<Q> {
    /// A scheduler for this number of instances. An instance is idle once its thread requests a batch.
    pub fn new(
        queue: Q,
        instances: usize,
        permits: Option<Permits>,
        alarm: Option<Alarm>,
        service: Option<Arc<ServiceTime>>,
    ) -> Self {
        let state = State {
            queue,
            instances: vec![Activity::Executing; instances],
            woken: vec![false; instances],
            idle: Vec::with_capacity(instances),
            watcher: None,
            watched: None,
            called: 0,
            closed: false,
            armed: None,
        };
        let calls = (0..instances).map(|_| Condvar::new()).collect();
        Self { state: Mutex::new(state), calls, permits, alarm, service }
    }

    /// See [`Scheduler::enqueue`](super::Scheduler::enqueue).
    #[allow(clippy::expect_used, reason = "an instance is idle, as checked before under the same lock")]
    pub fn enqueue(&self, item: Q::Item, at_once: bool) -> Enqueued<Q::Item> {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            item.refuse(Refusal::Closing);
            return Enqueued::Refused;
        }
        let item = if at_once && self.permits.is_none() && !state.idle.is_empty() {
            match state.queue.alone(item) {
                Err(item) => item,
                Ok(requests) => {
                    let instance = state.leave_idle(None).expect("one is idle, as seen above");
                    state.instances[instance] = Activity::Claimed;
                    return Enqueued::Claimed(Claim { instance, requests });
                }
            }
        } else {
            item
        };
        let now = Instant::now();
        if let Some(wait) = self.excessive_wait(&state.queue, &item, now) {
            drop(state);
            item.refuse(Refusal::TooLate(wait));
            return Enqueued::Refused;
        }
        match state.queue.push(item, now) {
            Ok(ticket) => {
                self.notify(state, now);
                Enqueued::Waits(ticket)
            }
            Err((item, why)) => {
                drop(state);
                item.refuse(why);
                Enqueued::Refused
            }
        }
    }

    /// How long an item would wait at least, if that is longer than it may.
    fn excessive_wait(&self, queue: &Q, item: &Q::Item, now: Instant) -> Option<Duration> {
        let service = self.service.as_ref()?;
        let patience = queue.patience(item);
        if patience.is_none() && item.deadline().is_none() {
            return None;
        }
        let wait = service.least_wait(queue.batches_before(item), self.calls.len())?;
        exceeds_patience(item, patience, wait, now).then_some(wait)
    }

    /// See [`Scheduler::next`](super::Scheduler::next).
    pub fn next(&self, instance: usize) -> Option<Vec<Q::Item>> {
        // Release and re-request in one step, so that waiting instances do not always win.
        let mut permit = if self.permits.is_none() { Permit::Granted } else { Permit::Used };
        let mut state = self.lock();
        if Q::OBSERVES_EXECUTIONS {
            state.queue.finished(instance, Instant::now());
        }
        loop {
            let now = Instant::now();
            state = self.refuse_expired(state, now);
            match (state.queue.readiness(now), &self.permits) {
                (Readiness::Now, Some(permits)) if permit != Permit::Granted => {
                    drop(state);
                    permits.acquire(instance);
                    permit = Permit::Granted;
                    state = self.lock();
                }
                (Readiness::Now, _) => {
                    let batch = state.queue.take(now);
                    if Q::OBSERVES_EXECUTIONS {
                        state.queue.started(instance, now);
                    }
                    // Others were not called while this one was on its way.
                    self.notify(state, now);
                    return Some(batch);
                }
                (_, Some(permits)) if permit == Permit::Used => {
                    drop(state);
                    permits.executed(instance);
                    permit = Permit::None;
                    state = self.lock();
                }
                (_, Some(permits)) if permit == Permit::Granted => {
                    // Another instance was faster.
                    drop(state);
                    permits.give_back(instance);
                    permit = Permit::None;
                    state = self.lock();
                }
                (Readiness::Nothing, _) if state.closed => return None,
                (Readiness::Nothing, _) => state = self.rest(state, instance, None),
                (Readiness::At(time), _) => state = self.rest(state, instance, Some(time)),
            }
        }
    }

    /// See [`Pulls::try_next`](super::Pulls::try_next).
    pub fn try_next(
        &self,
        instance: usize,
        is_idle: bool,
        fits: &mut dyn FnMut(&Q::Item) -> bool,
    ) -> Pulled<Q::Item> {
        let now = Instant::now();
        let mut state = self.refuse_expired(self.lock(), now);
        match state.queue.readiness(now) {
            Readiness::Now => {}
            Readiness::Nothing if state.closed => return Pulled::Closed,
            Readiness::Nothing | Readiness::At(_) => return Pulled::Nothing,
        }
        let has_room = is_idle || state.queue.first().is_some_and(fits);
        if !has_room || !self.permits.as_ref().is_none_or(|permits| permits.pull(instance, is_idle)) {
            // It may have been called for the request, which another instance may take.
            self.notify(state, now);
            return Pulled::Full;
        }
        let batch = state.queue.take(now);
        self.notify(state, now);
        Pulled::Taken(batch)
    }

    /// See [`Pulls::wait`](super::Pulls::wait).
    pub fn wait(&self, instance: usize, is_idle: bool) {
        let Some(permits) = self.permits.as_ref().filter(|_| is_idle) else {
            self.await_request(instance);
            return;
        };
        // An instance needs no resources until there is a request for it.
        permits.give_back(instance);
        while self.await_request(instance) {
            permits.acquire(instance);
            if self.lock().queue.readiness(Instant::now()) == Readiness::Now {
                return;
            }
            // Another instance was faster.
            permits.give_back(instance);
        }
    }

    /// Waits until a request may leave; `false` if the wait ended for another reason.
    fn await_request(&self, instance: usize) -> bool {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            state = self.refuse_expired(state, now);
            if std::mem::take(&mut state.woken[instance]) {
                // Another instance may be sooner done with what this one was called for.
                self.notify(state, now);
                return false;
            }
            state = match state.queue.readiness(now) {
                Readiness::Now => return true,
                Readiness::Nothing if state.closed => return false,
                Readiness::Nothing => self.rest(state, instance, None),
                Readiness::At(time) => self.rest(state, instance, Some(time)),
            };
        }
    }

    /// See [`Pulls::park`](super::Pulls::park).
    pub fn park(&self, instance: usize) {
        let mut state = self.lock();
        while !std::mem::take(&mut state.woken[instance]) {
            state = wait(&self.calls[instance], state, None);
        }
    }

    /// See [`Pulls::wake`](super::Pulls::wake).
    pub fn wake(&self, instance: usize) {
        let mut state = self.lock();
        state.woken[instance] = true;
        if state.instances[instance] == Activity::Idle {
            state.leave_idle(Some(instance));
            state.instances[instance] = Activity::Woken;
        }
        drop(state);
        self.calls[instance].notify_one();
    }

    /// See [`Scheduler::finished`](super::Scheduler::finished).
    pub fn finished(&self, instance: usize) {
        let mut state = self.lock();
        debug_assert_eq!(state.instances[instance], Activity::Claimed);
        if state.queue.len() == 0 && !state.closed {
            state.instances[instance] = Activity::Idle;
            state.idle.push(instance);
            return;
        }
        state.instances[instance] = Activity::Called;
        state.called += 1;
        drop(state);
        self.calls[instance].notify_one();
    }

    /// See [`Scheduler::cancel`](super::Scheduler::cancel).
    pub fn cancel(&self, ticket: Ticket) {
        let item = self.lock().queue.remove(ticket);
        if let Some(item) = item {
            item.refuse(Refusal::Cancelled);
        }
    }

    /// See [`Scheduler::pending`](super::Scheduler::pending).
    pub fn pending(&self) -> usize {
        self.lock().queue.len()
    }

    /// See [`Scheduler::waiting_levels`](super::Scheduler::waiting_levels).
    pub fn waiting_levels(&self, most: usize) -> Vec<WaitingLevel> {
        self.lock().queue.waiting_levels(most)
    }

    /// See [`Scheduler::adaptation`](super::Scheduler::adaptation).
    pub fn adaptation(&self) -> Option<Adaptation> {
        self.lock().queue.adaptation()
    }

    /// See [`Scheduler::close`](super::Scheduler::close).
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.close();
        while let Some(instance) = state.leave_idle(None) {
            state.instances[instance] = Activity::Called;
            state.called += 1;
            self.calls[instance].notify_one();
        }
    }

    /// The alarm rings: some requests may not wait any longer.
    pub fn ring(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        state.armed = None;
        let state = self.refuse_expired(state, now);
        self.notify(state, now);
    }

    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        // Nothing panics while the queue is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a change: calls an idle instance if there is something for it, and sets the alarm.
    fn notify(&self, mut state: MutexGuard<'_, State<Q>>, now: Instant) {
        let called = state.call(now, self.permits.as_ref());
        let alarm = match (&self.alarm, state.queue.next_expiry()) {
            (Some(alarm), Some(expiry)) if state.armed.is_none_or(|armed| expiry < armed) => {
                state.armed = Some(expiry);
                Some((alarm, expiry))
            }
            _ => None,
        };
        drop(state);
        if let Some(instance) = called {
            self.calls[instance].notify_one();
        }
        if let Some((alarm, expiry)) = alarm {
            alarm.set(expiry);
        }
    }

    fn refuse_expired<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<Q>>,
        now: Instant,
    ) -> MutexGuard<'a, State<Q>> {
        let expired = state.queue.expire(now);
        if expired.is_empty() {
            return state;
        }
        drop(state);
        expired.into_iter().for_each(|item| item.refuse(Refusal::Expired));
        self.lock()
    }

    /// The instance is idle until it is called. If no other one is the watcher, it also watches a batch until it may leave.
    fn rest<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<Q>>,
        instance: usize,
        batch_leaves: Option<Instant>,
    ) -> MutexGuard<'a, State<Q>> {
        state.instances[instance] = Activity::Idle;
        state.idle.push(instance);
        if batch_leaves.is_some() && state.watcher.is_none() {
            state.watcher = Some(instance);
            state.watched = batch_leaves;
        }
        // It may wake up for no reason while it is idle or claimed.
        while !matches!(state.instances[instance], Activity::Called | Activity::Woken) {
            let deadline = batch_leaves.filter(|_| state.watcher == Some(instance));
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                state.leave_idle(Some(instance));
                state.instances[instance] = Activity::Executing;
                return state;
            }
            state = wait(&self.calls[instance], state, deadline);
        }
        if state.instances[instance] == Activity::Called {
            state.called -= 1;
        }
        state.instances[instance] = Activity::Executing;
        state
    }
}

impl<Q: Queue> State<Q> {
    /// The idle instance to be woken up, if there is something for it that those on their way will not take.
    fn call(&mut self, now: Instant, permits: Option<&Permits>) -> Option<usize> {
        if self.idle.is_empty() {
            return None;
        }
        let readiness = self.queue.readiness(now);
        let needed = match readiness {
            Readiness::Nothing => false,
            // A watcher that would wake up too late looks again.
            Readiness::At(time) => {
                let is_watched = self.watcher.is_some() && self.watched.is_some_and(|until| until <= time);
                self.called == 0 && !is_watched
            }
            Readiness::Now => self.called == 0 || self.queue.batches() > self.called,
        };
        if !needed {
            return None;
        }
        let preferred = match readiness {
            // Another instance would leave it asleep for too long.
            Readiness::At(_) if self.watcher.is_some() => self.watcher,
            _ => permits.and_then(|permits| permits.first(&self.idle)),
        };
        let instance = self.leave_idle(preferred)?;
        self.instances[instance] = Activity::Called;
        self.called += 1;
        Some(instance)
    }

    /// Takes an instance off the idle ones: that one, or else the watcher, or else the one that was idle last.
    fn leave_idle(&mut self, instance: Option<usize>) -> Option<usize> {
        let instance = match instance.or(self.watcher) {
            None => return self.idle.pop(),
            Some(instance) => instance,
        };
        self.idle.retain(|other| *other != instance);
        if self.watcher == Some(instance) {
            self.watcher = None;
        }
        Some(instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate_limiter::{Needs, RateLimiter};

    struct Nothing;

    impl Item for Nothing {
        fn refuse(self, _: Refusal) {}
    }

    /// A queue whose batch leaves at a time.
    struct LeavesAt(Instant);

    impl Queue for LeavesAt {
        type Item = Nothing;

        fn push(&mut self, item: Nothing, _: Instant) -> Result<Ticket, (Nothing, Refusal)> {
            Err((item, Refusal::Closing))
        }

        fn alone(&mut self, item: Nothing) -> Result<Vec<Nothing>, Nothing> {
            Err(item)
        }

        fn readiness(&mut self, _: Instant) -> Readiness {
            Readiness::At(self.0)
        }

        fn first(&self) -> Option<&Nothing> {
            None
        }

        fn take(&mut self, _: Instant) -> Vec<Nothing> {
            Vec::new()
        }

        fn remove(&mut self, _: Ticket) -> Option<Nothing> {
            None
        }

        fn expire(&mut self, _: Instant) -> Vec<Nothing> {
            Vec::new()
        }

        fn next_expiry(&self) -> Option<Instant> {
            None
        }

        fn len(&self) -> usize {
            1
        }

        fn batches(&self) -> usize {
            1
        }

        fn close(&mut self) {}
    }

    #[test]
    fn a_watcher_that_sleeps_too_long_is_called_whatever_the_priorities() {
        let needs = |priority| Needs { instance: "i".into(), device: 0, resources: Vec::new(), priority };
        let permits = RateLimiter::new(Vec::new()).register(vec![needs(9), needs(1)]).unwrap();
        assert_eq!(permits.first(&[0, 1]), Some(1));
        let now = Instant::now();
        let [early, late] = [1, 2].map(|seconds| now + Duration::from_secs(seconds));
        for (leaves, watcher, called) in [
            (early, Some((0, late)), Some(0)),
            (late, Some((0, late)), None),
            (late, Some((0, early)), None),
            (early, None, Some(1)),
        ] {
            let mut state = State {
                queue: LeavesAt(leaves),
                instances: vec![Activity::Idle; 2],
                woken: vec![false; 2],
                idle: vec![0, 1],
                watcher: watcher.map(|(instance, _)| instance),
                watched: watcher.map(|(_, until)| until),
                called: 0,
                closed: false,
                armed: None,
            };
            assert_eq!(state.call(now, Some(&permits)), called, "{watcher:?}");
            assert_eq!(state.watcher, watcher.map(|(instance, _)| instance).filter(|_| called.is_none()));
        }
    }
}
