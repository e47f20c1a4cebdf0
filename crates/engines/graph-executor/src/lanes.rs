//! An instance that executes several batches at once, for engines that leave processors idle with a single batch.
//!
//! Does not know what its lanes execute.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use nereid_backend_api::{Batch, Error, Instance, Result};

/// Executes each batch in the first free lane. While none is free, the caller waits.
///
/// Batches may complete out of order, so it is not for models whose requests depend on each other.
pub struct Lanes {
    /// `None` once the lanes should end. Accepts a batch only when a lane is free.
    batches: Option<SyncSender<Batch>>,
    threads: Vec<JoinHandle<()>>,
}

impl Lanes {
    /// Starts a thread for each of these instances.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(name: &str, instances: Vec<Box<dyn Instance>>) -> Result<Self> {
        let (sender, receiver) = sync_channel(0);
        let receiver = Arc::new(Mutex::new(receiver));
        let mut lanes = Self { batches: Some(sender), threads: Vec::new() };
        for instance in instances {
            let receiver = Arc::clone(&receiver);
            let thread = Builder::new().name(format!("lane-{name}")).spawn(move || run(&receiver, instance));
            let thread = thread
                .map_err(|error| Error::unavailable(format!("cannot start a lane's thread: {error}")))?;
            lanes.threads.push(thread);
        }
        Ok(lanes)
    }
}

impl Instance for Lanes {
    fn execute(&mut self, batch: Batch) {
        if let Some(batches) = &self.batches {
            // Sending fails only if all lanes have ended; then the batch is dropped, which fails its requests.
            let _ = batches.send(batch);
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.batches = None;
        for thread in self.threads.drain(..) {
            // A lane's panic was caught and reported.
            let _ = thread.join();
        }
    }
}

fn run(batches: &Mutex<Receiver<Batch>>, mut instance: Box<dyn Instance>) {
    loop {
        // One lane waits for a batch while the others wait for the lock.
        let batch = batches.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = batch else { return };
        // A batch that panics is dropped, which fails its requests.
        let _ = catch_unwind(AssertUnwindSafe(|| instance.execute(batch)));
    }
}
