//! A store that is fetched as a whole: an archive, or the layers of an artifact. Its contents are known once it is
//! unpacked.

mod files;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use md5::{Digest, Md5};
use nereid_archives::{ArchiveLimits, Links};
use nereid_core::backend_api::{Error, Result};
use nereid_core::{LoadGuard, Progress, SourceFuture};
use nereid_hubs::{FILES, HubKind, IMAGE};
use nereid_repository::{Entry, Fetch, FetchedFolder, Object, Store};
use object_store::ObjectMeta;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use self::files::Files;
use crate::digests::hex;
use crate::download::Downloader;
use crate::errors::Failure;
use crate::listing::{is_model, stamp};
use crate::progress::LoggedFetch;
use crate::status::RepositoryStatus;
use crate::tasks::{FILES as FILES_AT_A_TIME, run};
use crate::trees;

/// The folder of an image that holds its models.
const MODELS: &str = "models";

/// The version of the layout of unpacked trees. Increment it when the layout changes.
const LAYOUT: u8 = 2;

/// The store of an address.
#[derive(Clone)]
pub(crate) struct Bundle {
    downloader: Downloader,
    runtime: Handle,
    /// The name of a model whose files are at the root.
    name: String,
    current: Arc<Mutex<Current>>,
}

/// The state of the store.
#[derive(Default)]
struct Current {
    unpacked: Option<Arc<UnpackedBundle>>,
    /// When and why the last fetch failed.
    failure: Option<(Instant, Error)>,
    /// The fetch in progress, and its progress.
    renewal: Option<(Renewal, Progress)>,
}

/// The contents, once they are fetched. Several callers may wait for them.
type Renewal = Shared<BoxFuture<'static, Result<Arc<UnpackedBundle>>>>;

/// The contents as of the last look.
struct UnpackedBundle {
    /// Changes whenever the contents do.
    stamps: Vec<String>,
    as_of: Instant,
    /// Whether a newer version is being fetched.
    is_assumed: bool,
    files: Arc<Files>,
    guard: LoadGuard,
}

/// How long to wait for a newer version.
enum Wait {
    /// Until it is fetched, with progress reports.
    ForIt(Progress),
    /// Briefly, if an older version is known: other repositories wait for the answer.
    Shortly,
}

impl Bundle {
    pub(crate) fn new(downloader: Downloader, runtime: Handle, name: String) -> Self {
        Self { downloader, runtime, name, current: Arc::default() }
    }

    pub(crate) fn status(&self) -> RepositoryStatus {
        let current = self.current();
        RepositoryStatus {
            location: self.location().to_owned(),
            is_reachable: current.failure.is_none(),
            fetched: self.downloader.bucket.fetched.load(Ordering::Relaxed),
            fetching: current
                .renewal
                .as_ref()
                .map(|(_, progress)| progress.bytes())
                .filter(|(_, total)| *total > 0),
        }
    }

