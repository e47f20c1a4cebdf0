//! The sink behind a request that was not in the cache: it stores the answer and passes it on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nereid_backend_api::{Answer, ParameterValue, Response, ResponseSink};

use super::caching::Shared;
use super::entry::{CacheEntry, size_of_response};
use super::flights::Flight;
use super::key::CacheKey;
use crate::model::Model;

/// See the module.
pub(super) struct StoringSink {
    pub client: Arc<dyn ResponseSink>,
    pub shared: Arc<Shared>,
    /// The model, if the key depends on its members.
    pub ensemble: Option<(Arc<Model>, [u8; 32])>,
    pub key: CacheKey,
    /// How long the lookup took.
    pub lookup: Duration,
    /// Whether the answer is to be stored, and not just given to those who wait for it.
    pub admitted: bool,
    pub answers: Mutex<Answers>,
}

/// What the backend has answered so far.
#[derive(Default)]
pub(super) struct Answers {
    flight: Option<Flight>,
    /// The only answer so far.
    single: Option<Response>,
    /// Whether there was another, or an error before the last.
    unfit: bool,
}

impl Answers {
    /// None yet. Who waits in `flight` gets the answer.
    pub(super) fn of(flight: Option<Flight>) -> Self {
        Self { flight, ..Self::default() }
    }
}

impl StoringSink {
    fn last(&self, answer: Option<&Answer>) {
        let (flight, single, unfit) = {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            (answers.flight.take(), answers.single.take(), answers.unfit)
        };
        let begin = Instant::now();
        let keep = |response| self.keep(response, flight.is_some()).map(Ok);
        let kept = match (&single, answer) {
            _ if unfit => None,
            (Some(response), None) | (None, Some(Ok(response))) => keep(response),
            (None, Some(Err(error))) => Some(Err(error.clone())),
            _ => None,
        };
        let took = begin.elapsed();
        self.shared.counters().inserted(took);
        self.shared.statistics.record_cache_miss(self.lookup + took);
        if let (Some(flight), Some(kept)) = (flight, kept) {
            flight.land(kept);
        }
    }

    /// Stores an answer. Gives what those get who wait for it, if anybody does.
    fn keep(&self, response: &Response, awaited: bool) -> Option<CacheEntry> {
        let is_stored = self.admitted && size_of_response(response) <= self.shared.cache().max_entry_size();
        if !is_stored && !awaited || !self.is_current() {
            return None;
        }
        let entry = match &self.ensemble {
            None => CacheEntry::of(response),
            Some(_) => CacheEntry::of(&without_sequence(response)),
        };
        match entry {
            Ok(entry) => {
                if is_stored {
                    self.shared.cache().insert(&self.key, entry.clone());
                }
                Some(entry)
            }
            Err(error) => {
                tracing::debug!("an answer of model '{}' is not cached: {error}", self.client.model_name());
                None
            }
        }
    }

    /// Whether the key is still that of the request: a member that was loaded anew may have had a part in the answer, or not.
    fn is_current(&self) -> bool {
        let Some((ensemble, members)) = &self.ensemble else { return true };
        self.shared.members(ensemble) == Some(*members)
    }
}

/// An ensemble's response without what it says of the request's sequence.
fn without_sequence(response: &Response) -> Response {
    let mut kept = Response::new(response.outputs.clone());
    let of_sequence = |name: &str| matches!(name, "sequence_id" | "sequence_start" | "sequence_end");
    for (name, value) in response.parameters.iter().filter(|(name, _)| !of_sequence(name)) {
        kept.parameters.set(name.to_owned(), ParameterValue::clone(value));
    }
    kept
}

impl ResponseSink for StoringSink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        if last {
            // Before the answer leaves: who has it finds it stored.
            self.last(answer.as_ref());
        } else if let Some(answer) = &answer {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(response) if answers.single.is_none() => answers.single = Some(response.clone()),
                _ => answers.unfit = true,
            }
        }
        self.client.deliver(answer, last);
    }

    fn next(&self) -> Option<&dyn ResponseSink> {
        Some(&*self.client)
    }
}
