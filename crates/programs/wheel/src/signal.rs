//! Wakes event loops when responses arrive: a file descriptor that becomes readable, and the keys of the requests to
//! check.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// Wakes an event loop that watches its descriptor.
#[pyclass(module = "nereid.nereid_native", frozen)]
pub struct Signal(Arc<Queue>);

/// The keys that the event loop has not taken yet. While there are any, the pipe contains one byte.
pub struct Queue {
    keys: Mutex<Vec<u64>>,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Queue {
    /// Adds a key, on any thread.
    pub fn push(&self, key: u64) {
        let mut keys = self.keys();
        if keys.is_empty() {
            // The pipe is empty, so this neither blocks nor fails.
            let _ = (&self.writer).write_all(&[0]);
        }
        keys.push(key);
    }

    fn keys(&self) -> MutexGuard<'_, Vec<u64>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Signal {
    /// The sender's side.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.0
    }
}

#[pymethods]
impl Signal {
    #[new]
    fn new() -> PyResult<Self> {
        let (reader, writer) = pipe()?;
        Ok(Self(Arc::new(Queue { keys: Mutex::default(), reader, writer })))
    }

    fn fileno(&self) -> i32 {
        self.0.reader.as_raw_fd()
    }

    /// The keys added since the last call, possibly with duplicates.
    fn take(&self) -> PyResult<Vec<u64>> {
        let mut keys = self.0.keys();
        if !keys.is_empty() {
            (&self.0.reader).read_exact(&mut [0])?;
        }
        Ok(std::mem::take(&mut *keys))
    }
}