    /// The contents, not older than `as_of`. If they cannot be fetched now, they are assumed unchanged.
    fn unpacked(&self, as_of: Instant, wait: Wait) -> SourceFuture<'_, Arc<UnpackedBundle>> {
        let this = self.clone();
        run(&self.runtime, async move { this.renewed(as_of, wait).await })
    }

    async fn renewed(&self, as_of: Instant, wait: Wait) -> Result<Arc<UnpackedBundle>> {
        let (renewal, fetching, known, limit) = {
            let mut current = self.current();
            let is_shortly = matches!(wait, Wait::Shortly);
            match &*current {
                Current { unpacked: Some(known), .. }
                    if known.as_of >= as_of && (is_shortly || !known.is_assumed) =>
                {
                    return Ok(Arc::clone(known));
                }
                // A fetch that takes minutes to fail is not retried for each question.
                Current { unpacked: None, failure: Some((began, error)), .. } if *began >= as_of => {
                    return Err(error.clone());
                }
                _ => {}
            }
            let patience = self.downloader.bucket.patience;
            let limit = if current.failure.is_none() { patience.listing } else { patience.listing_when_away };
            let known = current.unpacked.clone();
            let renewing = current.renewal.get_or_insert_with(|| self.renewal(known.clone()));
            (renewing.0.clone(), renewing.1.clone(), known, limit)
        };
        let known = match (wait, known) {
            (Wait::Shortly, Some(known)) => known,
            (Wait::Shortly, None) => return renewal.await,
            (Wait::ForIt(progress), _) => return mirrored(&fetching, &progress, renewal).await,
        };
        let asked = Instant::now();
        tokio::select! {
            biased;
            renewed = renewal => return renewed,
            // A newer version is being fetched. Until then, the older one is served.
            () = fetch_started(&fetching) => {}
            () = sleep(limit) => tracing::warn!("no answer from '{}', keeping what it had", self.location()),
        }
        let known = Arc::new(UnpackedBundle { is_assumed: true, ..known.known_since(asked) });
        let mut current = self.current();
        if current.renewal.is_some() {
            current.unpacked = Some(Arc::clone(&known));
        }
        Ok(known)
    }

    /// Fetches the newer version, however many callers wait for it.
    fn renewal(&self, known: Option<Arc<UnpackedBundle>>) -> (Renewal, Progress) {
        let progress = Progress::default();
        let shown = progress.clone();
        let (this, began) = (self.clone(), Instant::now());
        let task = self.runtime.spawn(async move {
            let newer = this.renew(known.as_deref(), began, &progress).await;
            let mut current = this.current();
            current.renewal = None;
            match (newer, known) {
                (Ok(newer), _) => {
                    let newer = Arc::new(newer);
                    (current.unpacked, current.failure) = (Some(Arc::clone(&newer)), None);
                    Ok(newer)
                }
                (Err(error), known) => {
                    current.failure = Some((began, error.clone()));
                    let known = known.ok_or_else(|| error.clone())?;
                    tracing::warn!("{error}; keeping what it had");
                    let known = Arc::new(known.known_since(began));
                    current.unpacked = Some(Arc::clone(&known));
                    Ok(known)
                }
            }
        });
        let outcome = async {
            task.await.unwrap_or_else(|error| {
                Err(Error::unavailable(format!("the fetch was interrupted: {error}")))
            })
        };
        (outcome.boxed().shared(), shown)
    }

    async fn renew(
        &self,
        known: Option<&UnpackedBundle>,
        began: Instant,
        progress: &Progress,
    ) -> Result<UnpackedBundle> {
        let objects = self.downloader.bucket.list("").await;
        let objects =
            objects.map_err(|failure| failure.error(&format!("cannot look at '{}'", self.location())))?;
        let describe = |object: &ObjectMeta| format!("{} {} {}", object.location, object.size, stamp(object));
        let stamps: Vec<_> = objects.iter().map(describe).collect();
        if let Some(known) = known.filter(|known| known.stamps == stamps) {
            return Ok(known.known_since(began));
        }
        let failed =
            |message: String| Error::unavailable(format!("cannot fetch '{}': {message}", self.location()));
        let cache = &self.downloader.cache;
        let (folder, guard) = cache.model_folder().map_err(|error| failed(error.to_string()))?;
        // Files that need no unpacking are used from the cache directly.
        let is_packed = objects.iter().any(|object| !object.location.as_ref().starts_with(FILES));
        let trees = cache.trees.clone().filter(|_| is_packed);
        let key = self.key(&stamps);
        let place = match trees {
            Some(trees) => Some(on_disk(move || Ok(trees.place(&key)?.checked())).await.map_err(failed)?),
            None => None,
        };
        let is_kept = place.as_ref().is_some_and(|(_, is_kept)| *is_kept);
        let parts = if is_kept { None } else { Some(self.fetch_parts(&objects, progress).await?) };
        let name = self.name.clone();
        let is_image = objects.iter().all(|object| object.location.as_ref().starts_with(IMAGE));
        let earlier = known.map(|known| Arc::clone(&known.files));
        let unpacking = on_disk(move || {
            // Below it, a folder named after a model can be made.
            let contents = folder.join(".contents");
            let files_at = |root| Files::new(root, earlier.as_deref()).map(Arc::new);
            let (files, _parts) = parts.unwrap_or_default();
            let Some((place, is_kept)) = place else {
                fs::create_dir(&contents)?;
                unpack(&files, &contents)?;
                return Ok((files_at(root(&contents, &folder, &name, is_image)?)?, None));
            };
            if !is_kept {
                place.make(|tree| {
                    unpack(&files, tree)?;
                    trees::protect(tree).map_err(|error| error.to_string())
                })?;
            }
            trees::link(place.tree(), &contents)?;
            Ok((files_at(root(&contents, &folder, &name, is_image)?)?, (!is_kept).then_some(place)))
        });
        let (files, unsealed) = unpacking.await.map_err(failed)?;
        if is_kept {
            tracing::info!("'{}' is unpacked in the cache", self.location());
        }
        // Unpacking blocks on the disk.
        unsealed.map(|place| spawn_blocking(move || place.seal()));
        Ok(UnpackedBundle { stamps, as_of: began, is_assumed: false, files, guard })
    }

    /// Fetches all objects, each with its name. They are removed with the guard, unless the cache keeps them.
    async fn fetch_parts(&self, objects: &[ObjectMeta], progress: &Progress) -> Result<Parts> {
        let failed =
            |message: String| Error::unavailable(format!("cannot fetch '{}': {message}", self.location()));
        let (folder, guard) =
            self.downloader.cache.model_folder().map_err(|error| failed(error.to_string()))?;
        let logged =
            LoggedFetch::new(self.location().to_owned(), progress, self.downloader.bucket.patience.report);
        let parts: Vec<_> = objects.iter().cloned().enumerate().collect();
        let part = |index: usize| folder.join(index.to_string());
        let fetching = stream::iter(parts).map(|(index, object)| {
            let part = part(index);
            async move { self.downloader.fetch(&object, &part, progress, None).await }
        });
        let fetching = fetching.buffer_unordered(FILES_AT_A_TIME).try_collect::<()>();
        logged.during(fetching).await.map_err(|Failure { message, .. }| failed(message))?;
        logged.finish(objects.iter().map(|object| object.size).sum(), objects.len());
        let named =
            objects.iter().enumerate().map(|(index, object)| (object.location.to_string(), part(index)));
        Ok((named.collect(), guard))
    }

    /// Identifies the contents: the digest, or for web servers the address and the ETag.
    fn key(&self, stamps: &[String]) -> String {
        let address = &self.downloader.bucket.address;
        let is_registry = address.hub().is_some_and(|hub| matches!(hub.kind, HubKind::Registry { .. }));
        let origin = if is_registry { "" } else { address.with_secrets() };
        hex(&Md5::digest(format!("{LAYOUT}\n{origin}\n{}", stamps.join("\n"))))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completes when the fetch knows how many bytes it is going to receive.
async fn fetch_started(fetching: &Progress) {
    let mut reports = fetching.reports();
    while fetching.bytes().1 == 0 {
        reports.next().await;
    }
}

/// Runs a future, and copies the progress of `fetching` to `progress`.
async fn mirrored<T>(fetching: &Progress, progress: &Progress, act: impl Future<Output = T>) -> T {
    let mut act = pin!(act);
    let mut reports = fetching.reports();
    let (mut fetched, mut total) = (0, 0);
    loop {
        let outcome = tokio::select! {
            biased;
            outcome = &mut act => Some(outcome),
            _ = reports.next() => None,
        };
        let now = fetching.bytes();
        progress.expect(now.1 - total);
        progress.advance(now.0 - fetched);
        (fetched, total) = now;
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
}

/// The fetched files, by the names of their objects.
type Parts = (Vec<(String, PathBuf)>, LoadGuard);

/// Runs file operations on a thread that may block.
async fn on_disk<T: Send + 'static>(
    act: impl FnOnce() -> std::result::Result<T, Problem> + Send + 'static,
) -> std::result::Result<T, String> {
    let done = spawn_blocking(act).await.map_err(|error| error.to_string())?;
    done.map_err(|Problem(message)| message)
}

/// Describes a problem with an archive, or with the disk.
struct Problem(String);

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self(error.message().to_owned())
    }
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self(message)
    }
}

