//! The interceptor of a cached model: answers a request from the cache, or passes it on and stores its answer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use nereid_backend_api::{Buffer, ModelConfig, Request, Result, Tensor};

use super::counters::Counters;
use super::entry::CacheEntry;
use super::flights::{Flight, FlightRole, Flights};
use super::key::{KeyMaker, Keys, identity};
use super::storing::{Answers, StoringSink};
use super::{CacheLookup, CacheScope, ResponseCache, ResponseCaching};
use crate::caller::Caller;
use crate::executor::dependencies;
use crate::interceptors::{Interceptor, QueueListener, Step};
use crate::model::Model;
use crate::spec::ModelSpec;
use crate::table::ModelTable;
use nereid_statistics::ModelStatistics;

/// See the module. When it is dropped, the entries of its load are.
pub(crate) struct Caching(Arc<Shared>);

/// What the requests to one load of a model share.
pub(super) struct Shared {
    caching: ResponseCaching,
    keys: KeyMaker,
    load: u64,
    /// Where the members of an ensemble are found.
    models: Weak<ArcSwap<ModelTable>>,
    pub statistics: Arc<ModelStatistics>,
    flights: Option<Arc<Flights>>,
}

/// What tells loads of a model from others, in one cache. Members of cached ensembles have one, too.
pub(crate) struct Load {
    number: u64,
    identity: [u8; 32],
}

impl Load {
    /// Of a version that is loaded now. Reads its files if others share the cache.
    pub(crate) fn new(
        caching: Option<&ResponseCaching>,
        spec: &ModelSpec,
        version: u64,
        config: &ModelConfig,
    ) -> Result<Self> {
        static LOADS: AtomicU64 = AtomicU64::new(1);
        let number = LOADS.fetch_add(1, Relaxed);
        let shared = caching.filter(|caching| caching.cache.scope() == CacheScope::Shared);
        let identity = match shared {
            None => identity([&number.to_le_bytes()[..]]),
            Some(caching) => {
                // Reading all files of a model may take long, so it is done for cached models only.
                let is_cached = config.response_cache.is_some_and(|cache| cache.enable);
                let has_files = dependencies(config).is_none();
                let files = match is_cached && has_files {
                    true => caching.cache.identify(&spec.directory, version)?,
                    false => {
                        let fingerprint = format!("{:?} {:?}", spec.fingerprint, spec.origin);
                        identity([fingerprint.as_bytes()])
                    }
                };
                let config = format!("{config:?}");
                identity([
                    spec.id.namespace.as_bytes(),
                    spec.id.name.as_bytes(),
                    &version.to_le_bytes(),
                    config.as_bytes(),
                    &files,
                ])
            }
        };
        Ok(Self { number, identity })
    }

    pub(crate) fn identity(&self) -> &[u8; 32] {
        &self.identity
    }
}

impl Caching {
    /// For one load of a model, if the server has a cache and the model asks for it.
    pub(crate) fn interceptor(
        caching: Option<&ResponseCaching>,
        config: &ModelConfig,
        load: &Load,
        models: &Weak<ArcSwap<ModelTable>>,
        statistics: &Arc<ModelStatistics>,
    ) -> Option<Arc<dyn Interceptor>> {
        let caching = caching.filter(|_| config.response_cache.is_some_and(|cache| cache.enable))?;
        let keys = KeyMaker::new(caching.cache.scope(), load.number, &load.identity);
        Some(Arc::new(Self(Arc::new(Shared {
            keys,
            load: load.number,
            models: Weak::clone(models),
            statistics: Arc::clone(statistics),
            flights: caching.coalesce.then(Arc::default),
            caching: caching.clone(),
        }))))
    }
}

impl Drop for Caching {
    fn drop(&mut self) {
        self.0.caching.cache.forget(self.0.load);
    }
}

