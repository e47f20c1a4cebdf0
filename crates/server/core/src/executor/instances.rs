//! A model of a backend: its instances, their threads, and the scheduler that feeds them requests.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nereid_backend_api::{CorrelationId, MemoryUsage, ReadinessReports, Request, Result};

use super::{Executor, ReadyCheck, Sequences};
use crate::instance::Pool;
use crate::readiness::Readiness;
use nereid_scheduling::{Adaptation, Enqueued, OpenSequence, Scheduler, Ticket, WaitingLevel};

/// Executes requests with the instances of one model.
pub(crate) struct Instances {
    pool: Arc<Pool>,
    scheduler: Arc<dyn Scheduler>,
    readiness: Arc<Readiness>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Instances {
    /// Starts a thread for each instance.
    ///
    /// # Errors
    /// The system cannot start a thread. Those already started are joined.
    pub(crate) fn start(
        pool: Arc<Pool>,
        scheduler: Arc<dyn Scheduler>,
        readiness: Arc<Readiness>,
    ) -> io::Result<Self> {
        let threads =
            (0..pool.len()).map(|instance| Arc::clone(&pool).spawn(instance, Arc::clone(&scheduler)));
        let mut started = Vec::new();
        let outcome = threads.into_iter().try_for_each(|thread| thread.map(|thread| started.push(thread)));
        let instances = Self { pool, scheduler, readiness, threads: Mutex::new(started) };
        outcome.inspect_err(|_| instances.close())?;
        Ok(instances)
    }

    /// The instances themselves.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Executor for Instances {
    fn submit(&self, request: Request) -> Result<Option<Ticket>> {
        let at_once = self.pool.runs_at_once(&request);
        match self.scheduler.enqueue(request, at_once) {
            Enqueued::Waits(ticket) => Ok(Some(ticket)),
            Enqueued::Claimed(claim) => {
                self.pool.execute(claim.instance, claim.requests);
                self.scheduler.finished(claim.instance);
                Ok(None)
            }
            Enqueued::Refused => Ok(None),
            Enqueued::Wrong(error) => Err(error),
        }
    }

    fn cancel(&self, ticket: Ticket) {
        self.scheduler.cancel(ticket);
    }

    fn pending(&self) -> usize {
        self.scheduler.pending()
    }

    fn waiting_levels(&self, most: usize) -> Vec<WaitingLevel> {
        self.scheduler.waiting_levels(most)
    }

    fn adaptation(&self) -> Option<Adaptation> {
        self.scheduler.adaptation()
    }

    fn close(&self) {
        self.scheduler.close();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // An instance's thread catches its backend's panics, so joining cannot fail.
            let _ = thread.join();
        }
    }

    fn check_ready(&self) -> Vec<ReadyCheck> {
        vec![Box::pin(self.readiness.ask())]
    }

    fn readiness(&self) -> ReadinessReports {
        self.readiness.reports()
    }

    fn engine(&self) -> Option<String> {
        self.pool.model().engine()
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.pool.model().memory_usage()
    }

    fn processes(&self) -> Vec<u32> {
        self.pool.model().processes()
    }

    fn sequences(&self) -> Option<&dyn Sequences> {
        Some(self)
    }
}

impl Sequences for Instances {
    fn continues(&self, sequence: &CorrelationId) -> bool {
        self.scheduler.continues_sequence(sequence)
    }

    fn has_open(&self) -> bool {
        self.scheduler.has_sequences()
    }

    fn open(&self, most: usize) -> (usize, Vec<OpenSequence>) {
        self.scheduler.open_sequences(most)
    }

    fn when_ended(&self, done: Box<dyn FnOnce() + Send>) {
        self.scheduler.when_sequences_end(done);
    }

    fn end(&self) {
        self.scheduler.end_sequences();
    }
}
