//! The response caches, by the names that the command line uses.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_core::{ResponseCache, ResponseCaching};
use nereid_response_cache::{CacheSettings, LocalCache};

/// Where responses are cached.
#[derive(Clone, Debug, Default)]
pub struct CacheConfig {
    /// The cache's name.
    pub name: String,
    /// Its settings, in their order. Of the same ones, the last counts.
    pub settings: Vec<(String, String)>,
    /// The folder with a folder for each installed cache, if one was named.
    pub directory: Option<PathBuf>,
}

/// The names of the built-in caches.
const BUILT_IN: [&str; 1] = ["local"];

/// Opens the cache of a configuration.
///
/// # Errors
/// Why it cannot be used.
pub(crate) fn open(config: CacheConfig) -> Result<ResponseCaching, String> {
    let name = &*config.name;
    if let Some(directory) = config.directory.as_ref().filter(|directory| !directory.is_dir()) {
        return Err(format!("--cache-directory: '{}' is not a folder", directory.display()));
    }
    let mut settings: CacheSettings = config.settings.into_iter().collect();
    let coalesce = settings.flag("any", "coalesce").map_err(|error| error.to_string())?;
    let cache: Arc<dyn ResponseCache> = match name {
        "local" => Arc::new(LocalCache::new(settings.local_size().map_err(|error| error.to_string())?)),
        _ => {
            return Err(format!("there is no response cache '{name}' (built in: {})", BUILT_IN.join(", ")));
        }
    };
    for setting in settings.unknown() {
        tracing::warn!("--cache-config={name},{setting} has no effect: the cache has no such setting");
    }
    Ok(ResponseCaching::new(cache).with_coalescing(coalesce.unwrap_or(false)))
}
