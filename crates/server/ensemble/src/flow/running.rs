//! A step that runs: its requests to the member that are in progress.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nereid_backend_api::{Response, Result};
use nereid_core::{Model, ResponseStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::deadlines::Deadline;
use super::requests::Requests;
use super::rows::Rows;

/// A step that runs.
pub(super) struct Running {
    pub number: u64,
    pub step: usize,
    pub member: Arc<Model>,
    pub rows: Rows,
    pub requests: Requests,
    /// The next element whose request has not been made.
    pub next: usize,
    pub awaited: FuturesUnordered<Awaited>,
    pub answers: Vec<Option<Response>>,
    pub answers_missing: usize,
    /// The end of its time, if that is limited.
    pub deadline: Option<Deadline>,
}

pub(super) type Awaited = Pin<Box<dyn Future<Output = Event> + Send>>;

pub(super) enum Event {
    Answered(usize, Result<Response>),
    /// `max_inflight_requests` permits the request.
    Permitted(usize, OwnedSemaphorePermit),
    Closed,
    /// The step has taken too long.
    Expired,
}

pub(super) async fn answer(
    element: usize,
    mut answers: ResponseStream,
    permit: Option<OwnedSemaphorePermit>,
) -> Event {
    let answer = answers.single().await;
    drop(permit);
    Event::Answered(element, answer)
}

pub(super) async fn permit(element: usize, limit: Arc<Semaphore>) -> Event {
    limit.acquire_owned().await.map_or(Event::Closed, |permit| Event::Permitted(element, permit))
}

/// The events since the last poll, with the numbers of their steps.
pub(super) fn poll_events(running: &mut [Running], context: &mut Context<'_>) -> Poll<Vec<(u64, Event)>> {
    let mut events = Vec::new();
    for running in running {
        while let Poll::Ready(Some(event)) = running.awaited.poll_next_unpin(context) {
            events.push((running.number, event));
        }
        let is_over = |deadline: &mut Deadline| Pin::new(deadline).poll(context).is_ready();
        if running.deadline.as_mut().is_some_and(is_over) {
            events.push((running.number, Event::Expired));
        }
    }
    if events.is_empty() { Poll::Pending } else { Poll::Ready(events) }
}
