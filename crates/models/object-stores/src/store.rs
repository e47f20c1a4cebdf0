//! A folder of a bucket as a store of models.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use nereid_core::backend_api::{Error, Result};
use nereid_core::{Progress, SourceFuture};
use nereid_hubs::{Arranged, Engines, HubKind, arrange};
use nereid_repository::{Entry, Fetch, FetchedFolder, Object, Route, Store};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::download::Downloader;
use crate::errors::FailureKind;
use crate::listing::{Contents, Listing};
use crate::progress::LoggedFetch;
use crate::status::RepositoryStatus;
use crate::tasks::{FILES, run};

/// The longest file that is read as a whole.
const TEXT_LIMIT: u64 = 16 << 20;

/// How often a fetch is restarted if files change during it.
const CHANGES: usize = 3;

/// The store of an address.
#[derive(Clone)]
pub(crate) struct ObjectFolder {
    downloader: Downloader,
    runtime: Handle,
    engines: Engines,
    seen: Arc<Mutex<LatestListings>>,
}

/// The latest listings.
#[derive(Default)]
struct LatestListings {
    /// The listing of the whole repository.
    whole: Option<Arc<Listing>>,
    /// Listings of single models.
    folders: BTreeMap<String, Arc<Listing>>,
    /// Whether the last listing of the repository failed.
    is_away: bool,
    /// The chosen file of a hub's repository.
    chosen: String,
    /// A listing that timed out and is still running. In a slow repository, it may be the only one to complete.
    late: Option<Late>,
}

type Late = Shared<BoxFuture<'static, Result<Arc<Listing>>>>;

impl ObjectFolder {
    pub(crate) fn new(downloader: Downloader, runtime: Handle, engines: Engines) -> Self {
        Self { downloader, runtime, engines, seen: Arc::default() }
    }

    /// A listing that contains this folder, and is not older than `as_of`.
    async fn listing(&self, folder: &str, as_of: Instant) -> Result<Arc<Listing>> {
        check(folder, self.location())?;
        if folder.is_empty() {
            return self.list_whole(as_of).await;
        }
        // The folders of a model are read one after the other, so they are listed together.
        let model = folder.split('/').next().unwrap_or_default();
        {
            let seen = self.seen();
            let known = seen.whole.iter().chain(seen.folders.get(model));
            if let Some(known) = known.into_iter().find(|listing| listing.as_of >= as_of) {
                return Ok(Arc::clone(known));
            }
        }
        let began = Instant::now();
        let listing = Arc::new(self.list_below(model, began).await?);
        let mut seen = self.seen();
        // Listings of models that are no longer used are dropped.
        seen.folders.retain(|_, listing| listing.as_of.elapsed().as_secs() < 60);
        seen.folders.insert(model.to_owned(), Arc::clone(&listing));
        Ok(listing)
    }

    /// Lists the whole repository. If that fails and an earlier listing exists, the repository counts as unchanged, so
    /// that one unreachable repository does not keep others from being polled.
    async fn list_whole(&self, as_of: Instant) -> Result<Arc<Listing>> {
        let known = self.seen().whole.clone();
        if let Some(known) = known.as_ref().filter(|known| known.as_of >= as_of) {
            return Ok(Arc::clone(known));
        }
        let began = Instant::now();
        let listed = match &known {
            None => self.list_below("", began).await,
            Some(_) => {
                let patience = self.downloader.bucket.patience;
                // Other repositories wait for this one.
                let patience = if self.is_away() { patience.listing_when_away } else { patience.listing };
                let late = |_| {
                    Err(Error::unavailable(format!("no answer within {} seconds", patience.as_secs_f32())))
                };
                let late_one = self.seen().late.take();
                let running = late_one.unwrap_or_else(|| self.list_in_background(began));
                let listed = timeout(patience, running.clone()).await;
                self.seen().late = listed.is_err().then_some(running);
                // The result is as new as this call, because it waited for it.
                listed.unwrap_or_else(late).map(|listing| listing.known_since(began))
            }
        };
        let (listing, failure) = match (listed, known) {
            (Ok(listing), _) => (listing, None),
            (Err(error), Some(known)) => (known.known_since(began), Some(error)),
            (Err(error), None) => return Err(error),
        };
        let listing = Arc::new(listing);
        let was_away = {
            let mut seen = self.seen();
            seen.whole = Some(Arc::clone(&listing));
            seen.folders.clear();
            std::mem::replace(&mut seen.is_away, failure.is_some())
        };
        // The log follows the state, so that metrics read after a record agree with it.
        match failure {
            Some(error) => {
                tracing::warn!("cannot list '{}', keeping what it had: {error}", self.location());
            }
            None if was_away => tracing::info!("'{}' can be listed again", self.location()),
            None => {}
        }
        Ok(listing)
    }

