//! The sink behind a request that was not in the cache: it stores the answer and passes it on, in this order: who has an
//! answer finds it stored.
//!
//! Until the thread that brought the request to the queue is back from there, the last answer waits for it, and that thread
//! stores it. If it has executed the request itself, it has released the instance by then. Otherwise other requests would
//! find the instance taken all that time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nereid_backend_api::{Answer, ParameterValue, Response, ResponseSink};

use super::caching::Shared;
use super::entry::{CacheEntry, is_small, size_of_response};
use super::flights::Flight;
use super::key::CacheKey;
use crate::interceptors::QueueListener;
use crate::model::Model;

/// See the module.
pub(super) struct StoringSink {
    pub client: Arc<dyn ResponseSink>,
    pub shared: Arc<Shared>,
    /// The model, if the key depends on its members.
    pub ensemble: Option<Box<(Arc<Model>, [u8; 32])>>,
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
    flight: Option<Box<Flight>>,
    /// Whether the request is in the queue, so that there may be somebody who reads its answers.
    queued: bool,
    /// The last answer, or that there is no further one, if that came earlier.
    last: Option<Option<Answer>>,
    /// The only answer so far.
    single: Option<Response>,
    /// Whether there was another, or an error before the last.
    unfit: bool,
}

impl Answers {
    /// None yet. Who waits in `flight` gets the answer.
    pub(super) fn of(flight: Option<Flight>) -> Self {
        Self { flight: flight.map(Box::new), ..Self::default() }
    }
}

impl StoringSink {
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the answer, if it is the only one, and passes on that it is the last.
    fn end(&self, mut answers: MutexGuard<'_, Answers>, answer: Option<Answer>) {
        let (flight, single, unfit) = (answers.flight.take(), answers.single.take(), answers.unfit);
        drop(answers);
        self.store(flight, single.as_ref(), unfit, answer.as_ref());
        self.client.deliver(answer, true);
    }

    fn store(
        &self,
        flight: Option<Box<Flight>>,
        single: Option<&Response>,
        unfit: bool,
        answer: Option<&Answer>,
    ) {
        let begin = Instant::now();
        let keep = |response| self.keep(response, flight.is_some()).map(Ok);
        let kept = match (single, answer) {
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
        if !self.admitted && !awaited || !self.is_current() {
            return None;
        }
        let cache = self.shared.cache();
        let limit = if self.admitted { cache.max_entry_size() } else { 0 };
        if !awaited && !is_small(response) && size_of_response(response) > limit {
            // It would be copied for nobody.
            return None;
        }
        let entry = match &self.ensemble {
            None => CacheEntry::of(response),
            Some(_) => CacheEntry::of(&without_sequence(response)),
        };
        let entry = entry
            .inspect_err(|error| {
                tracing::debug!("an answer of model '{}' is not cached: {error}", self.client.model_name());
            })
            .ok()?;
        let kept = awaited.then(|| entry.clone());
        if entry.byte_size() <= limit {
            cache.insert(&self.key, entry);
        }
        kept
    }

    /// Whether the key is still that of the request: a member that was loaded anew may have had a part in the answer, or not.
    fn is_current(&self) -> bool {
        let Some((ensemble, members)) = self.ensemble.as_deref() else { return true };
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
        let mut answers = self.lock();
        if last {
            return match answers.queued {
                true => self.end(answers, answer),
                false => answers.last = Some(answer),
            };
        }
        match &answer {
            Some(Ok(response)) if answers.single.is_none() => answers.single = Some(response.clone()),
            Some(_) => answers.unfit = true,
            None => {}
        }
        drop(answers);
        self.client.deliver(answer, false);
    }

    fn next(&self) -> Option<&dyn ResponseSink> {
        Some(&*self.client)
    }
}

impl QueueListener for StoringSink {
    fn queued(&self) {
        let mut answers = self.lock();
        answers.queued = true;
        if let Some(answer) = answers.last.take() {
            self.end(answers, answer);
        }
    }
}
