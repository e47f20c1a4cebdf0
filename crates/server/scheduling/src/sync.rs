//! The locks of [`handoff`](super::handoff): the standard library's. `modelled.rs` substitutes loom's.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

use std::sync::PoisonError;
use std::time::Instant;

/// Waits until notified, until `deadline`, or for no reason.
pub(super) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Option<Instant>,
) -> MutexGuard<'a, T> {
    match deadline {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
