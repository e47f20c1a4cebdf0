//! Makes the releases of a server's models.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_core::backend_api::{ModelConfig, Result};
use nereid_core::{Interceptor, InterceptorFactory, LoadedVersion, ModelId, Release, ReleaseFactory};

use crate::observer::Observer;
use crate::release::{Listener, ModelRelease, ReleaseDecision};
use crate::settings::{PARAMETERS, Settings};
use crate::shadow::{Shadows, Workers};

/// How many releases of models that are not in memory are kept.
const KEPT_RELEASES: usize = 1_000;

/// The releases of a server: to be set as the [`releases`](nereid_core::ServerOptions::releases) of its options, and to be added to
/// its interceptors. Cheap to clone.
#[derive(Clone, Default)]
pub struct Releases {
    /// Kept while a model is not in memory, too: a version that was withdrawn stays so when it is loaded again.
    all: Arc<Mutex<BTreeMap<ModelId, Arc<ModelRelease>>>>,
    workers: Arc<Workers>,
    listener: Listener,
}

impl Releases {
    /// Calls a function after each decision, of the first caller only. It must be quick: requests wait for it.
    pub fn on_decision(&self, listener: impl Fn(ReleaseDecision<'_>) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// The release of a model with this configuration: the one in progress, unless the configuration changes it.
    fn of(&self, id: &ModelId, config: &ModelConfig) -> Result<Option<Arc<ModelRelease>>> {
        let settings = Settings::of(config)?;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(settings) = settings else {
            all.remove(id);
            return Ok(None);
        };
        if let Some(release) = all.get(id).filter(|release| *release.settings() == settings) {
            return Ok(Some(Arc::clone(release)));
        }
        if all.len() >= KEPT_RELEASES {
            all.retain(|_, release| Arc::strong_count(release) > 1);
        }
        let release = Arc::new(ModelRelease::new(id.clone(), settings, Arc::clone(&self.listener)));
        all.insert(id.clone(), Arc::clone(&release));
        Ok(Some(release))
    }
}

impl ReleaseFactory for Releases {
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Release>>> {
        let Some(release) = self.of(&version.spec.id, version.config)? else { return Ok(None) };
        let files = version.spec.fingerprint.versions.get(&version.version).copied();
        release.join(version.version, files.unwrap_or_default());
        Ok(Some(release as _))
    }

    fn parameters(&self) -> &[&str] {
        PARAMETERS.names
    }
}

impl InterceptorFactory for Releases {
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Interceptor>>> {
        let release = self.of(&version.spec.id, version.config)?;
        let release = release.filter(|it| it.settings().shares.versions().any(|it| it == version.version));
        let shadows = || Shadows::new(version.models.clone(), Arc::clone(&self.workers));
        Ok(release.map(|release| Arc::new(Observer { release, shadows: shadows() }) as _))
    }
}

impl fmt::Debug for Releases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_set().entries(all.keys()).finish()
    }
}

#[cfg(test)]
mod tests;