impl Interceptor for Caching {
    fn intercept(&self, model: &Arc<Model>, request: &mut Request, _: &Caller) -> Step {
        let begin = Instant::now();
        if !request.policy_contents.is_empty() {
            return Step::Proceed;
        }
        let members = match model.executor().delegates().then(|| self.0.members(model)) {
            // A member is gone: the request fails, or goes to a newer one.
            Some(None) => return Step::Proceed,
            members => members.flatten(),
        };
        let Some(keys) = self.0.keys.keys(request, model.signature(), members.as_ref()) else {
            return Step::Proceed;
        };
        let search = Search { shared: &self.0, keys, members, begin };
        match self.0.find_either(keys) {
            CacheLookup::Ready(found) => search.go_on(model, found, request),
            CacheLookup::Wait(lookup) => {
                let (shared, model) = (Arc::clone(&self.0), Arc::clone(model));
                Step::Wait(Box::new(move |mut request| {
                    Box::pin(async move {
                        let found = lookup.await;
                        let search = Search { shared: &shared, keys, members, begin };
                        match search.go_on(&model, found, &mut request) {
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
}

impl Shared {
    pub(super) fn cache(&self) -> &dyn ResponseCache {
        &*self.caching.cache
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.caching.counters
    }

    /// Looks for the request's own answer, and else for the one with all outputs.
    fn find_either(&self, keys: Keys) -> CacheLookup {
        let Some(all) = keys.all else { return self.cache().lookup(&keys.own) };
        match self.cache().lookup(&keys.own) {
            CacheLookup::Ready(None) => self.cache().lookup(&all),
            CacheLookup::Ready(found) => CacheLookup::Ready(found),
            CacheLookup::Wait(lookup) => {
                let cache = Arc::clone(&self.caching.cache);
                CacheLookup::Wait(Box::pin(async move {
                    if let Some(found) = lookup.await {
                        return Some(found);
                    }
                    match cache.lookup(&all) {
                        CacheLookup::Ready(found) => found,
                        CacheLookup::Wait(lookup) => lookup.await,
                    }
                }))
            }
        }
    }

    /// A digest of the loads of all models that an ensemble consists of now; `None` if one of them is not there.
    pub(super) fn members(&self, ensemble: &Model) -> Option<[u8; 32]> {
        let models = self.models.upgrade()?.load_full();
        let (mut members, mut unread) = (Vec::new(), vec![ensemble]);
        while let Some(model) = unread.pop() {
            let found = model.executor().members(&models);
            if found.len() < model.executor().member_count() {
                return None;
            }
            // A model that is a member several times is read once for each; ensembles have no cycles, and few steps.
            for member in found {
                members.push(*member.load_identity());
                unread.push(member);
            }
        }
        Some(identity(members.iter().map(|member| &member[..])))
    }

    /// Whether an entry can be an answer of the model. One that others wrote may be anything.
    fn fits(&self, entry: &CacheEntry, model: &Model) -> bool {
        self.cache().scope() == CacheScope::Server
            || entry.response().outputs.iter().all(|output| {
                let expected = model.signature().output(&output.name);
                expected.is_some_and(|expected| expected.data_type == output.data_type)
                    && output.check_contents().is_ok()
            })
    }
}

/// A request that looks for its answer.
#[derive(Clone, Copy)]
struct Search<'a> {
    shared: &'a Arc<Shared>,
    keys: Keys,
    members: Option<[u8; 32]>,
    begin: Instant,
}

/// What is known of a request that was not found.
#[derive(Clone, Copy)]
struct CacheMiss {
    /// How long the lookup took.
    lookup: Duration,
    /// Whether its answer is to be stored.
    admitted: bool,
}

impl Search<'_> {
    /// What becomes of the request, now that the cache was asked.
    fn go_on(mut self, model: &Arc<Model>, found: Option<CacheEntry>, request: &mut Request) -> Step {
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
                // The one that went before may have landed between the lookup and now.
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

    /// Answers the request with an entry, which took that long to find.
    fn hit(&self, entry: &CacheEntry, request: &Request, took: Duration) {
        self.shared.statistics.record_cache_hit(took);
        request.responder().finish_with(Ok(entry.answer(&request.outputs)));
    }

    /// Has the answer to the request stored, or given to those who wait for it.
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

    /// Copies what other processes may write, so that the model gets what the key was made of.
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
