//! Response caches built for Triton: loads their libraries, and offers them the functions of `tritoncache.h`.
//!
//! An entry is one buffer here: the bytes of [`encode_entry`], so that a cache that loses or mixes up entries does no harm.
//! Libraries may block, in a network or in a lock, so they are called by threads of their own.

mod objects;

use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use nereid_backend_api::{Error, ErrorCode, Result};
use nereid_dylib::symbols;
use nereid_plugin::{Kind, SearchPath};
use nereid_response_cache::{
    CacheEntry, CacheKey, CacheLookup, CacheScope, ResponseCache, decode_entry, encode_entry,
};
use serde_json::json;
use tokio::sync::oneshot;
use triton_sys::*;

pub(crate) use self::objects::EXPORTS;
pub(crate) use self::objects::{CacheAllocator, CacheEntryObject};
use crate::exports;
use crate::handle::LentHandle;
use crate::text::c_string;
use crate::thrown::call;

/// Number of threads that call a library.
const THREADS: usize = 4;

/// Limit of waiting calls. Further entries are neither looked up nor stored.
const MAX_WAITING: usize = 256;

/// The largest entry, in bytes.
const MAX_ENTRY: usize = 64 << 20;

/// A cache in a library.
pub struct LibraryCache {
    calls: SyncSender<Call>,
}

enum Call {
    Lookup(CacheKey, oneshot::Sender<Option<CacheEntry>>),
    Insert(CacheKey, CacheEntry),
}

impl LibraryCache {
    /// Whether a folder of caches contains one of that name.
    pub fn is_installed(directory: &Path, name: &str) -> bool {
        SearchPath::in_directory(directory, name).find(&Kind::CACHE.library_name(name)).is_ok()
    }

    /// Loads the cache of that name from a folder of caches, with these settings.
    ///
    /// # Errors
    /// The cache is not installed, is not a cache, or refuses the settings.
    pub fn load<'a>(
        directory: &Path,
        name: &str,
        settings: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        let missing = |error: nereid_plugin::PluginError| Error::not_found(error.to_string());
        let file = Kind::CACHE.library_name(name);
        let found = SearchPath::in_directory(directory, name).find(&file).map_err(missing)?;
        tracing::info!("loading cache '{name}' from '{}'", found.library.display());
        let settings = json!(settings.collect::<std::collections::BTreeMap<_, _>>()).to_string();
        let library = Arc::new(Library::open(&found.library, name, &settings)?);
        let (calls, waiting) = sync_channel(MAX_WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..THREADS {
            let (library, waiting) = (Arc::clone(&library), Arc::clone(&waiting));
            thread::Builder::new()
                .name("cache-library".into())
                .spawn(move || serve(&library, &waiting))
                .map_err(|error| {
                    Error::internal(format!("cannot start a thread of cache '{name}': {error}"))
                })?;
        }
        Ok(Self { calls })
    }
}

/// Calls the library until all senders are dropped.
fn serve(library: &Library, waiting: &Mutex<Receiver<Call>>) {
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(call) = next() {
        match call {
            // The request may have been dropped.
            Call::Lookup(key, found) if !found.is_closed() => drop(found.send(library.lookup(&key))),
            Call::Lookup(..) => {}
            Call::Insert(key, entry) => library.insert(&key, &entry),
        }
    }
}

impl ResponseCache for LibraryCache {
    /// A library may share entries as it likes: keys are valid only within this process.
    fn scope(&self) -> CacheScope {
        CacheScope::Server
    }

    fn lookup(&self, key: &CacheKey) -> CacheLookup {
        let (sender, found) = oneshot::channel();
        match self.calls.try_send(Call::Lookup(*key, sender)) {
            Ok(()) => CacheLookup::Wait(Box::pin(async { found.await.ok().flatten() })),
            Err(_) => CacheLookup::Ready(None),
        }
    }

    fn insert(&self, key: &CacheKey, entry: CacheEntry) {
        let _ = self.calls.try_send(Call::Insert(*key, entry));
    }

    fn max_entry_size(&self) -> usize {
        MAX_ENTRY
    }

    /// Triton's local cache reports metrics, and others may.
    fn keeps_metrics(&self) -> bool {
        true
    }
}

/// An initialized cache, finalized when dropped.
struct Library {
    name: String,
    /// The library's own object.
    cache: AtomicPtr<TRITONCACHE_Cache>,
    functions: Functions,
}

