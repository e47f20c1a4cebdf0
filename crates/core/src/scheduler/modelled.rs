//! Every order in which threads can meet in [`handoff`](super::handoff), as far as loom finds them: the same file,
//! compiled once more over loom's locks.

use loom::sync::Arc;
use loom::thread;

use self::handoff::Handoff;
use super::fifo::Fifo;
use super::{Claim, Enqueued, Item, Queue, Readiness, Refusal, Ticket};

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
    fates: Arc<[loom::sync::atomic::AtomicUsize; 2]>,
}

const EXECUTED: usize = 1;
const REFUSED: usize = 100;

impl Job {
    fn end(&self, how: usize) {
        self.fates[self.number].fetch_add(how, loom::sync::atomic::Ordering::Relaxed);
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

/// What a client does with its job.
type Client = fn(&Handoff<Fifo<Job>>, Job);

/// Explores all meetings of instances that execute until the end, and of clients that each do something with a job of
/// their own. In the end every job has met one fate.
fn explore(instances: usize, clients: &'static [Client]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let handoff = Arc::new(Handoff::new(Fifo::default(), instances, None, None));
        let fates = Arc::new([(); 2].map(|()| loom::sync::atomic::AtomicUsize::new(0)));
        let workers: Vec<_> = (0..instances)
            .map(|instance| {
                let handoff = Arc::clone(&handoff);
                thread::spawn(move || {
                    while let Some(batch) = handoff.next(instance) {
                        execute(batch);
                    }
                })
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
        handoff.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(handoff.pending(), 0);
        for fate in &fates[..clients.len()] {
            let fate = fate.load(loom::sync::atomic::Ordering::Relaxed);
            assert!(fate == EXECUTED || fate == REFUSED, "{fate}");
        }
    });
}

fn queue(handoff: &Handoff<Fifo<Job>>, job: Job) {
    assert!(matches!(handoff.enqueue(job, false), Enqueued::Waits(_)));
}

fn queue_or_execute(handoff: &Handoff<Fifo<Job>>, job: Job) {
    if let Enqueued::Claimed(Claim { instance, requests }) = handoff.enqueue(job, true) {
        execute(requests);
        handoff.finished(instance);
    }
}

fn queue_and_cancel(handoff: &Handoff<Fifo<Job>>, job: Job) {
    if let Enqueued::Waits(ticket) = handoff.enqueue(job, false) {
        handoff.cancel(ticket);
    }
}

fn queue_and_ring(handoff: &Handoff<Fifo<Job>>, job: Job) {
    handoff.enqueue(job, false);
    handoff.ring();
}

fn queue_then_close(handoff: &Handoff<Fifo<Job>>, job: Job) {
    handoff.enqueue(job, false);
    handoff.close();
}

#[test]
fn two_clients_and_an_instance() {
    explore(1, &[queue, queue]);
}

#[test]
fn a_client_and_two_instances() {
    explore(2, &[queue]);
}

#[test]
fn a_client_that_executes_and_one_that_does_not() {
    explore(1, &[queue_or_execute, queue]);
}

#[test]
fn a_client_that_goes_away() {
    explore(1, &[queue_and_cancel, queue]);
}

#[test]
fn an_alarm_while_requests_come() {
    explore(1, &[queue_and_ring, queue]);
}

#[test]
fn an_end_while_requests_come() {
    explore(1, &[queue_then_close, queue_or_execute]);
}
