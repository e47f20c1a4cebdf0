//! The runtime of the faces: tokio's, with a cheaper way for other threads to wake its tasks.
//!
//! A model's answer comes from an instance's thread and wakes the task of a connection. When all of tokio's threads are
//! parked, such a wake-up unparks two of them: the thread that takes the task wakes a second one to look for more. A
//! future that runs [`relayed`] is woken through an event of the I/O driver instead, which wakes one thread, and one
//! event covers all answers that arrive before that thread runs. When such a future wakes itself while it is polled, it
//! is polled again, and no thread is woken for it.
//!
//! This module depends on no server or protocol.

mod relay;
mod when_woken;

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use hyper::rt::Executor;

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

/// Starts a runtime with `threads` I/O threads.
///
/// # Errors
/// The system cannot create the threads, or the event by which other threads wake them.
pub fn start(threads: usize) -> io::Result<Runtime> {
    start_with_relay(threads).map(|(runtime, _)| runtime)
}

fn start_with_relay(threads: usize) -> io::Result<(Runtime, Arc<Relay>)> {
    let (relay, listener) = Relay::new(threads)?;
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
