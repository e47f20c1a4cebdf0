//! Schedules requests to a model's instances.
//!
//! Instances pull: there is no thread between the caller that enqueues and the instance that executes. Where the
//! hand-off to the instance's thread would cost more than the execution, the caller may execute itself: see [`Claim`].
//! The [rate limiter](rate_limiter) limits executions of all models, and the [`timer`] rings when requests expire.
//!
//! A scheduler has two parts. A `Queue` holds the rules by which requests leave, alone or in batches, and is a plain
//! value: time is an argument. `Handoff` shares a queue between those who enqueue and the instances' threads. Senders
//! share a queue by their weights: see `fair`.
//!
//! Knows no model, no backend and no server: requests, instances and permits are all that it sees.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod batcher;
pub mod configured;
mod fair;
mod fifo;
mod former;
mod handoff;
#[cfg(test)]
mod modelled;
mod ordering;
pub mod rate_limiter;
pub mod sequence;
pub mod shedding;
mod sync;
mod tickets;
pub mod timer;

use std::time::{Duration, Instant};

use nereid_backend_api::{CorrelationId, Error, Flow, Request};

use self::fifo::Fifo;
use self::former::RequestFormer;
use self::handoff::Handoff;
use self::ordering::Order;
use crate::timer::Ring;

/// Decides which requests of a model are executed together, when, and by which of its instances.
///
/// An instance is idle, or executes requests from [`next`](Self::next) or [`enqueue`](Self::enqueue). Instances are numbered
/// from 0.
pub trait Scheduler: Send + Sync {
    /// Takes a request. One that cannot be taken is answered at once.
    ///
    /// With `at_once`, the caller offers to execute: if the request may leave by itself, nothing waits before it and an
    /// instance is idle, the caller gets both back, and calls [`finished`](Self::finished) after the execution.
    fn enqueue(&self, request: Request, at_once: bool) -> Enqueued<Request>;

    /// The requests that an instance executes next on its own thread, at least one. Waits for them; `None` once the
    /// scheduler is closed and nothing is left.
    fn next(&self, instance: usize) -> Option<Vec<Request>>;

    /// The instance of a claim has executed.
    fn finished(&self, instance: usize);

    /// Removes and answers a cancelled request, if it still waits.
    fn cancel(&self, ticket: Ticket);

    /// How many requests wait.
    fn pending(&self) -> usize;

    /// The priority levels with waiting requests, the most urgent first, but not more than `most`. None without levels.
    fn waiting_levels(&self, _most: usize) -> Vec<WaitingLevel> {
        Vec::new()
    }

    /// The learned values of a scheduler with a latency objective; `None` for others.
    fn adaptation(&self) -> Option<Adaptation> {
        None
    }

    /// Takes no further request. What was taken before is still executed, without delay.
    fn close(&self);

    /// Whether further requests of that sequence are welcome.
    fn continues_sequence(&self, _sequence: &CorrelationId) -> bool {
        false
    }

    /// Whether clients may continue a sequence here.
    fn has_sequences(&self) -> bool {
        false
    }

    /// The number of sequences that clients may continue here, and the oldest ones of them, in order.
    fn open_sequences(&self, _most: usize) -> (usize, Vec<OpenSequence>) {
        (0, Vec::new())
    }

    /// Calls `done` once no client can continue a sequence here, perhaps at once. Only the latest callback is called.
    fn when_sequences_end(&self, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    /// No client can continue its sequence any more.
    fn end_sequences(&self) {}

    /// This scheduler for instances that take requests by themselves; `None` if it does not support them.
    fn pulls(&self) -> Option<&dyn Pulls> {
        None
    }
}

/// Requests of a priority level that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingLevel {
    /// The level's number; 1 is the most urgent.
    pub level: u64,
    /// The number of requests, at least one.
    pub waiting: usize,
    /// When the request that leaves first was queued.
    pub since: Instant,
}

/// How a batcher follows a latency objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptation {
    /// The time within which 99 of 100 requests should be answered.
    pub objective: Duration,
    /// The size at which a batch leaves at once, in items.
    pub batch_size: usize,
    /// How long the last batch was to wait for more requests.
    pub delay: Duration,
    /// The expected time of an execution with that size, once some were measured.
    pub run_time: Option<Duration>,
}

/// A sequence that clients may continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSequence {
    /// The client's id of the sequence.
    pub id: CorrelationId,
    /// The instance and the slot that it has; `None` while it waits for one.
    pub place: Option<(usize, usize)>,
    /// When it began.
    pub began: Instant,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Bytes of the implicit states.
    pub state_bytes: usize,
}

