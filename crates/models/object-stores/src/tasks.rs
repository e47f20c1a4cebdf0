//! Runs futures on the runtime of clouds.

use std::pin::Pin;
use std::task::{Context, Poll};

use nereid_core::SourceFuture;
use nereid_core::backend_api::{Error, Result};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

/// How many files of a model are fetched at a time. Large ones are fetched in ranges, whose number is limited
/// separately.
pub(crate) const FILES: usize = 16;

/// Runs a future on the clouds' runtime. Dropping the returned future cancels it.
pub(crate) fn run<'a, T: Send + 'static>(
    runtime: &'a Handle,
    act: impl Future<Output = Result<T>> + Send + 'static,
) -> SourceFuture<'a, T> {
    Box::pin(async move {
        let task = AbortOnDrop(runtime.spawn(act));
        task.await
            .unwrap_or_else(|error| Err(Error::unavailable(format!("the request was interrupted: {error}"))))
    })
}

/// A task that is aborted when its waiter is dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = std::result::Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
