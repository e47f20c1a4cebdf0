//! The digest of a file that is being fetched: it is made on a thread of its own while the rest of the file arrives.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use tokio::task::{JoinHandle, spawn_blocking};

use crate::digests::{Expected, digest};

/// A digest that is being made.
pub(crate) struct Hashing {
    expected: Expected,
    ready: Sender<u64>,
    /// How many ranges from the beginning on are known to be there.
    ranges: usize,
    digest: JoinHandle<io::Result<String>>,
}

/// What a file's digest is, beside what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hashed {
    pub expected: Expected,
    pub hex: String,
}

impl Hashing {
    /// Begins with a file of this size.
    pub(crate) fn start(expected: Expected, file: &Arc<File>, size: u64) -> Self {
        let (ready, hashed) = channel();
        let (file, algorithm) = (Arc::clone(file), expected.algorithm);
        let digest = spawn_blocking(move || digest(algorithm, &file, size, &hashed));
        Self { expected, ready, ranges: 0, digest }
    }

    /// Goes on up to the first range of this length that is missing.
    pub(crate) fn report(&mut self, done: &[bool], length: u64) {
        let ranges = done.iter().take_while(|done| **done).count();
        if ranges > self.ranges {
            self.ranges = ranges;
            // Where reading the file failed, the error comes in the end.
            self.ready.send(ranges as u64 * length).unwrap_or_default();
        }
    }

    /// The digest, once all ranges are there.
    pub(crate) async fn finish(self) -> io::Result<Hashed> {
        let Self { expected, ready, digest, .. } = self;
        drop(ready);
        let hex = digest.await.map_err(io::Error::other)??;
        Ok(Hashed { expected, hex })
    }
}
