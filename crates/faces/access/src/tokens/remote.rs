//! Public keys that issuers publish at a URL. They are fetched in the background, and kept while a fetch fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Keys;

/// How often the keys are fetched.
const REFRESH: Duration = Duration::from_secs(300);

/// The least time between two attempts: tokens with unknown keys cause fetches, and so do failures.
const PAUSE: Duration = Duration::from_secs(10);

/// Fetches documents of issuers.
pub trait FetchKeys: fmt::Debug + Send + Sync {
    /// The document at a URL.
    fn fetch(&self, url: &str) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>>;
}

/// The keys at URLs.
#[derive(Debug)]
pub(crate) struct RemoteKeys {
    fetcher: Arc<dyn FetchKeys>,
    sets: Mutex<BTreeMap<String, Remote>>,
}

#[derive(Debug, Default)]
struct Remote {
    keys: Option<Arc<Keys>>,
    /// Why the last fetch failed.
    error: Option<String>,
    attempted: Option<Instant>,
    /// Set when a token names an unknown key.
    wanted: bool,
}

impl Remote {
    fn is_due(&self) -> bool {
        let pause = if self.wanted || self.error.is_some() { PAUSE } else { REFRESH };
        self.attempted.is_none_or(|attempted| attempted.elapsed() >= pause)
    }
}

impl RemoteKeys {
    pub(crate) fn new(fetcher: Arc<dyn FetchKeys>) -> Self {
        Self { fetcher, sets: Mutex::default() }
    }

    /// The keys at a URL.
    ///
    /// # Errors
    /// None were fetched yet.
    pub(crate) fn get(&self, url: &str) -> Result<Arc<Keys>, String> {
        let sets = self.sets();
        let remote = sets.get(url);
        if let Some(keys) = remote.and_then(|remote| remote.keys.as_ref()) {
            return Ok(Arc::clone(keys));
        }
        match remote.and_then(|remote| remote.error.as_deref()) {
            Some(_) => Err("the server cannot fetch the keys of the token's issuer".to_owned()),
            None => Err("the server has not fetched the keys of the token's issuer yet".to_owned()),
        }
    }

    /// Whether these are the keys of the last fetch.
    pub(crate) fn are_current(&self, url: &str, keys: &Arc<Keys>) -> bool {
        let sets = self.sets();
        sets.get(url)
            .and_then(|remote| remote.keys.as_ref())
            .is_some_and(|current| Arc::ptr_eq(current, keys))
    }

    /// Fetches the keys soon: a token has one that is unknown.
    pub(crate) fn want(&self, url: &str) {
        if let Some(remote) = self.sets().get_mut(url) {
            remote.wanted = true;
        }
    }

    /// Fetches what is due of the keys at these URLs, and forgets others.
    pub(crate) async fn refresh(&self, urls: BTreeSet<String>) {
        let due: Vec<_> = {
            let mut sets = self.sets();
            sets.retain(|url, _| urls.contains(url));
            urls.into_iter().filter(|url| sets.entry(url.clone()).or_default().is_due()).collect()
        };
        for url in due {
            if let Some(remote) = self.sets().get_mut(&url) {
                remote.attempted = Some(Instant::now());
                remote.wanted = false;
            }
            let fetched = self.fetcher.fetch(&url).await.and_then(|document| Keys::parse(&document));
            let mut sets = self.sets();
            let Some(remote) = sets.get_mut(&url) else { continue };
            match fetched {
                Ok(keys) => {
                    remote.keys = Some(Arc::new(keys));
                    if remote.error.take().is_some() {
                        tracing::info!("fetched the keys of tokens from '{url}' again");
                    }
                }
                Err(error) => {
                    if remote.error.as_ref() != Some(&error) {
                        tracing::error!("cannot fetch the keys of tokens from '{url}': {error}");
                    }
                    remote.error = Some(error);
                }
            }
        }
    }

    fn sets(&self) -> MutexGuard<'_, BTreeMap<String, Remote>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
