//! Lanes: runtimes of one I/O thread each, with connections of their own.
//!
//! In a runtime of several threads, a connection's requests run on whichever thread is free, and the memory of the connection follows
//! from core to core. In a lane, it stays. A connection goes to the lane that has the fewest, and is served there until it ends.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::runtime::{Handle, Runtime};
use tokio_util::task::TaskTracker;

use super::relay::{Relay, relayed};
use super::start_with_relay;

/// What the threads of a runtime do.
pub(super) enum Role {
    /// Everything: there are no lanes.
    Shared,
    /// They are the one thread of a lane.
    Lane,
    /// What belongs to no connection. Connections are passed to these lanes.
    BesideLanes(Lanes),
}

/// The lanes of one I/O runtime, made for its first connection: a server within a program may never have one.
pub(super) struct Lanes {
    count: usize,
    made: OnceLock<Vec<Lane>>,
    /// Taken when they end.
    runtimes: Mutex<Vec<Runtime>>,
}

struct Lane {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// Counts as one of a lane's connections until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Lanes {
    pub(super) fn new(count: usize) -> Self {
        Self { count, made: OnceLock::new(), runtimes: Mutex::default() }
    }

    /// A place in the lane with the fewest connections. None if the system refuses the threads: then those beside the lanes
    /// serve all connections.
    fn enter(&self) -> Option<(&Handle, Place)> {
        let lanes = self.made.get_or_init(|| {
            self.make().unwrap_or_else(|error| {
                tracing::warn!(
                    "cannot start a thread for each processor, so two threads serve all connections: {error}"
                );
                Vec::new()
            })
        });
        let lane = lanes.iter().min_by_key(|lane| lane.connections.load(Relaxed))?;
        lane.connections.fetch_add(1, Relaxed);
        Some((&lane.runtime, Place(Arc::clone(&lane.connections))))
    }

    fn make(&self) -> io::Result<Vec<Lane>> {
        let mut runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..self.count {
            match start_with_relay(1, Role::Lane) {
                Ok((runtime, _)) => runtimes.push(runtime),
                Err(error) => {
                    // A runtime may not be dropped by a task.
                    runtimes.drain(..).for_each(Runtime::shutdown_background);
                    return Err(error);
                }
            }
        }
        let lane =
            |runtime: &Runtime| Lane { runtime: runtime.handle().clone(), connections: Arc::default() };
        Ok(runtimes.iter().map(lane).collect())
    }

    /// Ends all lanes without waiting for them.
    pub(super) fn shutdown_background(&self) {
        let mut runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        runtimes.drain(..).for_each(Runtime::shutdown_background);
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shutdown_background();
    }
}

pin_project! {
    /// A future and what is dropped after it. An async block would have space for the future twice.
    struct Holding<F, H> {
        #[pin]
        future: F,
        held: H,
    }
}

impl<F: Future, H> Future for Holding<F, H> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(context)
    }
}

/// Spawns the task of a connection, [`relayed`]: in a lane if the runtime of the caller has lanes, or else beside the caller. `held`
/// is dropped after the connection.
pub fn spawn_connection<F, H>(connections: &TaskTracker, connection: F, held: H)
where
    F: Future<Output = ()> + Send + 'static,
    H: Send + 'static,
{
    let relay = Relay::here();
    let entered = relay.as_deref().and_then(|relay| match relay.role() {
        Role::BesideLanes(lanes) => lanes.enter(),
        Role::Shared | Role::Lane => None,
    });
    let (runtime, place) = entered.unzip();
    let connection = relayed(Holding { future: connection, held: (held, place) });
    match runtime {
        Some(runtime) => connections.spawn_on(connection, runtime),
        None => connections.spawn(connection),
    };
}

/// Whether the calling task runs in a lane.
pub(crate) fn is_in_lane() -> bool {
    Relay::here().is_some_and(|relay| matches!(relay.role(), Role::Lane))
}

#[cfg(test)]
mod tests;
