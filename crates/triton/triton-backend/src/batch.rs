//! The requests of one execution.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use triton_sys::*;

use crate::error::{Error, check};
use crate::execution::Execution;
use crate::request::Request;

/// The requests to execute together. When `execute` returns, the remaining ones are returned to the server; requests
/// that were [taken](Self::take) are kept until they are dropped.
pub struct Batch {
    requests: Vec<Request>,
    rows: u64,
    execution: Arc<Execution>,
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
        self.execution.mark_compute_start();
    }

    /// Marks, for the statistics, the end of the computation and the start of preparing outputs.
    pub fn mark_compute_end(&self) {
        self.execution.mark_compute_end();
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
                execution.instance(),
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
