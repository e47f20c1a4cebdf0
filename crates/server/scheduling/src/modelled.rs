//! Every order in which threads can meet in [`handoff`](super::handoff), as far as loom finds them: the same file,
//! compiled once more over loom's locks.

use std::time::{Duration, Instant};

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use self::handoff::Handoff;
use super::fifo::Fifo;
use super::{Claim, Enqueued, Item, Pulled, Queue, Readiness, Refusal, Ticket};

#[expect(clippy::duplicate_mod, reason = "the same source over other locks is what this is about")]
#[path = "handoff.rs"]
mod handoff;

mod sync {
    use std::time::Instant;

    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Nothing ever waits for a time here.
    pub(super) fn wait<'a, T>(
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        _: Option<Instant>,
    ) -> MutexGuard<'a, T> {
        condvar.wait(guard).unwrap()
    }
}

/// A request that notes what becomes of it.
struct Job {
    number: usize,
    fates: Arc<Fates>,
}

/// The outcome of each job; 0 while there is none.
struct Fates {
    all: Mutex<Vec<usize>>,
    changed: Condvar,
}

const EXECUTED: usize = 1;
const REFUSED: usize = 100;

impl Job {
    fn end(&self, how: usize) {
        self.fates.all.lock().unwrap()[self.number] += how;
        self.fates.changed.notify_one();
    }
}

impl Item for Job {
    fn refuse(self, _: Refusal) {
        self.end(REFUSED);
    }
}

fn execute(batch: Vec<Job>) {
    batch.iter().for_each(|job| job.end(EXECUTED));
}

/// Jobs leave in pairs, or alone once the queue is closed. The first one of a pair waits for a time that never comes here, so
/// its watcher has to be called.
#[derive(Default)]
struct Pairs {
    jobs: Fifo<Job>,
    closed: bool,
}

impl Queue for Pairs {
    type Item = Job;

    fn push(&mut self, job: Job, now: Instant) -> Result<Ticket, (Job, Refusal)> {
        self.jobs.push(job, now)
    }

    fn alone(&mut self, job: Job) -> Result<Vec<Job>, Job> {
        Err(job)
    }

    fn readiness(&mut self, now: Instant) -> Readiness {
        match self.jobs.len() {
            0 => Readiness::Nothing,
            1 if !self.closed => Readiness::At(now + Duration::from_secs(3600)),
            _ => Readiness::Now,
        }
    }

    fn first(&self) -> Option<&Job> {
        self.jobs.first()
    }

    fn take(&mut self, now: Instant) -> Vec<Job> {
        match self.readiness(now) {
            Readiness::Now => [self.jobs.take(now), self.jobs.take(now)].into_iter().flatten().collect(),
            _ => Vec::new(),
        }
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Job> {
        self.jobs.remove(ticket)
    }

    fn expire(&mut self, now: Instant) -> Vec<Job> {
        self.jobs.expire(now)
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.jobs.next_expiry()
    }

    fn len(&self) -> usize {
        self.jobs.len()
    }

    fn batches(&self) -> usize {
        self.jobs.len().div_ceil(2)
    }

    fn close(&mut self) {
        self.closed = true;
    }
}

/// The action of a client.
type Client<Q> = fn(&Handoff<Q>, Job);

/// The loop of an instance's thread, until the scheduler is closed and empty.
type Instance<Q> = fn(&Handoff<Q>, usize);

/// When the scheduler is closed.
#[derive(Clone, Copy, PartialEq)]
enum Close {
    /// Waits until every job has an outcome: none may be lost.
    Late,
    /// As soon as all clients have done what they do.
    Early,
}

/// Explores all meetings of instances that execute until the end, and of clients that each do something with a job of
/// their own. In the end every job has met one fate.
fn explore<Q>(instances: usize, close: Close, clients: &'static [Client<Q>])
where
    Q: Queue<Item = Job> + Default + Send + 'static,
{
    explore_with(execute_batches, PREEMPTIONS, instances, close, clients);
}

/// How often a thread may lose its turn while it could continue.
const PREEMPTIONS: usize = 2;

/// [`explore`] with instances of this kind, and with more preemptions.
fn explore_with<Q>(
    run: Instance<Q>,
    preemptions: usize,
    instances: usize,
    close: Close,
    clients: &'static [Client<Q>],
) where
    Q: Queue<Item = Job> + Default + Send + 'static,
{
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let handoff = Arc::new(Handoff::new(Q::default(), instances, None, None, None));
        let fates = Arc::new(Fates { all: Mutex::new(vec![0; clients.len()]), changed: Condvar::new() });
        let workers: Vec<_> = (0..instances)
            .map(|instance| {
                let handoff = Arc::clone(&handoff);
                thread::spawn(move || run(&handoff, instance))
            })
            .collect();
        let others: Vec<_> = clients[1..]
            .iter()
            .enumerate()
            .map(|(index, client)| {
                let (handoff, job) =
                    (Arc::clone(&handoff), Job { number: index + 1, fates: Arc::clone(&fates) });
                thread::spawn(move || client(&handoff, job))
            })
            .collect();
        clients[0](&handoff, Job { number: 0, fates: Arc::clone(&fates) });
        others.into_iter().for_each(|client| client.join().unwrap());
        if close == Close::Late {
            let mut all = fates.all.lock().unwrap();
            while all.contains(&0) {
                all = fates.changed.wait(all).unwrap();
            }
        }
        handoff.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!((handoff.pending(), handoff.waiting_levels(1), handoff.adaptation()), (0, vec![], None));
        for fate in fates.all.lock().unwrap().iter() {
            assert!(*fate == EXECUTED || *fate == REFUSED, "{fate}");
        }
    });
}

