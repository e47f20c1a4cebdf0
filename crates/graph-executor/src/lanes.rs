//! An instance that executes several batches at once, for engines of which one at a time leaves processors idle.
//!
//! Knows nothing of what its lanes execute.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use nereid_backend_api::{Batch, Error, Instance, Result};

/// Executes each batch in the first of its lanes that is free. While none is, the caller waits.
///
/// Batches may end in another order than they came in, so it is not for models whose requests build on each other.
pub struct Lanes {
    /// `None` once the lanes are to end. Takes a batch only when a lane is there to execute it.
    batches: Option<SyncSender<Batch>>,
    threads: Vec<JoinHandle<()>>,
}

impl Lanes {
    /// With a thread for each of these instances.
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
            // It fails only if all lanes are gone; the batch is then dropped, which fails its requests.
            let _ = batches.send(batch);
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.batches = None;
        for thread in self.threads.drain(..) {
            // A lane's panic was caught, and reported.
            let _ = thread.join();
        }
    }
}

fn run(batches: &Mutex<Receiver<Batch>>, mut instance: Box<dyn Instance>) {
    loop {
        // One lane waits for a batch, and the others for it to get one.
        let batch = batches.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = batch else { return };
        // The requests of a batch that panics are failed as it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| instance.execute(batch)));
    }
}
