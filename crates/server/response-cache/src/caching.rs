//! The cache of a server, and what the requests to one cached version share.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use nereid_core::backend_api::{Request, Result};
use nereid_core::{
    Caller, Fingerprint, Interceptor, InterceptorFactory, LoadedVersion, Model, ModelStatistics, Origin,
    ServedModels, Step,
};
use smallvec::SmallVec;

use crate::cache::{CacheLookup, CacheScope, CacheUsage, ResponseCache};
use crate::counters::{CacheCounts, Counters};
use crate::entry::CacheEntry;
use crate::flights::Flights;
use crate::key::{KeyMaker, Keys, identity};
use crate::search::Search;

/// The response cache of a server: makes the interceptors of cached models. Clones share the cache and its counters.
#[derive(Clone)]
pub struct ResponseCaching {
    cache: Arc<dyn ResponseCache>,
    coalesce: bool,
    counters: Arc<Counters>,
    identities: Arc<Identities>,
}

impl ResponseCaching {
    /// Caches responses in `cache`.
    pub fn new(cache: Arc<dyn ResponseCache>) -> Self {
        Self { cache, coalesce: false, counters: Arc::default(), identities: Arc::default() }
    }

    /// Sets whether equal requests in progress at the same time are executed once.
    #[must_use]
    pub fn with_coalescing(self, coalesce: bool) -> Self {
        Self { coalesce, ..self }
    }

    /// Lookups and insertions so far.
    pub fn counts(&self) -> CacheCounts {
        self.counters.snapshot()
    }

    /// See [`ResponseCache::is_available`].
    pub fn is_available(&self) -> Option<bool> {
        self.cache.is_available()
    }

    /// See [`ResponseCache::keeps_metrics`].
    pub fn keeps_metrics(&self) -> bool {
        self.cache.keeps_metrics()
    }

    /// See [`ResponseCache::usage`].
    pub fn usage(&self) -> Option<CacheUsage> {
        self.cache.usage()
    }

    /// A digest that distinguishes a load from all others whose entries the cache may hold. For shared caches, this reads the
    /// version's files.
    fn identify(&self, version: &LoadedVersion<'_>) -> Result<[u8; 32]> {
        let spec = version.spec;
        if self.cache.scope() == CacheScope::Server {
            return Ok(identity([&version.load_number.to_le_bytes()[..]]));
        }
        let files = match version.is_composite {
            true => digest_of(&spec.fingerprint, spec.origin),
            false => self.cache.identify(&spec.directory, version.version)?,
        };
        Ok(identity([
            spec.id.namespace.as_bytes(),
            spec.id.name.as_bytes(),
            &version.version.to_le_bytes(),
            format!("{:?}", version.config).as_bytes(),
            &files,
        ]))
    }
}

impl InterceptorFactory for ResponseCaching {
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Interceptor>>> {
        if !version.config.response_cache.is_some_and(|cache| cache.enable) {
            return Ok(None);
        }
        let (load, identity) = (version.load_number, self.identify(version)?);
        self.identities.lock().insert(load, identity);
        Ok(Some(Arc::new(Caching(Arc::new(Shared {
            keys: KeyMaker::new(self.cache.scope(), load, &identity),
            load,
            is_composite: version.is_composite,
            models: version.models.clone(),
            statistics: Arc::clone(version.statistics),
            flights: self.coalesce.then(Arc::default),
            last_members: ArcSwapOption::empty(),
            caching: self.clone(),
        })))))
    }
}

impl fmt::Debug for ResponseCaching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCaching").field("coalesce", &self.coalesce).finish_non_exhaustive()
    }
}

/// The identities of the cached versions, by the numbers of their loads.
#[derive(Default)]
struct Identities(Mutex<HashMap<u64, [u8; 32]>>);

