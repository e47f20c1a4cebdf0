//! The requests of one execution.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use triton_sys::*;

use crate::error::{Error, check};
use crate::request::Request;

/// The requests to execute together. When `execute` returns, the remaining ones are returned to the server; requests
/// that were [taken](Self::take) are kept until they are dropped.
pub struct Batch {
    requests: Vec<Request>,
    rows: u64,
    execution: Arc<Execution>,
}

/// How a model's requests are handled, according to its configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handling {
    /// A request has any number of responses.
    pub(crate) decoupled: bool,
    /// The first dimension is the batch.
    pub(crate) batched: bool,
    /// A request may be executed again.
    pub(crate) iterative: bool,
}

/// State shared by the requests of one execution.
pub(crate) struct Execution {
    instance: *mut TRITONBACKEND_ModelInstance,
    pub(crate) handling: Handling,
    /// Nanoseconds of the monotonic clock, like all times here.
    pub(crate) start: u64,
    /// 0 unless the backend reports it.
    compute_start: AtomicU64,
    /// 0 unless the backend reports it.
    compute_end: AtomicU64,
    pub(crate) any_success: AtomicBool,
}

// SAFETY: the instance is only passed to functions that report to it, from any thread; it outlives its requests.
unsafe impl Send for Execution {}
// SAFETY: as above; all mutable state is atomic.
unsafe impl Sync for Execution {}

impl Execution {
    /// An execution that begins now, on an instance that outlives its requests.
    pub(crate) fn begin(instance: *mut TRITONBACKEND_ModelInstance, handling: Handling) -> Self {
        Self {
            instance,
            handling,
            start: crate::clock::now(),
            compute_start: AtomicU64::new(0),
            compute_end: AtomicU64::new(0),
            any_success: AtomicBool::new(false),
        }
    }

    pub(crate) fn instance(&self) -> *mut TRITONBACKEND_ModelInstance {
        self.instance
    }

    pub(crate) fn compute_start(&self) -> u64 {
        Some(self.compute_start.load(Ordering::Acquire)).filter(|time| *time > 0).unwrap_or(self.start)
    }

    pub(crate) fn compute_end(&self) -> u64 {
        Some(self.compute_end.load(Ordering::Acquire))
            .filter(|time| *time > 0)
            .unwrap_or_else(crate::clock::now)
    }
}

impl Batch {
    pub(crate) fn new(requests: Vec<Request>, rows: u64, execution: Arc<Execution>) -> Self {
        Self { requests, rows, execution }
    }

    /// The requests not taken yet.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Takes the requests out, to answer them after `execute` has returned.
    pub fn take(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.requests)
    }

    /// The rows of all requests together, from the first dimension of their first inputs; the number of requests if
    /// the model does not support batching.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Marks, for the statistics, the end of preparing inputs and the start of the computation. Without it,
    /// preparation counts as computation.
    pub fn mark_compute_start(&self) {
        self.execution.compute_start.store(crate::clock::now(), Ordering::Release);
    }

    /// Marks, for the statistics, the end of the computation and the start of preparing outputs.
    pub fn mark_compute_end(&self) {
        self.execution.compute_end.store(crate::clock::now(), Ordering::Release);
    }

    /// Releases the remaining requests; unanswered ones fail with the error, if any.
    pub(crate) fn end(self, error: Option<&Error>) {
        let Self { requests, rows, execution } = self;
        if let Some(error) = error {
            for request in requests.iter().filter(|request| !request.is_answered()) {
                if let Err(error) = request.fail(error.clone()) {
                    crate::error!("cannot answer a request: {error}");
                }
            }
        }
        drop(requests);
        // Requests taken by the backend are still running, and count. Each of them holds a reference; two others
        // remain, ours and the caller's.
        let counts = execution.any_success.load(Ordering::Acquire) || Arc::strong_count(&execution) > 2;
        if !counts {
            return;
        }
        // SAFETY: the server is executing on the instance, so it lives.
        let outcome = unsafe {
            check(TRITONBACKEND_ModelInstanceReportBatchStatistics(
                execution.instance,
                rows,
                execution.start,
                execution.compute_start(),
                execution.compute_end(),
                crate::clock::now(),
            ))
        };
        if let Err(error) = outcome {
            crate::warning!("statistics of a batch could not be reported: {error}");
        }
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Request;
    type IntoIter = std::slice::Iter<'a, Request>;

    fn into_iter(self) -> Self::IntoIter {
        self.requests.iter()
    }
}