symbols! {
    /// The functions of a cache.
    struct Functions {
        initialize = "TRITONCACHE_CacheInitialize" => signatures::TRITONCACHE_CacheInitialize,
        finalize = "TRITONCACHE_CacheFinalize" => signatures::TRITONCACHE_CacheFinalize,
        lookup = "TRITONCACHE_CacheLookup" => signatures::TRITONCACHE_CacheLookup,
        insert = "TRITONCACHE_CacheInsert" => signatures::TRITONCACHE_CacheInsert,
    }
}

impl Library {
    fn open(path: &Path, name: &str, settings: &str) -> Result<Self> {
        let failed = |error: Error| error.context(format_args!("cache '{name}'"));
        let refused = |error: nereid_plugin::PluginError| failed(Error::invalid_arg(error.to_string()));
        let plugin = Kind::CACHE.load(path, exports::TABLES).map_err(refused)?;
        // SAFETY: each type matches the function of this name in `tritoncache.h`.
        let functions = unsafe { plugin.table(Functions::of) }.map_err(refused)?;
        let library = Self { name: name.to_owned(), cache: AtomicPtr::default(), functions };
        let (settings, mut cache) = (c_string(settings), ptr::null_mut());
        // SAFETY: the arguments match the header: a place for the cache, and a text.
        let act = || unsafe { (functions.initialize)(&raw mut cache, settings.as_ptr()) };
        call("TRITONCACHE_CacheInitialize", format_args!("cache '{name}'"), act).map_err(failed)?;
        library.cache.store(cache, Relaxed);
        Ok(library)
    }

    fn lookup(&self, key: &CacheKey) -> Option<CacheEntry> {
        let found = self.try_lookup(key);
        match &found {
            Err(error) if error.code() != ErrorCode::NotFound => {
                tracing::debug!("cache '{}' failed to look up a response: {error}", self.name);
            }
            _ => {}
        }
        decode_entry(key, &Bytes::from(found.ok()?)).ok()
    }

    fn try_lookup(&self, key: &CacheKey) -> Result<Vec<u8>> {
        let entry = LentHandle::new(Arc::<CacheEntryObject>::default())?;
        let copies = Arc::new(CacheAllocator::reading());
        let allocator = LentHandle::new(Arc::clone(&copies))?;
        let name = c_string(&name(key));
        let (cache, whose) = (self.cache.load(Relaxed), format_args!("cache '{}'", self.name));
        // SAFETY: the cache's own object, a text, and handles of the function's kinds, alive until it returns.
        let act = || unsafe {
            (self.functions.lookup)(cache, name.as_ptr(), entry.handle().as_c(), allocator.handle().as_c())
        };
        call("TRITONCACHE_CacheLookup", whose, act)?;
        copies.read().ok_or_else(|| Error::not_found("the cache copied nothing"))
    }

    fn insert(&self, key: &CacheKey, entry: &CacheEntry) {
        if let Err(error) = self.try_insert(key, entry) {
            tracing::debug!("cache '{}' failed to store a response: {error}", self.name);
        }
    }

    fn try_insert(&self, key: &CacheKey, entry: &CacheEntry) -> Result<()> {
        let bytes = Arc::new(encode_entry(key, entry));
        let entry = LentHandle::new(Arc::new(CacheEntryObject::of(&bytes)))?;
        let allocator = LentHandle::new(Arc::new(CacheAllocator::writing(Arc::clone(&bytes))))?;
        let name = c_string(&name(key));
        let (cache, whose) = (self.cache.load(Relaxed), format_args!("cache '{}'", self.name));
        // SAFETY: as in `try_lookup`.
        let act = || unsafe {
            (self.functions.insert)(cache, name.as_ptr(), entry.handle().as_c(), allocator.handle().as_c())
        };
        call("TRITONCACHE_CacheInsert", whose, act)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let cache = *self.cache.get_mut();
        if cache.is_null() {
            return;
        }
        // SAFETY: the cache's own object, which has no other users now.
        let act = || unsafe { (self.functions.finalize)(cache) };
        if let Err(error) = call("TRITONCACHE_CacheFinalize", format_args!("cache '{}'", self.name), act) {
            tracing::warn!("cache '{}' failed to finalize: {error}", self.name);
        }
    }
}

/// The key as a text.
fn name(key: &CacheKey) -> String {
    use std::fmt::Write as _;
    let mut name = String::new();
    for byte in key.digest() {
        let _ = write!(name, "{byte:02x}");
    }
    name
}