impl Identities {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, [u8; 32]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interceptor of a cached version. Drops the entries of its load when it is dropped.
struct Caching(Arc<Shared>);

impl Drop for Caching {
    fn drop(&mut self) {
        self.0.caching.identities.lock().remove(&self.0.load);
        self.0.caching.cache.forget(self.0.load);
    }
}

impl Interceptor for Caching {
    fn intercept(&self, model: &Arc<Model>, request: &mut Request, _: &Caller) -> Step {
        let begin = Instant::now();
        if !request.policy_contents.is_empty() {
            return Step::Proceed;
        }
        let members = match self.0.is_composite.then(|| self.0.members(model)) {
            // A member is missing: the request fails, or a newer member executes it.
            Some(None) => return Step::Proceed,
            members => members.flatten(),
        };
        match self.0.keys.keys(request, model.signature(), members.as_ref()) {
            Some(keys) => Search { shared: &self.0, keys, members, begin }.begin(model, request),
            None => Step::Proceed,
        }
    }
}

/// State shared by the requests to one load of a model.
pub(crate) struct Shared {
    caching: ResponseCaching,
    pub keys: KeyMaker,
    load: u64,
    is_composite: bool,
    /// The table with the members of an ensemble.
    models: ServedModels,
    pub statistics: Arc<ModelStatistics>,
    pub flights: Option<Arc<Flights>>,
    last_members: ArcSwapOption<Members>,
}

/// The loads that an ensemble consisted of, and their digest.
struct Members {
    loads: SmallVec<[u64; 8]>,
    digest: [u8; 32],
}

impl Shared {
    pub(crate) fn cache(&self) -> &Arc<dyn ResponseCache> {
        &self.caching.cache
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.caching.counters
    }

    /// Looks up the request's own answer, then the answer with all outputs.
    pub(crate) fn find_either(&self, keys: Keys) -> CacheLookup {
        let Some(all) = keys.all else { return self.cache().lookup(&keys.own) };
        match self.cache().lookup(&keys.own) {
            CacheLookup::Ready(None) => self.cache().lookup(&all),
            CacheLookup::Ready(found) => CacheLookup::Ready(found),
            CacheLookup::Wait(lookup) => {
                let cache = Arc::clone(self.cache());
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

    /// A digest of the loads of all models that an ensemble consists of now; `None` if one of them is missing.
    pub(crate) fn members(&self, ensemble: &Model) -> Option<[u8; 32]> {
        let models = self.models.now()?;
        let (mut members, mut unread) = (SmallVec::<[&Model; 8]>::new(), SmallVec::<[&Model; 8]>::new());
        unread.push(ensemble);
        while let Some(model) = unread.pop() {
            // A model that is a member several times is visited as often: ensembles have no cycles and few steps.
            for member in model.members(&models)? {
                members.push(member);
                unread.push(member);
            }
        }
        let loads: SmallVec<[u64; 8]> = members.iter().map(|member| member.load_number()).collect();
        let last = self.last_members.load();
        if let Some(last) = last.as_ref().filter(|last| last.loads == loads) {
            return Some(last.digest);
        }
        let identities: Vec<_> =
            members.iter().map(|member| self.identity_of(member)).collect::<Option<_>>()?;
        let digest = identity(identities.iter().map(|member| &member[..]));
        self.last_members.store(Some(Arc::new(Members { loads, digest })));
        Some(digest)
    }

    /// The digest that distinguishes the load of a member; `None` if the member is being unloaded.
    fn identity_of(&self, member: &Model) -> Option<[u8; 32]> {
        if self.cache().scope() == CacheScope::Server {
            return Some(identity([&member.load_number().to_le_bytes()[..]]));
        }
        if member.config().response_cache.is_some_and(|cache| cache.enable) {
            return self.caching.identities.lock().get(&member.load_number()).copied();
        }
        // Reading all files of a model may take long, so the files of uncached members are known by their fingerprint only.
        Some(identity([
            member.id().namespace.as_bytes(),
            member.name().as_bytes(),
            &member.version().to_le_bytes(),
            format!("{:?}", member.config()).as_bytes(),
            &digest_of(member.fingerprint(), member.origin()),
        ]))
    }

    /// Whether an entry can be an answer of the model. Entries of shared caches may have been written by others.
    pub(crate) fn fits(&self, entry: &CacheEntry, model: &Model) -> bool {
        self.cache().scope() == CacheScope::Server
            || entry.response().outputs.iter().all(|output| {
                let expected = model.signature().output(&output.name);
                expected.is_some_and(|expected| expected.data_type == output.data_type)
                    && output.check_contents().is_ok()
            })
    }
}

fn digest_of(fingerprint: &Fingerprint, origin: Origin) -> [u8; 32] {
    identity([format!("{fingerprint:?} {origin:?}").as_bytes()])
}
