//! The agent `dragonfly`: fetches cloud objects through the proxy of Dragonfly's daemon, which gets them from its
//! peers, and reads the bucket only if none of them has the object.
//!
//! The proxy gets plain requests for signed URLs, with headers that identify requests for the same object. The protocol
//! is that of the proxy of `dragonfly-client`, and of the Dragonfly project's own agent.

mod metrics;
mod proxy;
mod settings;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nereid_core::MetricRegistry;
use nereid_core::backend_api::Result;
use nereid_repository::{Route, RouteError, RouteFuture, RoutedObject, Way};
use tokio::time::Instant;

use self::metrics::RouteCounters;
use self::proxy::Proxy;
pub use self::settings::DragonflySettings;

/// An unreachable proxy is not tried for this long if buckets may replace it.
const AWAY: Duration = Duration::from_secs(10);

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
    /// Until when the proxy is not tried, and why.
    away: Mutex<Option<(Instant, String)>>,
}

impl Dragonfly {
    fn new(settings: DragonflySettings, fetched: Arc<RouteCounters>) -> Self {
        Self {
            name: format!("Dragonfly's proxy {}", settings.proxy),
            fallback: settings.fallback,
            proxy: Proxy::new(settings),
            fetched,
            away: Mutex::default(),
        }
    }

    /// The reason why the proxy is not tried now, if so.
    fn away(&self) -> Option<String> {
        let away = lock(&self.away);
        let (_, reason) = away.as_ref().filter(|(until, _)| Instant::now() < *until)?;
        Some(reason.clone())
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
            if let Some(reason) = self.away().filter(|_| self.fallback) {
                return Err(RouteError(reason));
            }
            match self.proxy.get(object).await {
                Ok(answer) => {
                    *lock(&self.away) = None;
                    Ok(answer)
                }
                Err(failure) => {
                    if failure.is_away {
                        let first =
                            lock(&self.away).replace((Instant::now() + AWAY, failure.message.clone()));
                        if first.is_none() && self.fallback {
                            tracing::warn!(
                                "{}: {}; objects come from their buckets instead",
                                self.name,
                                failure.message
                            );
                        }
                    }
                    Err(RouteError(failure.message))
                }
            }
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
