//! Computes the digest of a file in progress, on its own thread, while the rest of the file arrives.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use tokio::task::{JoinHandle, spawn_blocking};

use crate::digests::{ExpectedDigest, digest};

/// A digest in progress.
pub(crate) struct Hashing {
    expected: ExpectedDigest,
    ready: Sender<u64>,
    /// How many ranges from the beginning are complete.
    ranges: usize,
    digest: JoinHandle<io::Result<String>>,
}

/// A file's actual digest, with the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileDigests {
    pub expected: ExpectedDigest,
    pub hex: String,
}

impl Hashing {
    /// Begins with a file of this size.
    pub(crate) fn start(expected: ExpectedDigest, file: &Arc<File>, size: u64) -> Self {
        let (ready, hashed) = channel();
        let (file, algorithm) = (Arc::clone(file), expected.algorithm);
        let digest = spawn_blocking(move || digest(algorithm, &file, size, &hashed));
        Self { expected, ready, ranges: 0, digest }
    }

    /// Advances to the first missing range of this length.
    pub(crate) fn report(&mut self, done: &[bool], length: u64) {
        let ranges = done.iter().take_while(|done| **done).count();
        if ranges > self.ranges {
            self.ranges = ranges;
            // If the thread failed to read the file, `finish` reports the error.
            self.ready.send(ranges as u64 * length).unwrap_or_default();
        }
    }

    /// The digest, once all ranges are complete.
    pub(crate) async fn finish(self) -> io::Result<FileDigests> {
        let Self { expected, ready, digest, .. } = self;
        drop(ready);
        let hex = digest.await.map_err(io::Error::other)??;
        Ok(FileDigests { expected, hex })
    }
}
