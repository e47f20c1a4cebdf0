//! The sink of a request that was not found: it stores the answer before it passes it on, so that a client with an answer
//! finds it stored.
//!
//! While the thread that queues the request has not returned from the queue, the last answer waits, and that thread stores it.
//! A thread that executes the request itself has released the instance by then; storing earlier would block the instance.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nereid_core::backend_api::{Answer, ParameterValue, Response, ResponseSink};
use nereid_core::{Model, QueueListener};

use crate::caching::Shared;
use crate::entry::{CacheEntry, is_small, size_of_response};
use crate::flights::Flight;
use crate::key::CacheKey;

/// Stores the answer of one request, see the module.
pub(crate) struct StoringSink {
    pub client: Arc<dyn ResponseSink>,
    pub shared: Arc<Shared>,
    /// The ensemble and the digest of its members, for keys that depend on members.
    pub ensemble: Option<Box<(Arc<Model>, [u8; 32])>>,
    pub key: CacheKey,
    /// Duration of the lookup.
    pub lookup: Duration,
    /// Whether to store the answer, rather than only hand it to the followers of the flight.
    pub admitted: bool,
    pub answers: Mutex<Answers>,
}

/// The backend's answers so far.
#[derive(Default)]
pub(crate) struct Answers {
    flight: Option<Box<Flight>>,
    /// Whether the request has been queued, so that its answers may be read.
    queued: bool,
    /// The last answer (`None`: no further one), if it arrived before the request was queued.
    last: Option<Option<Answer>>,
    /// The only answer so far.
    single: Option<Response>,
    /// Whether a second answer or an early error makes the answer unfit for storing.
    unfit: bool,
}

impl Answers {
    /// No answer yet. The followers of `flight` receive the answer.
    pub(crate) fn of(flight: Option<Flight>) -> Self {
        Self { flight: flight.map(Box::new), ..Self::default() }
    }
}

impl StoringSink {
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the answer if it is the only one, and delivers it as the last one.
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

    /// Stores an answer. Returns the entry for the followers, if the answer is `awaited`.
    fn keep(&self, response: &Response, awaited: bool) -> Option<CacheEntry> {
        if !self.admitted && !awaited || !self.is_current() {
            return None;
        }
        let cache = self.shared.cache();
        let limit = if self.admitted { cache.max_entry_size() } else { 0 };
        if !awaited && !is_small(response) && size_of_response(response) > limit {
            // Avoids a useless copy.
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

    /// Whether the key is still valid: a member may have been reloaded while the request ran.
    fn is_current(&self) -> bool {
        let Some((ensemble, members)) = self.ensemble.as_deref() else { return true };
        self.shared.members(ensemble) == Some(*members)
    }
}

/// An ensemble's response without the parameters that describe the request's sequence.
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
