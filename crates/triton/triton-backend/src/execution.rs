//! An execution: how its requests are handled, and its times for the statistics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use triton_sys::*;

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

    pub(crate) fn mark_compute_start(&self) {
        self.compute_start.store(crate::clock::now(), Ordering::Release);
    }

    pub(crate) fn mark_compute_end(&self) {
        self.compute_end.store(crate::clock::now(), Ordering::Release);
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