/// A scheduler for instances that take requests while they execute others. They do not call [`Scheduler::next`].
pub trait Pulls: Send + Sync {
    /// Takes the next request if it `fits`. An instance that `is_idle` holds no request and takes any. Does not block, except
    /// for the lock.
    fn try_next(
        &self,
        instance: usize,
        is_idle: bool,
        fits: &mut dyn FnMut(&Request) -> bool,
    ) -> Pulled<Request>;

    /// Waits until a request may leave the queue, the scheduler is closed and empty, or the instance is woken. Only for an
    /// instance that has room.
    fn wait(&self, instance: usize, is_idle: bool);

    /// Waits until the instance is woken.
    fn park(&self, instance: usize);

    /// Ends the current or the next wait of an instance.
    fn wake(&self, instance: usize);
}

/// The outcome of [`Pulls::try_next`].
#[derive(Debug, PartialEq, Eq)]
pub enum Pulled<T> {
    /// The requests that left the queue, which execute together.
    Taken(Vec<T>),
    /// The next request does not fit, or instances of other models are served first.
    Full,
    /// No request may leave.
    Nothing,
    /// The scheduler is closed, and no request is left.
    Closed,
}

/// The outcome of enqueueing a request.
#[derive(Debug)]
pub enum Enqueued<T> {
    /// The request waits, and its ticket can remove it.
    Waits(Ticket),
    /// The caller executes it.
    Claimed(Claim<T>),
    /// The request was refused and answered.
    Refused,
    /// The request is invalid, and was not answered.
    Wrong(Error),
}

/// Requests, and the idle instance that executes them on the thread of the claim's holder.
#[derive(Debug)]
pub struct Claim<T> {
    /// The instance's number.
    pub instance: usize,
    /// The requests, at least one.
    pub requests: Vec<T>,
}

/// A place in a queue, never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    level: u64,
    /// Where the queue stores the item.
    slot: usize,
    number: u64,
}

impl Ticket {
    /// A ticket of a scheduler with one number for each request.
    pub fn numbered(number: u64) -> Self {
        Self { level: 0, slot: 0, number }
    }

    /// The number it was made of.
    pub fn number(self) -> u64 {
        self.number
    }
}

/// An entry of a queue.
pub trait Item: Sized {
    /// Answers it: it will not be executed.
    fn refuse(self, why: Refusal);

    /// When its client stops waiting for the answer.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// How long its client lets it wait, if its queue has no timeout of its own.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// The sender, which shares the queue with others.
    fn flow(&self) -> Flow {
        Flow::default()
    }

    /// The part of its sender's share that it uses up, at least 1.
    fn cost(&self) -> usize {
        1
    }
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No further request is taken.
    Closing,
    /// The queue is full: this is its limit.
    Full(usize),
    /// The request exceeded its timeout in the queue.
    Expired,
    /// The request would wait at least this long, which is longer than it may.
    TooLate(Duration),
    /// The request was cancelled.
    Cancelled,
    /// The limit of sequences that wait for a slot is reached.
    BacklogFull(usize),
    /// The request's sequence exceeded the timeout of the backlog.
    NoSlot,
    /// The request continues a sequence that is not open.
    NotStarted,
}

impl Item for Request {
    fn refuse(self, why: Refusal) {
        let model = self.model_name();
        let error = match why {
            Refusal::Closing => Error::unavailable(format!("model '{model}' is being unloaded")),
            Refusal::Full(limit) => Error::unavailable(format!(
                "Exceeds maximum queue size: model '{model}' has {limit} pending requests, its max_queue_size"
            )),
            // Clients compare the whole message.
            Refusal::Expired => Error::unavailable("Request timeout expired"),
            Refusal::TooLate(wait) => match self.deadline {
                Some(_) => Error::unavailable(format!(
                    "the request would miss its deadline: requests to model '{model}' wait for {} ms at least",
                    wait.as_millis()
                )),
                None => Error::unavailable("Request timeout expired"),
            }
            .with_retry_after(wait),
            Refusal::Cancelled => Error::cancelled("the request was cancelled while it was queued"),
            Refusal::BacklogFull(limit) => Error::unavailable(format!(
                "Exceeds maximum queue size: {limit} sequences of model '{model}' wait for a slot; try again later"
            )),
            Refusal::NoSlot => Error::unavailable(format!(
                "timeout of the corresponding sequence has been expired: it waited for a slot of model '{model}' \
                 longer than the request timeout"
            )),
            Refusal::NotStarted => sequence::not_started(&self),
        };
        self.answer(Err(error));
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn flow(&self) -> Flow {
        self.flow
    }

    fn cost(&self) -> usize {
        self.batch_size().max(1)
    }
}

/// The rules by which queued requests leave. It has no clock and no thread: the time is an argument.
pub(crate) trait Queue {
    /// The entries.
    type Item: Item;