    fn list_in_background(&self, began: Instant) -> Late {
        let this = self.clone();
        let task = self.runtime.spawn(async move { this.list_below("", began).await.map(Arc::new) });
        let listed = async {
            task.await.unwrap_or_else(|error| {
                Err(Error::unavailable(format!("the listing was interrupted: {error}")))
            })
        };
        listed.boxed().shared()
    }

    async fn list_below(&self, folder: &str, began: Instant) -> Result<Listing> {
        let bucket = &self.downloader.bucket;
        let path = &bucket.address.path;
        let repository = if path.is_empty() { String::new() } else { format!("{path}/") };
        // A hub is always listed as a whole, and a model in it may have another name.
        let listed = if bucket.address.hub().is_some() { "" } else { folder };
        let objects = bucket.list(format!("{repository}{listed}").trim_end_matches('/')).await;
        let objects =
            objects.map_err(|failure| failure.error(&format!("cannot list '{}'", self.location())))?;
        let listing = match bucket.address.hub() {
            None => Listing::new(began, &repository, objects),
            Some(hub) => {
                let paths: Vec<_> = objects.iter().map(|object| object.location.as_ref()).collect();
                let arranged = match hub.kind {
                    HubKind::HuggingFace { .. } => arrange(hub, &paths, &*self.engines),
                    HubKind::Web(_) | HubKind::Registry { .. } => Ok(Arranged::AsIs),
                };
                match arranged.map_err(Error::invalid_arg)? {
                    Arranged::AsIs => Listing::new(began, &repository, objects).in_model(hub.model()),
                    Arranged::Model { name, chosen, files } => {
                        self.report_choice(&name, &chosen);
                        return Ok(Listing::of_model(began, &name, &files, objects));
                    }
                }
            }
        };
        if listing.is_empty() && !repository.is_empty() && folder.is_empty() {
            return Err(Error::not_found(format!("'{}' does not exist", self.location())));
        }
        Ok(listing)
    }

    /// Logs the chosen file of a hub's repository, once.
    fn report_choice(&self, name: &str, chosen: &str) {
        let mut seen = self.seen();
        if seen.chosen != chosen {
            tracing::info!("'{}': '{chosen}' is model '{name}'", self.location());
            chosen.clone_into(&mut seen.chosen);
        }
    }

