//! One request that looks for its answer: found, or stored once its backend has answered.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nereid_core::backend_api::{Buffer, Request, Result, Tensor};
use nereid_core::{Model, QueueListener, Step};

use crate::cache::CacheLookup;
use crate::caching::Shared;
use crate::entry::CacheEntry;
use crate::flights::{Flight, FlightRole};
use crate::key::Keys;
use crate::storing::{Answers, StoringSink};

/// A request that looks for its answer.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    pub shared: &'a Arc<Shared>,
    pub keys: Keys,
    /// The digest of an ensemble's members.
    pub members: Option<[u8; 32]>,
    pub begin: Instant,
}

/// A failed lookup.
#[derive(Clone, Copy)]
struct CacheMiss {
    /// Duration of the lookup.
    lookup: Duration,
    /// Whether the cache admits the answer.
    admitted: bool,
}

impl Search<'_> {
    /// Looks the request up, and decides what becomes of it.
    pub(crate) fn begin(self, model: &Arc<Model>, request: &mut Request) -> Step {
        let Self { keys, members, begin, .. } = self;
        match self.shared.find_either(keys) {
            CacheLookup::Ready(found) => self.finish(model, found, request),
            CacheLookup::Wait(lookup) => {
                let (shared, model) = (Arc::clone(self.shared), Arc::clone(model));
                Step::Wait(Box::new(move |mut request| {
                    Box::pin(async move {
                        let found = lookup.await;
                        let search = Search { shared: &shared, keys, members, begin };
                        match search.finish(&model, found, &mut request) {
                            Step::Proceed => Some(request),
                            Step::Listen(listener) => {
                                listener.queued();
                                Some(request)
                            }
                            Step::Answered => None,
                            Step::Wait(wait) => wait(request).await,
                        }
                    })
                }))
            }
        }
    }

    /// Decides what becomes of the request after the lookup.
    fn finish(mut self, model: &Arc<Model>, found: Option<CacheEntry>, request: &mut Request) -> Step {
        let found = found.filter(|entry| self.shared.fits(entry, model));
        let took = self.begin.elapsed();
        self.shared.counters().looked_up(found.is_some(), took);
        if let Some(entry) = found {
            self.hit(&entry, request, took);
            return Step::Answered;
        }
        let missed = CacheMiss { lookup: took, admitted: self.shared.cache().admits(&self.keys.own) };
        if !missed.admitted && self.shared.flights.is_none() {
            self.shared.statistics.record_cache_miss(took);
            return Step::Proceed;
        }
        if let Err(error) = self.take_inputs(model, request) {
            request.responder().finish_with(Err(error));
            return Step::Answered;
        }
        let Some(flights) = &self.shared.flights else {
            return Step::Listen(self.miss(model, request, None, missed));
        };
        match flights.join(&self.keys.own) {
            FlightRole::Leads(flight) => {
                // An earlier flight may have landed between the lookup and now.
                if let CacheLookup::Ready(Some(entry)) = self.shared.cache().lookup(&self.keys.own) {
                    flight.land(Ok(entry.clone()));
                    self.hit(&entry, request, self.begin.elapsed());
                    return Step::Answered;
                }
                Step::Listen(self.miss(model, request, Some(flight), missed))
            }
            FlightRole::Follows(mut answer) => {
                let (shared, model, Self { keys, members, begin, .. }) =
                    (Arc::clone(self.shared), Arc::clone(model), self);
                Step::Wait(Box::new(move |mut request| {
                    Box::pin(async move {
                        let search = Search { shared: &shared, keys, members, begin };
                        let flights = shared.flights.as_ref()?;
                        loop {
                            match answer.await.ok().flatten() {
                                Some(Ok(entry)) => search.hit(&entry, &request, begin.elapsed()),
                                Some(Err(error)) => request.answer(Err(error)),
                                None => match flights.join(&keys.own) {
                                    FlightRole::Leads(flight) => {
                                        search.miss(&model, &mut request, Some(flight), missed).queued();
                                        return Some(request);
                                    }
                                    FlightRole::Follows(next) => {
                                        answer = next;
                                        continue;
                                    }
                                },
                            }
                            return None;
                        }
                    })
                }))
            }
        }
    }

    /// Answers the request from an entry. `took` is the duration of the lookup.
    fn hit(&self, entry: &CacheEntry, request: &Request, took: Duration) {
        self.shared.statistics.record_cache_hit(took);
        request.responder().finish_with(Ok(entry.answer(&request.outputs)));
    }

    /// Redirects the request's answer, so that it is stored and handed to the followers of its flight.
    fn miss(
        &self,
        model: &Arc<Model>,
        request: &mut Request,
        flight: Option<Flight>,
        missed: CacheMiss,
    ) -> Arc<dyn QueueListener> {
        let ensemble = self.members.map(|members| Box::new((Arc::clone(model), members)));
        let (shared, key) = (Arc::clone(self.shared), self.keys.own);
        let CacheMiss { lookup, admitted } = missed;
        let answers = Mutex::new(Answers::of(flight));
        let storing =
            |client| Arc::new(StoringSink { client, shared, ensemble, key, lookup, admitted, answers });
        request.redirect_answers(storing)
    }

    /// Copies inputs that other processes may write, so that the model reads the contents that the key was made of.
    fn take_inputs(&mut self, model: &Model, request: &mut Request) -> Result<()> {
        let is_shared = |input: &&Tensor| input.buffers.iter().any(Buffer::is_shared);
        let shared: Vec<_> = request.inputs.iter().filter(is_shared).cloned().collect();
        if shared.is_empty() {
            return Ok(());
        }
        for mut input in shared {
            for buffer in &mut input.buffers {
                *buffer = buffer.to_retained()?;
            }
            request.set_input(input);
        }
        if let Some(keys) = self.shared.keys.keys(request, model.signature(), self.members.as_ref()) {
            self.keys = keys;
        }
        Ok(())
    }
}
