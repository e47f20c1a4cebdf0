//! Opens repositories in clouds, which share a runtime, connections and caches.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_http_client::{Connector, Environment, Patience};
use nereid_hubs::{Engines, HubKind, WebKind};
use nereid_repository::Store;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::address::{Address, Cloud};
use crate::bucket::{Bucket, ListingLimits};
use crate::bundle::Bundle;
use crate::cache::{Cache, CacheOptions};
use crate::download::Downloader;
use crate::status::RepositoryStatus;
use crate::store::ObjectFolder;

/// The most ranges of files fetched at the same time.
const CONNECTIONS: usize = 16;

/// Threads that send requests and write received data.
const THREADS: usize = 4;

/// How to reach clouds, and where to keep files.
#[derive(Clone)]
pub struct CloudOptions {
    /// Where files are kept.
    pub cache: CacheOptions,
    /// The variables with credentials and endpoints.
    pub environment: Environment,
    /// How long servers may be silent.
    pub patience: Patience,
    /// How long listings may be.
    pub listings: ListingLimits,
    /// Which engines this machine has: they decide between the formats of a hub's models.
    pub engines: Engines,
}

impl Default for CloudOptions {
    /// With the environment of the process, and a temporary cache.
    fn default() -> Self {
        Self {
            cache: CacheOptions::default(),
            environment: Environment::of_process(),
            patience: Patience::default(),
            listings: ListingLimits::default(),
            engines: Arc::new(|_| true),
        }
    }
}

impl fmt::Debug for CloudOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudOptions").field("cache", &self.cache).finish_non_exhaustive()
    }
}

/// Reports the state of a repository.
type Status = Box<dyn Fn() -> RepositoryStatus + Send + Sync>;

/// Opens repositories in clouds.
pub struct Clouds {
    options: CloudOptions,
    connector: Connector,
    connections: Arc<Semaphore>,
    /// By the folders that contain temporary ones.
    caches: Mutex<BTreeMap<PathBuf, Arc<Cache>>>,
    statuses: Mutex<Vec<Status>>,
    runtime: Option<Runtime>,
}

impl Clouds {
    /// Starts threads for requests to clouds.
    ///
    /// # Errors
    /// Names the option that cannot be used.
    pub fn new(options: CloudOptions) -> Result<Self, String> {
        let connector = Connector::new(&options.environment, options.patience)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("nereid-cloud")
            .enable_all()
            .build();
        let runtime =
            runtime.map_err(|error| format!("cannot start threads for requests to clouds: {error}"))?;
        Ok(Self {
            options,
            connector,
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            caches: Mutex::default(),
            statuses: Mutex::default(),
            runtime: Some(runtime),
        })
    }

    /// Opens the repository at an address. Sends no request yet.
    ///
    /// # Errors
    /// The cache's folder cannot be used.
    pub fn open(&self, address: Address) -> Result<Arc<dyn Store>, String> {
        let (store, status) = self.store(address)?;
        lock(&self.statuses).push(status);
        Ok(store)
    }

    /// Opens the store at an address without registering it as a repository.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for_a_while(&self, address: Address) -> Result<Arc<dyn Store>, String> {
        Ok(self.store(address)?.0)
    }

    fn store(&self, address: Address) -> Result<(Arc<dyn Store>, Status), String> {
        let Some(runtime) = &self.runtime else { return Err("the server is stopping".into()) };
        let CloudOptions { environment, patience, listings, engines, .. } = self.options.clone();
        let cache = self.cache(&address.cloud)?;
        let bucket = Bucket::new(address, environment, self.connector.clone(), patience, listings);
        let bucket = Arc::new(bucket);
        let downloader =
            Downloader { bucket, cache, connections: Arc::clone(&self.connections), etags: Arc::default() };
        let hub = downloader.bucket.address.hub();
        let bundle = hub
            .filter(|hub| matches!(hub.kind, HubKind::Web(WebKind::Archive(_)) | HubKind::Registry { .. }));
        if let Some(name) = bundle.map(|hub| hub.model().to_owned()) {
            let bundle = Bundle::new(downloader, runtime.handle().clone(), name);
            let status = bundle.clone();
            return Ok((Arc::new(bundle), Box::new(move || status.status())));
        }
        let folder = ObjectFolder::new(downloader, runtime.handle().clone(), engines);
        let status = folder.clone();
        Ok((Arc::new(folder), Box::new(move || status.status())))
    }

    /// The states of all opened repositories.
    pub fn status(&self) -> Vec<RepositoryStatus> {
        lock(&self.statuses).iter().map(|status| status()).collect()
    }

    /// Removes temporary files, even those in use. Call it once no model is loaded, in case anything still holds one.
    pub fn close(&self) {
        lock(&self.caches).values().for_each(|cache| cache.close());
    }

    fn cache(&self, cloud: &Cloud) -> Result<Arc<Cache>, String> {
        let variable = match cloud {
            Cloud::S3 { .. } => Some("TRITON_AWS_MOUNT_DIRECTORY"),
            Cloud::Google => Some("TRITON_GCS_MOUNT_DIRECTORY"),
            Cloud::Azure { .. } => Some("TRITON_AZURE_MOUNT_DIRECTORY"),
            Cloud::Hub(_) => None,
        };
        let named = variable.and_then(|name| self.options.environment.get(name)).map(PathBuf::from);
        let temporary = self.options.cache.directory.clone().or(named).unwrap_or_else(env::temp_dir);
        let mut caches = lock(&self.caches);
        if let Some(cache) = caches.get(&temporary) {
            return Ok(Arc::clone(cache));
        }
        let cache = Cache::new(&self.options.cache, &temporary).map_err(|error| {
            format!("cannot keep the files of models in '{}': {error}", temporary.display())
        })?;
        Ok(Arc::clone(caches.entry(temporary).or_insert(Arc::new(cache))))
    }
}

impl Drop for Clouds {
    fn drop(&mut self) {
        // Does not block, so it may happen on any thread.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Clouds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clouds").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