fn execute_batches<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, instance: usize) {
    while let Some(batch) = handoff.next(instance) {
        execute(batch);
    }
}

/// Takes jobs as they come, with room for any number.
fn pull<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, instance: usize) {
    loop {
        match handoff.try_next(instance, true, &mut |_| false) {
            Pulled::Taken(batch) => execute(batch),
            Pulled::Closed => return,
            Pulled::Full | Pulled::Nothing => handoff.wait(instance, true),
        }
    }
}

/// Has room for one job. An event reports its end, here at once.
fn pull_into_one_slot<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, instance: usize) {
    let mut held = Vec::new();
    loop {
        match handoff.try_next(instance, held.is_empty(), &mut |_| false) {
            Pulled::Taken(batch) => {
                held = batch;
                handoff.wake(instance);
                continue;
            }
            Pulled::Closed if held.is_empty() => return,
            Pulled::Full | Pulled::Closed => handoff.park(instance),
            Pulled::Nothing => handoff.wait(instance, held.is_empty()),
        }
        execute(std::mem::take(&mut held));
    }
}

fn queue_and_wake<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, job: Job) {
    handoff.enqueue(job, false);
    handoff.wake(0);
}

fn queue<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, job: Job) {
    assert!(matches!(handoff.enqueue(job, false), Enqueued::Waits(_)));
}

fn queue_or_execute<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, job: Job) {
    if let Enqueued::Claimed(Claim { instance, requests }) = handoff.enqueue(job, true) {
        execute(requests);
        handoff.finished(instance);
    }
}

fn queue_and_cancel<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, job: Job) {
    if let Enqueued::Waits(ticket) = handoff.enqueue(job, false) {
        handoff.cancel(ticket);
    }
}

fn queue_and_ring<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, job: Job) {
    handoff.enqueue(job, false);
    handoff.ring();
}

fn queue_then_close<Q: Queue<Item = Job>>(handoff: &Handoff<Q>, job: Job) {
    handoff.enqueue(job, false);
    handoff.close();
}

#[test]
fn two_clients_and_an_instance() {
    explore::<Fifo<Job>>(1, Close::Late, &[queue, queue]);
}

#[test]
fn a_client_and_two_instances() {
    explore::<Fifo<Job>>(2, Close::Late, &[queue]);
}

#[test]
fn a_client_that_executes_and_one_that_does_not() {
    explore::<Fifo<Job>>(1, Close::Late, &[queue_or_execute, queue]);
}

#[test]
fn a_client_that_executes_while_the_instance_wakes_up_for_no_reason() {
    explore_with::<Fifo<Job>>(execute_batches, 3, 1, Close::Late, &[queue_or_execute, queue_and_wake]);
}

#[test]
fn a_client_that_goes_away() {
    explore::<Fifo<Job>>(1, Close::Late, &[queue_and_cancel, queue]);
}

#[test]
fn an_alarm_while_requests_come() {
    explore::<Fifo<Job>>(1, Close::Late, &[queue_and_ring, queue]);
}

#[test]
fn an_end_while_requests_come() {
    explore::<Fifo<Job>>(1, Close::Early, &[queue_then_close, queue_or_execute]);
}

#[test]
fn two_halves_of_a_pair() {
    explore::<Pairs>(1, Close::Late, &[queue, queue]);
    explore::<Pairs>(2, Close::Early, &[queue]);
}

#[test]
fn half_a_pair_whose_other_half_goes_away() {
    explore::<Pairs>(1, Close::Early, &[queue_and_cancel, queue]);
}

#[test]
fn half_a_pair_at_the_end() {
    explore::<Pairs>(1, Close::Early, &[queue_then_close]);
}

#[test]
fn instances_that_take_jobs_by_themselves() {
    explore_with::<Fifo<Job>>(pull, PREEMPTIONS, 1, Close::Late, &[queue, queue]);
    explore_with::<Fifo<Job>>(pull, PREEMPTIONS, 1, Close::Early, &[queue_then_close, queue_and_cancel]);
    explore_with::<Fifo<Job>>(pull, PREEMPTIONS, 2, Close::Late, &[queue]);
}

#[test]
fn an_instance_that_is_woken_while_requests_come() {
    explore_with::<Fifo<Job>>(pull, PREEMPTIONS, 1, Close::Late, &[queue_and_wake, queue]);
    explore_with::<Fifo<Job>>(pull, PREEMPTIONS, 2, Close::Early, &[queue_and_wake]);
}

#[test]
fn an_instance_that_parks_while_its_slot_is_taken() {
    explore_with::<Fifo<Job>>(pull_into_one_slot, PREEMPTIONS, 1, Close::Late, &[queue, queue]);
    explore_with::<Fifo<Job>>(pull_into_one_slot, PREEMPTIONS, 1, Close::Early, &[queue, queue_and_wake]);
    explore_with::<Fifo<Job>>(pull_into_one_slot, PREEMPTIONS, 2, Close::Late, &[queue]);
}
