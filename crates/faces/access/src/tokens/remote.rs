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

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::super::tests::{Signer, key_set};
    use super::*;

    const URL: &str = "https://login.x/keys";

    /// An issuer whose document the test sets.
    #[derive(Debug, Default)]
    struct Published(Mutex<(Option<Vec<u8>>, usize)>);

    impl Published {
        fn publish(&self, document: Option<&[u8]>) {
            self.0.lock().unwrap().0 = document.map(<[u8]>::to_vec);
        }

        fn fetches(&self) -> usize {
            self.0.lock().unwrap().1
        }
    }

    impl FetchKeys for Published {
        fn fetch(&self, _: &str) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> {
            let mut published = self.0.lock().unwrap();
            published.1 += 1;
            Box::pin(ready(published.0.clone().ok_or_else(|| "status 503".to_owned())))
        }
    }

    async fn refresh_after(keys: &RemoteKeys, pause: Duration) {
        tokio::time::advance(pause).await;
        keys.refresh([URL.to_owned()].into()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn good_keys_outlive_documents_that_are_broken() {
        let issuer = Arc::<Published>::default();
        let keys = RemoteKeys::new(Arc::clone(&issuer) as _);
        refresh_after(&keys, Duration::ZERO).await;
        assert_eq!(keys.get(URL).unwrap_err(), "the server cannot fetch the keys of the token's issuer");
        let (one, other) = (key_set(&[("a", &Signer::ed())]), key_set(&[("b", &Signer::ed())]));
        issuer.publish(Some(&one));
        refresh_after(&keys, PAUSE).await;
        let good = keys.get(URL).unwrap();
        let cut = &one[..one.len() / 2];
        for broken in [None, Some(&b""[..]), Some(cut), Some(br#"{"keys": []}"#), Some(&[0xff; 100])] {
            issuer.publish(broken);
            // A token with an unknown key causes a fetch, and the failure the next one.
            keys.want(URL);
            for _ in 0..2 {
                let before = issuer.fetches();
                refresh_after(&keys, PAUSE / 2).await;
                refresh_after(&keys, PAUSE / 2).await;
                assert_eq!(issuer.fetches(), before + 1, "{broken:?}");
                assert!(keys.are_current(URL, &good), "{broken:?}");
            }
        }
        issuer.publish(Some(&other));
        refresh_after(&keys, PAUSE).await;
        assert!(!keys.are_current(URL, &good));
        // Good keys are fetched again after a longer time only.
        let before = issuer.fetches();
        refresh_after(&keys, REFRESH / 2).await;
        assert_eq!(issuer.fetches(), before);
        refresh_after(&keys, REFRESH / 2).await;
        assert_eq!(issuer.fetches(), before + 1);
    }
}
