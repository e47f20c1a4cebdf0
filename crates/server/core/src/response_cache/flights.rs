//! Equal requests in progress: one is executed, and the others wait for its answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, ErrorCode, Result};
use tokio::sync::oneshot;

use super::entry::CacheEntry;
use super::key::CacheKey;

/// The answer that those who wait get; or none, and one of them is executed in its place.
type Outcome = Option<Result<CacheEntry>>;

/// The requests in progress of one load of a model.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<CacheKey, Vec<oneshot::Sender<Outcome>>>>);

/// What a request is among its equals.
pub(super) enum FlightRole {
    /// The one to be executed.
    Leads(Flight),
    /// One that waits for the answer.
    Follows(oneshot::Receiver<Outcome>),
}

impl Flights {
    pub(super) fn join(self: &Arc<Self>, key: &CacheKey) -> FlightRole {
        let mut flights = self.lock();
        match flights.get_mut(key) {
            Some(followers) => {
                let (sender, receiver) = oneshot::channel();
                // Those that were cancelled meanwhile make room.
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

/// A request that others may wait for. Dropped, it lets one of them go in its place.
pub(super) struct Flight {
    flights: Arc<Flights>,
    key: CacheKey,
    landed: bool,
}

impl Flight {
    /// Gives the answer to all who wait.
    pub(super) fn land(mut self, answer: Result<CacheEntry>) {
        self.end(&Some(answer).filter(concerns_all));
    }

    fn end(&mut self, outcome: &Outcome) {
        if std::mem::replace(&mut self.landed, true) {
            return;
        }
        let followers = self.flights.lock().remove(&self.key).unwrap_or_default();
        // Each runs on as soon as it has it, which may take another flight.
        followers.into_iter().for_each(|follower| drop(follower.send(outcome.clone())));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end(&None);
    }
}

/// Whether an answer is the same for all who ask, and not the fate of one request.
fn concerns_all(answer: &Result<CacheEntry>) -> bool {
    !matches!(answer.as_ref().map_err(Error::code), Err(ErrorCode::Cancelled | ErrorCode::Unavailable))
}
