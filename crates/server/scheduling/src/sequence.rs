//! Schedules the requests of sequences to the instances that hold their slots.
//!
//! A sequence stays with one instance, so instances do not take from a common queue as they do in
//! `handoff`: each waits for its own sequences, and is woken when they change. The end of a request's
//! [`Turn`] releases the next request of its sequence.
//!
//! [`Turn`]: nereid_backend_api::Turn

pub mod checks;
pub mod configured;
mod prepare;
mod rules;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nereid_backend_api::{CorrelationId, Error, Request, SequenceFlags, TurnObserver};

use self::prepare::RequestPreparer;
use self::rules::Sequences;
use super::sync::wait;
use super::{Enqueued, Item, OpenSequence, Readiness, Refusal, RequestFormer, Scheduler, Ticket};
use crate::rate_limiter::{Permit, Permits};
use crate::shedding::{ServiceTime, exceeds_patience};
use crate::timer::{Alarm, Ring};

/// A slot of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the instance.
    pub instance: usize,
    /// The number of its slot.
    pub slot: usize,
}

impl Place {
    /// The number by which its turns go.
    fn number(self) -> u64 {
        (self.instance as u64) << 32 | self.slot as u64
    }

    fn of(number: u64) -> Self {
        Self { instance: (number >> 32) as usize, slot: (number & 0xffff_ffff) as usize }
    }
}

/// The scheduler of a model with `sequence_batching`.
pub struct SequenceScheduler {
    state: Mutex<State>,
    /// One for each instance: its thread waits there.
    calls: Vec<Condvar>,
    /// Asked before each execution, if executions are limited.
    permits: Option<Permits>,
    /// Rings when a sequence was idle, or has waited for a slot, for too long.
    alarm: Alarm,
    /// Execution times, if requests that would wait too long are refused.
    service: Option<Arc<ServiceTime>>,
}

struct State {
    sequences: Sequences<Request, RequestPreparer, RequestFormer>,
    /// The id of the next sequence without an id of its client.
    next_id: u64,
    closed: bool,
    /// When the alarm rings.
    armed: Option<Instant>,
    /// Called once no sequence is open.
    when_all_end: Option<Box<dyn FnOnce() + Send>>,
    /// Set once no client can continue a sequence.
    retired: bool,
}

impl SequenceScheduler {
    fn new(
        sequences: Sequences<Request, RequestPreparer, RequestFormer>,
        instances: usize,
        permits: Option<Permits>,
        alarm: Alarm,
        service: Option<Arc<ServiceTime>>,
    ) -> Self {
        let state =
            State { sequences, next_id: 1, closed: false, armed: None, when_all_end: None, retired: false };
        let calls = (0..instances).map(|_| Condvar::new()).collect();
        Self { state: Mutex::new(state), calls, permits, alarm, service }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a change: calls the instances that it is of interest for, and sets the alarm.
    fn notify(&self, mut state: MutexGuard<'_, State>) {
        let take_changed = state.sequences.take_changed();
        let expiry = state.sequences.next_expiry();
        let alarm = expiry.filter(|&expiry| state.armed.is_none_or(|armed| expiry < armed));
        if alarm.is_some() {
            state.armed = alarm;
        }
        let all_ended = if state.sequences.has_open() { None } else { state.when_all_end.take() };
        drop(state);
        for instance in take_changed {
            self.calls[instance].notify_one();
        }
        if let Some(expiry) = alarm {
            self.alarm.set(expiry);
        }
        if let Some(all_ended) = all_ended {
            all_ended();
        }
    }

    /// Answers what may not wait any longer.
    fn refuse_expired<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let expired = state.sequences.expire(now);
        self.notify(state);
        expired.into_iter().for_each(|request| request.refuse(Refusal::NoSlot));
        self.lock()
    }
}

impl Scheduler for SequenceScheduler {
    fn enqueue(&self, mut request: Request, _at_once: bool) -> Enqueued<Request> {
        let now = Instant::now();
        let mut state = self.lock();
        state.assign_sequence(&mut request);
        let waits_for_ever = request.deadline.is_none() && request.timeout.is_none();
        let excess = self.service.as_ref().filter(|_| !waits_for_ever).and_then(|service| {
            let wait = service.least_wait(state.sequences.executions_before(&request), 1)?;
            exceeds_patience(&request, request.timeout, wait, now).then_some(wait)
        });
        if let Some(wait) = excess {
            state.sequences.end_by_refusal(&request.correlation_id, now);
            self.notify(state);
            request.refuse(Refusal::TooLate(wait));
            return Enqueued::Refused;
        }
        match state.sequences.push(request, now) {
            Ok(ticket) => {
                if state.retired {
                    state.sequences.end_all(now);
                }
                self.notify(state);
                Enqueued::Waits(ticket)
            }
            Err((request, Refusal::NotStarted)) => {
                drop(state);
                let error = not_started(&request);
                // It was never taken in, so it counts as little as one that is wrong in itself.
                request.into_responder().into_sink();
                Enqueued::Wrong(error)
            }
            Err((request, why)) => {
                drop(state);
                request.refuse(why);
                Enqueued::Refused
            }
        }
    }

