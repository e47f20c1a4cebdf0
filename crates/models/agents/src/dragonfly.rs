//! The agent `dragonfly`: fetches cloud objects through the proxy of Dragonfly's daemon, which gets them from its
//! peers, and reads the bucket only if no peer has the object.
//!
//! The proxy gets plain requests for signed URLs, with headers that identify requests for the same object. The protocol
//! matches the proxy of `dragonfly-client` and the Dragonfly project's own agent.

mod metrics;
mod proxy;
mod settings;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nereid_core::MetricRegistry;
use nereid_core::backend_api::Result;
use nereid_repository::{Route, RouteError, RouteFuture, RoutedObject, Way};

use self::metrics::RouteCounters;
use self::proxy::{Failure, Proxy};
pub use self::settings::DragonflySettings;
use self::state::ProxyState;

/// The daemons that models name, each with its own connections and counters.
pub struct DragonflyRoutes {
    registry: MetricRegistry,
    /// The counters, created with the first route.
    fetched: OnceLock<Arc<RouteCounters>>,
    routes: Mutex<BTreeMap<DragonflySettings, Arc<Dragonfly>>>,
}

impl DragonflyRoutes {
    /// Starts without daemons. Fetched bytes are counted in these metrics.
    pub fn new(registry: MetricRegistry) -> Self {
        Self { registry, fetched: OnceLock::new(), routes: Mutex::default() }
    }

    /// The route through the daemon that an agent's parameters name, or else the environment.
    ///
    /// # Errors
    /// The parameters, or the file that they name, are invalid.
    pub fn route(
        &self,
        parameters: &[(String, String)],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Arc<dyn Route>> {
        let settings = DragonflySettings::read(parameters, variable)?;
        let mut routes = lock(&self.routes);
        if let Some(route) = routes.get(&settings) {
            return Ok(Arc::clone(route) as _);
        }
        let fetched = match self.fetched.get() {
            Some(fetched) => Arc::clone(fetched),
            None => {
                let fetched = Arc::new(RouteCounters::new(&self.registry)?);
                Arc::clone(self.fetched.get_or_init(|| fetched))
            }
        };
        let route = Arc::new(Dragonfly::new(settings.clone(), fetched));
        // Drops daemons that no model uses any more.
        routes.retain(|_, route| Arc::strong_count(route) > 1);
        routes.insert(settings, Arc::clone(&route));
        Ok(route)
    }
}

impl fmt::Debug for DragonflyRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DragonflyRoutes").finish_non_exhaustive()
    }
}

/// The route through one daemon.
pub struct Dragonfly {
    name: String,
    proxy: Proxy,
    fallback: bool,
    fetched: Arc<RouteCounters>,
    state: Arc<ProxyState>,
}

impl Dragonfly {
    fn new(settings: DragonflySettings, fetched: Arc<RouteCounters>) -> Self {
        Self {
            name: format!("Dragonfly's proxy {}", settings.proxy),
            fallback: settings.fallback,
            proxy: Proxy::new(settings),
            fetched,
            state: Arc::default(),
        }
    }
}

impl Route for Dragonfly {
    fn name(&self) -> &str {
        &self.name
    }

    fn may_fall_back(&self) -> bool {
        self.fallback
    }

    fn get(&self, object: RoutedObject) -> RouteFuture<'_> {
        Box::pin(async move {
            if let Some(reason) = self.state.reason().filter(|_| self.fallback) {
                return Err(RouteError(reason));
            }
            let Failure { message, pause } = match self.proxy.get(object, &self.state).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let is_first = pause.is_some_and(|pause| self.state.pause(pause, &message));
            if is_first && self.fallback {
                tracing::warn!("{}: {message}; objects come from their buckets instead", self.name);
            }
            Err(RouteError(message))
        })
    }

    fn count(&self, way: Way, bytes: u64) {
        self.fetched.count(way, bytes);
    }
}

impl fmt::Debug for Dragonfly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dragonfly").field("name", &self.name).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