impl UnpackedBundle {
    /// The same contents as of a later time, because no newer ones can be fetched.
    fn known_since(&self, as_of: Instant) -> Self {
        Self {
            stamps: self.stamps.clone(),
            as_of,
            is_assumed: false,
            files: Arc::clone(&self.files),
            guard: self.guard.clone(),
        }
    }
}

/// Assembles the fetched objects: unpacks archives in order, and places files at their paths.
fn unpack(parts: &[(String, PathBuf)], contents: &Path) -> std::result::Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let is_image = parts.iter().all(|(location, _)| location.starts_with(IMAGE));
    let is_only_files = parts.iter().all(|(location, _)| location.starts_with(FILES));
    for (location, part) in parts {
        if let Some(path) = location.strip_prefix(FILES) {
            let to = contents.join(path);
            fs::create_dir_all(to.parent().unwrap_or(contents)).map_err(failed)?;
            // A link would keep the cache's file in use for as long as the cache keeps the unpacked tree.
            let linked =
                if is_only_files { fs::hard_link(part, &to) } else { Err(io::ErrorKind::Unsupported.into()) };
            linked.or_else(|_| fs::copy(part, &to).map(drop)).map_err(failed)?;
            continue;
        }
        let only = is_image.then_some(Path::new(MODELS));
        let file = File::open(part).map_err(failed)?;
        nereid_archives::unpack(file, contents, ArchiveLimits::default(), Links::Inside, only)
            .map_err(|problem| format!("cannot unpack it: {problem}"))?;
    }
    Ok(())
}