    /// Makes a folder of links to files of the cache. `None` if an object has changed since it was listed.
    async fn place(
        &self,
        folder: &str,
        contents: Contents,
        progress: &Progress,
        route: Option<&Arc<dyn Route>>,
    ) -> Result<Option<FetchedFolder>> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::unavailable(format!("cannot fetch '{}/{folder}': {error}", self.location()))
        };
        let (path, guard) = self.downloader.cache.model_folder().map_err(|error| failed(&error))?;
        for folder in &contents.folders {
            fs::create_dir_all(path.join(folder)).map_err(|error| failed(&error))?;
        }
        let bytes: u64 = contents.files.iter().map(|(_, object)| object.size).sum();
        let files = contents.files.len();
        let patience = self.downloader.bucket.patience;
        let logged = LoggedFetch::new(format!("{}/{folder}", self.location()), progress, patience.report);
        let fetching = stream::iter(contents.files).map(|(name, object)| {
            let (to, progress) = (path.join(name), progress.clone());
            async move { self.downloader.fetch(&object, &to, &progress, route).await }
        });
        let fetching = fetching.buffer_unordered(FILES).try_collect::<()>();
        match logged.during(fetching).await {
            Ok(()) => {}
            Err(failure) if failure.kind == FailureKind::Changed => {
                tracing::info!("{}; listing it again", failure.message);
                return Ok(None);
            }
            Err(failure) => return Err(failed(&failure.message)),
        }
        logged.finish(bytes, files);
        Ok(Some(FetchedFolder { path, is_complete: false, guard }))
    }

    fn seen(&self) -> MutexGuard<'_, LatestListings> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the last listing of the repository failed.
    fn is_away(&self) -> bool {
        self.seen().is_away
    }

    pub(crate) fn status(&self) -> RepositoryStatus {
        RepositoryStatus {
            location: self.location().to_owned(),
            is_reachable: !self.is_away(),
            fetched: self.downloader.bucket.fetched.load(Ordering::Relaxed),
            fetching: None,
        }
    }
}

impl Store for ObjectFolder {
    fn location(&self) -> &str {
        self.downloader.bucket.address.as_str()
    }

    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>> {
        let (this, folder) = (self.clone(), folder.to_owned());
        run(&self.runtime, async move {
            let listing = this.listing(&folder, as_of).await?;
            listing.list(&folder).ok_or_else(|| no_folder(&folder, this.location()))
        })
    }

    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>> {
        let (this, folder) = (self.clone(), folder.to_owned());
        run(&self.runtime, async move {
            let listing = this.listing(&folder, as_of).await?;
            listing.stat(&folder).ok_or_else(|| no_folder(&folder, this.location()))
        })
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, FetchedFolder> {
        Box::pin(async move {
            let mut as_of = fetch.as_of;
            for _ in 0..CHANGES {
                let (this, folder) = (self.clone(), fetch.folder.to_owned());
                let contents = run(&self.runtime, async move {
                    let listing = this.listing(&folder, as_of).await?;
                    listing.contents(&folder).ok_or_else(|| no_folder(&folder, this.location()))
                });
                let mut contents = contents.await?;
                contents.files.retain(|(path, _)| (fetch.is_needed)(path));
                let (this, folder) = (self.clone(), fetch.folder.to_owned());
                let (progress, route) = (fetch.progress.clone(), fetch.route.cloned());
                let placed = run(&self.runtime, async move {
                    this.place(&folder, contents, &progress, route.as_ref()).await
                });
                if let Some(fetched) = placed.await? {
                    return Ok(fetched);
                }
                as_of = Instant::now();
            }
            let (location, folder) = (self.location(), fetch.folder);
            Err(Error::unavailable(format!("'{location}/{folder}' keeps changing while it is fetched")))
        })
    }

    fn read<'a>(&'a self, file: &'a str, as_of: Instant) -> SourceFuture<'a, Option<Vec<u8>>> {
        let whole = self.seen().whole.clone().filter(|whole| whole.as_of >= as_of);
        if whole.is_some_and(|whole| whole.object(file).is_none()) {
            return Box::pin(async { Ok(None) });
        }
        let (bucket, file) = (Arc::clone(&self.downloader.bucket), file.to_owned());
        run(&self.runtime, async move {
            let read = bucket.read(&file, TEXT_LIMIT).await;
            read.map_err(|failure| failure.error(&format!("cannot read '{}/{file}'", bucket.address)))
        })
    }
}

impl std::fmt::Debug for ObjectFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectFolder").field("location", &self.location()).finish_non_exhaustive()
    }
}

/// A folder is a path within the store.
fn check(folder: &str, location: &str) -> Result<()> {
    let is_inside = Path::new(folder).components().all(|part| matches!(part, Component::Normal(_)));
    if is_inside { Ok(()) } else { Err(no_folder(folder, location)) }
}

fn no_folder(folder: &str, location: &str) -> Error {
    Error::not_found(format!("'{folder}' is not a folder of '{location}'"))
}

#[cfg(test)]
mod tests;
