//! Coalescing of equal requests in progress: one is executed, and the others wait for its answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_core::backend_api::{Error, ErrorCode, Result};
use tokio::sync::oneshot;

use crate::entry::CacheEntry;
use crate::key::CacheKey;

/// The answer for all followers. `None` if there is none: one of the followers is executed instead.
type Outcome = Option<Result<CacheEntry>>;

/// The requests in progress of one load of a model.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<CacheKey, Vec<oneshot::Sender<Outcome>>>>);

/// The role of a request among equal ones.
pub(crate) enum FlightRole {
    /// The request to be executed.
    Leads(Flight),
    /// A request that waits for the answer.
    Follows(oneshot::Receiver<Outcome>),
}

impl Flights {
    pub(crate) fn join(self: &Arc<Self>, key: &CacheKey) -> FlightRole {
        let mut flights = self.lock();
        match flights.get_mut(key) {
            Some(followers) => {
                let (sender, receiver) = oneshot::channel();
                // Drop cancelled followers before the list grows.
                if followers.len() == followers.capacity() {
                    followers.retain(|follower| !follower.is_closed());
                }
                followers.push(sender);
                FlightRole::Follows(receiver)
            }
            None => {
                flights.insert(*key, Vec::new());
                FlightRole::Leads(Flight { flights: Arc::clone(self), key: *key, landed: false })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CacheKey, Vec<oneshot::Sender<Outcome>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that others may wait for. When it is dropped, one of them is executed instead.
pub(crate) struct Flight {
    flights: Arc<Flights>,
    key: CacheKey,
    landed: bool,
}

impl Flight {
    /// Sends the answer to all followers.
    pub(crate) fn land(mut self, answer: Result<CacheEntry>) {
        self.end(&Some(answer).filter(applies_to_all));
    }

    fn end(&mut self, outcome: &Outcome) {
        if std::mem::replace(&mut self.landed, true) {
            return;
        }
        let followers = self.flights.lock().remove(&self.key).unwrap_or_default();
        // Each follower resumes within `send`, and may join another flight.
        followers.into_iter().for_each(|follower| drop(follower.send(outcome.clone())));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end(&None);
    }
}

/// Whether an answer applies to all equal requests, rather than to one request only.
fn applies_to_all(answer: &Result<CacheEntry>) -> bool {
    !matches!(answer.as_ref().map_err(Error::code), Err(ErrorCode::Cancelled | ErrorCode::Unavailable))
}