    fn next(&self, instance: usize) -> Option<Vec<Request>> {
        // Release and re-request in one step, so that waiting instances do not always win.
        let mut permit = if self.permits.is_none() { Permit::Granted } else { Permit::Used };
        let mut state = self.lock();
        state.sequences.executed(instance, Instant::now());
        loop {
            let now = Instant::now();
            state = self.refuse_expired(state, now);
            match (state.sequences.readiness(instance, now), &self.permits) {
                (Readiness::Now, Some(permits)) if permit != Permit::Granted => {
                    drop(state);
                    permits.acquire(instance);
                    permit = Permit::Granted;
                    state = self.lock();
                }
                (Readiness::Now, _) => {
                    let batch = state.sequences.take(instance, now);
                    self.notify(state);
                    return Some(batch);
                }
                (_, Some(permits)) if permit == Permit::Used => {
                    drop(state);
                    permits.executed(instance);
                    permit = Permit::None;
                    state = self.lock();
                }
                (_, Some(permits)) if permit == Permit::Granted => {
                    // The requests of the batch were cancelled in between.
                    drop(state);
                    permits.give_back(instance);
                    permit = Permit::None;
                    state = self.lock();
                }
                (Readiness::Nothing, _) if state.closed && state.sequences.is_done(instance) => return None,
                (Readiness::Nothing, _) => state = wait(&self.calls[instance], state, None),
                (Readiness::At(time), _) => state = wait(&self.calls[instance], state, Some(time)),
            }
        }
    }

    fn finished(&self, _instance: usize) {
        // No claim is ever given: a sequence's instance may have other things to do first.
    }

    fn cancel(&self, ticket: Ticket) {
        let mut state = self.lock();
        let removed = state.sequences.remove(ticket, Instant::now());
        self.notify(state);
        removed.into_iter().for_each(|request| request.refuse(Refusal::Cancelled));
    }

    fn pending(&self) -> usize {
        self.lock().sequences.len()
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.sequences.close(Instant::now());
        self.notify(state);
    }

    fn continues_sequence(&self, sequence: &CorrelationId) -> bool {
        self.lock().sequences.is_open(sequence)
    }

    fn has_sequences(&self) -> bool {
        self.lock().sequences.has_open()
    }

    fn open_sequences(&self, most: usize) -> (usize, Vec<OpenSequence>) {
        self.lock().sequences.open(most)
    }

    fn when_sequences_end(&self, done: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        state.when_all_end = Some(done);
        self.notify(state);
    }

    fn end_sequences(&self) {
        let mut state = self.lock();
        state.retired = true;
        state.sequences.end_all(Instant::now());
        self.notify(state);
    }
}

impl Ring for SequenceScheduler {
    fn ring(&self) {
        let mut state = self.lock();
        state.armed = None;
        drop(self.refuse_expired(state, Instant::now()));
    }
}

impl TurnObserver for SequenceScheduler {
    fn over(&self, turn: u64) {
        let mut state = self.lock();
        state.sequences.over(Place::of(turn), Instant::now());
        self.notify(state);
    }

    fn again(&self, turn: u64, request: Request) {
        if request.responder().is_cancelled() {
            self.over(turn);
            request.refuse(Refusal::Cancelled);
            return;
        }
        let mut state = self.lock();
        let outcome = state.sequences.again(Place::of(turn), request, Instant::now());
        self.notify(state);
        if let Err((request, why)) = outcome {
            request.refuse(why);
        }
    }
}

impl State {
    /// Makes a request that belongs to no sequence one of its own, where the model iterates.
    fn assign_sequence(&mut self, request: &mut Request) {
        if request.correlation_id != CorrelationId::None || !self.sequences.preparer().iterates() {
            return;
        }
        while self.sequences.is_open(&CorrelationId::Number(self.next_id)) {
            self.next_id += 1;
        }
        request.set_sequence(CorrelationId::Number(self.next_id), SequenceFlags { start: true, end: false });
        self.next_id += 1;
    }
}

pub(super) fn not_started(request: &Request) -> Error {
    Error::invalid_arg(format!(
        "sequence {} of model '{}' is not open: it ended, was idle for too long, or never began; clients must specify \
         the START flag on the first request of the sequence (sequence_start)",
        request.correlation_id,
        request.model_name()
    ))
}
