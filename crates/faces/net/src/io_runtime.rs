//! The runtime of the faces: tokio's, with lanes for connections where there are many threads, and a cheaper way for other threads
//! to wake its tasks.
//!
//! A model's answer comes from an instance's thread and wakes the task of a connection. When all of tokio's threads are
//! parked, such a wake-up unparks two of them: the thread that takes the task wakes a second one to look for more. A
//! future that runs [`relayed`] is woken through an event of the I/O driver instead, which wakes one thread, and one
//! event covers all answers that arrive before that thread runs. When such a future wakes itself while it is polled, it
//! is polled again, and no thread is woken for it.
//!
//! This module depends on no server or protocol.

mod lanes;
mod relay;
mod when_woken;

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use hyper::rt::Executor;

pub(crate) use self::lanes::is_in_lane;
pub use self::lanes::spawn_connection;
use self::lanes::{Lanes, Role};
use self::relay::Relay;
pub use self::relay::{Relayed, relayed};
pub use self::when_woken::{WhenWoken, when_woken};

/// Spawns the tasks of an HTTP/2 connection, [`relayed`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Spawner;

impl<F> Executor<F> for Spawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(relayed(task));
    }
}

/// From this number of I/O threads on, connections have lanes. With fewer, threads that share connections sleep and wake less often,
/// which matters more.
const LANES_FROM: usize = 8;

/// Threads beside the lanes: they accept connections, and run what belongs to none.
const BESIDE_LANES: usize = 2;

/// A runtime whose threads serve connections. Dereferences to the part of it that runs everything else.
pub struct IoRuntime {
    rest: Runtime,
    relay: Arc<Relay>,
}

impl Deref for IoRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        &self.rest
    }
}

impl IoRuntime {
    /// As [`Runtime::shutdown_background`].
    pub fn shutdown_background(self) {
        self.rest.shutdown_background();
        if let Role::BesideLanes(lanes) = self.relay.role() {
            lanes.shutdown_background();
        }
    }
}

/// Starts a runtime with `threads` I/O threads.
///
/// # Errors
/// The system cannot create the threads, or the event by which other threads wake them.
pub fn start(threads: usize) -> io::Result<IoRuntime> {
    let (rest, relay) = if threads < LANES_FROM {
        start_with_relay(threads, Role::Shared)?
    } else {
        start_with_relay(BESIDE_LANES, Role::BesideLanes(Lanes::new(threads)))?
    };
    Ok(IoRuntime { rest, relay })
}

fn start_with_relay(threads: usize, role: Role) -> io::Result<(Runtime, Arc<Relay>)> {
    let (relay, listener) = Relay::new(threads, role)?;
    let (starts, parks, unparks) = (Arc::clone(&relay), Arc::clone(&relay), Arc::clone(&relay));
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("nereid-io")
        .on_thread_start(move || starts.enter())
        .on_thread_park(move || parks.parked())
        .on_thread_unpark(move || unparks.unparked())
        .enable_all()
        .build()?;
    let context = runtime.enter();
    runtime.spawn(Arc::clone(&relay).listen(listener)?);
    drop(context);
    Ok((runtime, relay))
}