/// The folder of models in an unpacked tree. If it has the files of one model, moves it to `folder`, under the model's name.
fn root(contents: &Path, folder: &Path, name: &str, is_image: bool) -> std::result::Result<PathBuf, String> {
    let root = if is_image { contents.join(MODELS) } else { contents.to_owned() };
    let names = fs::read_dir(&root).map_err(|_| "it has no folder 'models'".to_owned())?;
    let names: BTreeSet<_> =
        names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if !is_model(names.iter().map(String::as_str)) {
        return Ok(root);
    }
    fs::rename(&root, folder.join(name)).map_err(|error| error.to_string())?;
    Ok(folder.to_owned())
}

impl Store for Bundle {
    fn location(&self) -> &str {
        self.downloader.bucket.address.as_str()
    }

    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>> {
        Box::pin(
            async move { self.unpacked(as_of, Wait::Shortly).await?.files.store.list(folder, as_of).await },
        )
    }

    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>> {
        Box::pin(async move { self.unpacked(as_of, Wait::Shortly).await?.files.stat(folder, as_of).await })
    }

    fn prepare<'a>(&'a self, progress: &'a Progress, as_of: Instant) -> SourceFuture<'a, ()> {
        Box::pin(async move { self.unpacked(as_of, Wait::ForIt(progress.clone())).await.map(drop) })
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, FetchedFolder> {
        Box::pin(async move {
            let unpacked = self.unpacked(fetch.as_of, Wait::ForIt(fetch.progress.clone())).await?;
            let fetched = unpacked.files.store.fetch(fetch).await?;
            Ok(FetchedFolder { guard: unpacked.guard.clone(), ..fetched })
        })
    }

    fn read<'a>(&'a self, file: &'a str, as_of: Instant) -> SourceFuture<'a, Option<Vec<u8>>> {
        Box::pin(
            async move { self.unpacked(as_of, Wait::Shortly).await?.files.store.read(file, as_of).await },
        )
    }
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bundle").field("location", &self.location()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
