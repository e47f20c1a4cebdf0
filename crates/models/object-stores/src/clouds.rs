//! What all repositories in clouds share: a runtime, connections and caches.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nereid_repository::Store;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::address::{Address, Cloud};
use crate::bucket::Bucket;
use crate::bundle::Bundle;
use crate::cache::{Cache, CacheOptions};
use crate::download::Downloader;
use crate::environment::Environment;
use crate::http::Connector;
use crate::hubs::web::WebKind;
use crate::store::ObjectFolder;

/// The most ranges of files fetched at the same time.
const CONNECTIONS: usize = 16;

/// Threads that send requests and write received data.
const THREADS: usize = 4;

/// How to reach clouds, and where to keep files.
#[derive(Clone, Debug)]
pub struct CloudOptions {
    /// Where files are kept.
    pub cache: CacheOptions,
    /// The variables with credentials and endpoints.
    pub environment: Environment,
    /// How long servers may be silent.
    pub patience: Patience,
}

/// How long servers may be silent, and when to retry.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The limit for a connection to be made.
    pub connect: Duration,
    /// The limit for the next bytes to arrive.
    pub stall: Duration,
    /// The limit for listing a repository that was listed before.
    pub listing: Duration,
    /// The same for a repository whose last listing failed.
    pub listing_when_away: Duration,
    /// The most attempts.
    pub attempts: u32,
    /// The pause after the first attempt. Later ones are longer.
    pub first_pause: Duration,
    /// The interval between reports of a fetch's progress.
    pub report: Duration,
}

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Patience {
    /// The pause after an attempt, given the number of attempts before it.
    pub(crate) fn pause(&self, attempts: u32) -> Duration {
        self.first_pause.saturating_mul(1 << attempts.min(16)).min(LONGEST_PAUSE)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            listing: Duration::from_secs(15),
            listing_when_away: Duration::from_secs(3),
            attempts: 6,
            first_pause: Duration::from_millis(200),
            report: Duration::from_secs(10),
        }
    }
}

impl Default for CloudOptions {
    /// With the environment of the process, and a temporary cache.
    fn default() -> Self {
        Self {
            cache: CacheOptions::default(),
            environment: Environment::of_process(),
            patience: Patience::default(),
        }
    }
}

/// The state of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryStatus {
    /// Its address.
    pub location: String,
    /// Whether the last listing succeeded.
    pub is_reachable: bool,
    /// How many bytes of files were fetched from it.
    pub fetched: u64,
    /// For stores that are fetched as a whole, such as archives: bytes received and total, while a fetch is in
    /// progress.
    pub fetching: Option<(u64, u64)>,
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
        let CloudOptions { environment, patience, .. } = self.options.clone();
        let cache = self.cache(&address.cloud)?;
        let bucket = Arc::new(Bucket::new(address, environment, self.connector.clone(), patience));
        let downloader =
            Downloader { bucket, cache, connections: Arc::clone(&self.connections), etags: Arc::default() };
        let (cloud, name) = (&downloader.bucket.address.cloud, downloader.bucket.address.model());
        let is_bundle = matches!(cloud, Cloud::Web(WebKind::Archive(_)) | Cloud::Registry { .. });
        if let Some(name) = name.filter(|_| is_bundle).map(str::to_owned) {
            let bundle = Bundle::new(downloader, runtime.handle().clone(), name);
            let status = bundle.clone();
            return Ok((Arc::new(bundle), Box::new(move || status.status())));
        }
        let folder = ObjectFolder::new(downloader, runtime.handle().clone());
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
            Cloud::HuggingFace { .. } | Cloud::Web(_) | Cloud::Registry { .. } => None,
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
