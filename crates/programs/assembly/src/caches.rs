//! The response caches, by the names that the command line uses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_metrics::{ResponseCacheFill, ResponseCacheMetrics};
use nereid_response_cache::{
    CacheSettings, LocalCache, RedisCache, RedisSettings, ResponseCache, ResponseCaching,
};
use nereid_triton_host::LibraryCache;

/// Configuration of the response cache.
#[derive(Clone, Debug, Default)]
pub struct CacheConfig {
    /// The cache's name.
    pub name: String,
    /// The cache's settings, in order. The last value of a repeated setting wins.
    pub settings: Vec<(String, String)>,
    /// Folder with a subfolder for each installed cache, if configured. Installed caches override built-in ones.
    pub directory: Option<PathBuf>,
}

/// The names of the built-in caches.
const BUILT_IN: [&str; 2] = ["local", "redis"];

/// Triton's default cache directory.
const DIRECTORY: &str = "/opt/tritonserver/caches";

/// Opens the cache of a configuration.
///
/// # Errors
/// The cache cannot be used.
pub(crate) fn open(config: CacheConfig) -> Result<ResponseCaching, String> {
    let name = &*config.name;
    // Scripts for Triton may name its own folder where it is not installed.
    let is_missing =
        |directory: &&PathBuf| !directory.is_dir() && directory.as_path() != Path::new(DIRECTORY);
    if let Some(directory) = config.directory.as_ref().filter(is_missing) {
        return Err(format!("--cache-directory: '{}' is not a folder", directory.display()));
    }
    let mut settings: CacheSettings = config.settings.into_iter().collect();
    let coalesce = settings.flag("any", "coalesce").map_err(|error| error.to_string())?;
    let named = config.directory.filter(|directory| LibraryCache::is_installed(directory, name));
    let installed = named.or_else(|| {
        let directory = PathBuf::from(DIRECTORY);
        (!BUILT_IN.contains(&name) && LibraryCache::is_installed(&directory, name)).then_some(directory)
    });
    let cache: Arc<dyn ResponseCache> = match (installed, name) {
        (Some(directory), _) => {
            let library = LibraryCache::load(&directory, name, settings.iter());
            settings = CacheSettings::default();
            Arc::new(library.map_err(|error| error.to_string())?)
        }
        (None, "local") => {
            Arc::new(LocalCache::new(settings.local_size().map_err(|error| error.to_string())?))
        }
        (None, "redis") => {
            let settings = RedisSettings::read(&mut settings).map_err(|error| error.to_string())?;
            Arc::new(RedisCache::new(settings)?)
        }
        (None, _) => {
            return Err(format!(
                "response cache '{name}' is neither built in (available: {}) nor installed in --cache-directory",
                BUILT_IN.join(", ")
            ));
        }
    };
    for setting in settings.unknown() {
        tracing::warn!("--cache-config={name},{setting} has no effect: the cache has no such setting");
    }
    Ok(ResponseCaching::new(cache).with_coalescing(coalesce.unwrap_or(false)))
}

/// The metrics of a cache; `None` if it exports its own.
pub(crate) fn metrics(caching: &ResponseCaching) -> Option<ResponseCacheMetrics> {
    if caching.keeps_metrics() {
        return None;
    }
    let counts = caching.counts();
    let fill = caching.usage().map(|usage| ResponseCacheFill {
        entries: usage.entries,
        evictions: usage.evictions,
        utilization: usage.utilization,
    });
    Some(ResponseCacheMetrics {
        hits: counts.hits,
        misses: counts.misses,
        lookup_ns: counts.lookup_ns,
        insertion_ns: counts.insertion_ns,
        is_available: caching.is_available(),
        fill,
    })
}