    /// Whether [`started`](Self::started) and [`finished`](Self::finished) are called.
    const OBSERVES_EXECUTIONS: bool = false;

    /// Adds an item, or returns it with the reason for the refusal.
    fn push(&mut self, item: Self::Item, now: Instant) -> Result<Ticket, (Self::Item, Refusal)>;

    /// The batch of an item that need not wait in an empty queue; otherwise the item.
    fn alone(&mut self, item: Self::Item) -> Result<Vec<Self::Item>, Self::Item>;

    /// Whether a batch may leave.
    fn readiness(&mut self, now: Instant) -> Readiness;

    /// The item that leaves first.
    fn first(&self) -> Option<&Self::Item>;

    /// The batch that may leave now; empty if none may.
    fn take(&mut self, now: Instant) -> Vec<Self::Item>;

    /// Takes an item out, if it is still there.
    fn remove(&mut self, ticket: Ticket) -> Option<Self::Item>;

    /// Takes out what has waited longer than it may.
    fn expire(&mut self, now: Instant) -> Vec<Self::Item>;

    /// When [`expire`](Self::expire) has something to do next.
    fn next_expiry(&self) -> Option<Instant>;

    /// How long an item may wait, by the queue's rules or else by its client.
    fn patience(&self, item: &Self::Item) -> Option<Duration> {
        item.timeout()
    }

    /// How many batches leave at least before the one of an item that comes now.
    fn batches_before(&self, _item: &Self::Item) -> usize {
        0
    }

    /// How many items wait.
    fn len(&self) -> usize;

    /// See [`Scheduler::waiting_levels`].
    fn waiting_levels(&self, _most: usize) -> Vec<WaitingLevel> {
        Vec::new()
    }

    /// How many batches what waits would make at least.
    fn batches(&self) -> usize;

    /// From now on nothing waits for company.
    fn close(&mut self);

    /// An instance executes the batch that was taken last.
    fn started(&mut self, _instance: usize, _now: Instant) {}

    /// An instance is done with its batch, if it had one.
    fn finished(&mut self, _instance: usize, _now: Instant) {}

    /// See [`Scheduler::adaptation`].
    fn adaptation(&self) -> Option<Adaptation> {
        None
    }
}

/// Whether a batch may leave a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// There is none.
    Nothing,
    /// At this time, unless something changes before.
    At(Instant),
    /// Now.
    Now,
}

impl<Q: Queue<Item = Request> + Send> Scheduler for Handoff<Q> {
    fn enqueue(&self, request: Request, at_once: bool) -> Enqueued<Request> {
        Handoff::enqueue(self, request, at_once)
    }

    fn next(&self, instance: usize) -> Option<Vec<Request>> {
        Handoff::next(self, instance)
    }

    fn finished(&self, instance: usize) {
        Handoff::finished(self, instance);
    }

    fn cancel(&self, ticket: Ticket) {
        Handoff::cancel(self, ticket);
    }

    fn pending(&self) -> usize {
        Handoff::pending(self)
    }

    fn waiting_levels(&self, most: usize) -> Vec<WaitingLevel> {
        Handoff::waiting_levels(self, most)
    }

    fn adaptation(&self) -> Option<Adaptation> {
        Handoff::adaptation(self)
    }

    fn close(&self) {
        Handoff::close(self);
    }

    fn pulls(&self) -> Option<&dyn Pulls> {
        Some(self)
    }
}

impl<Q: Queue<Item = Request> + Send> Pulls for Handoff<Q> {
    fn try_next(
        &self,
        instance: usize,
        is_idle: bool,
        fits: &mut dyn FnMut(&Request) -> bool,
    ) -> Pulled<Request> {
        Handoff::try_next(self, instance, is_idle, fits)
    }

    fn wait(&self, instance: usize, is_idle: bool) {
        Handoff::wait(self, instance, is_idle);
    }

    fn park(&self, instance: usize) {
        Handoff::park(self, instance);
    }

    fn wake(&self, instance: usize) {
        Handoff::wake(self, instance);
    }
}

impl<Q: Queue + Send> Ring for Handoff<Q> {
    fn ring(&self) {
        Handoff::ring(self);
    }
}
