//! A store that arrives as a whole: an archive, or the layers of an artifact. What is in it is known once it is unpacked.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nereid_archives::{ArchiveLimits, Links};
use nereid_core::backend_api::{Error, Result};
use nereid_core::{LoadGuard, Progress, SourceFuture};
use nereid_repository::{Entry, Fetch, Fetched, LocalStore, Object, Store};
use object_store::ObjectMeta;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::clouds::RepositoryStatus;
use crate::download::Downloader;
use crate::errors::Failure;
use crate::hubs::registry::{FILES, IMAGE};
use crate::listing::stamp;
use crate::store::run;

/// The folder of an image that holds its models.
const MODELS: &str = "models";

/// The store of an address.
#[derive(Clone)]
pub(crate) struct Bundle {
    downloader: Downloader,
    runtime: Handle,
    /// What a model is called whose files are not in a folder of it.
    name: String,
    current: Arc<Mutex<Option<Arc<Unpacked>>>>,
    is_away: Arc<AtomicBool>,
}

/// What was in it when it was looked at last.
struct Unpacked {
    /// What differs when the contents do.
    stamps: Vec<String>,
    as_of: Instant,
    store: LocalStore,
    guard: LoadGuard,
}

impl Bundle {
    pub(crate) fn new(downloader: Downloader, runtime: Handle, name: String) -> Self {
        Self { downloader, runtime, name, current: Arc::default(), is_away: Arc::default() }
    }

    pub(crate) fn status(&self) -> RepositoryStatus {
        RepositoryStatus {
            location: self.location().to_owned(),
            is_reachable: !self.is_away.load(Ordering::Relaxed),
            fetched: self.downloader.bucket.fetched.load(Ordering::Relaxed),
        }
    }

    /// What is in it, not older than `as_of`. What cannot be had now is taken to be as it was.
    async fn unpacked(&self, as_of: Instant) -> Result<Arc<Unpacked>> {
        let mut current = self.current.lock().await;
        if let Some(unpacked) = current.as_ref().filter(|unpacked| unpacked.as_of >= as_of) {
            return Ok(Arc::clone(unpacked));
        }
        let began = Instant::now();
        let newer = self.renew(current.as_deref(), began).await;
        self.is_away.store(newer.is_err(), Ordering::Relaxed);
        let unpacked = match (newer, &*current) {
            (Ok(newer), _) => newer,
            (Err(error), Some(known)) => {
                tracing::warn!("{error}; keeping what it had");
                known.known_since(began)
            }
            (Err(error), None) => return Err(error),
        };
        Ok(Arc::clone(current.insert(Arc::new(unpacked))))
    }

    async fn renew(&self, known: Option<&Unpacked>, began: Instant) -> Result<Unpacked> {
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
        let of_io = |error: io::Error| failed(error.to_string());
        // The archives go when they are unpacked, unless the cache keeps them.
        let (parts, _parts) = self.downloader.cache.model_folder().map_err(of_io)?;
        let (folder, guard) = self.downloader.cache.model_folder().map_err(of_io)?;
        let mut files = Vec::new();
        let progress = Progress::default();
        for (index, object) in objects.iter().enumerate() {
            let part = parts.join(index.to_string());
            self.downloader
                .fetch(object, &part, &progress, None)
                .await
                .map_err(|Failure { message, .. }| failed(message))?;
            files.push((object.location.to_string(), part));
        }
        let name = self.name.clone();
        let unpacking = spawn_blocking(move || unpack(&files, &folder, &name));
        let unpacked = unpacking.await.map_err(|error| failed(error.to_string()))?;
        let root = unpacked.map_err(failed)?;
        tracing::info!("fetched and unpacked '{}', {} bytes", self.location(), progress.bytes().0);
        Ok(Unpacked { stamps, as_of: began, store: LocalStore::new(root), guard })
    }
}

impl Unpacked {
    /// The same, where nothing newer can be known.
    fn known_since(&self, as_of: Instant) -> Self {
        Self { stamps: self.stamps.clone(), as_of, store: self.store.clone(), guard: self.guard.clone() }
    }
}

/// Puts together what arrived: archives in their order, and files at their paths. Gives the folder of the models.
fn unpack(parts: &[(String, PathBuf)], folder: &Path, name: &str) -> std::result::Result<PathBuf, String> {
    // Beside it, a name for a model can be made.
    let contents = folder.join(".contents");
    let failed = |error: io::Error| error.to_string();
    fs::create_dir(&contents).map_err(failed)?;
    let is_image = parts.iter().all(|(location, _)| location.starts_with(IMAGE));
    for (location, part) in parts {
        if let Some(path) = location.strip_prefix(FILES) {
            let to = contents.join(path);
            fs::create_dir_all(to.parent().unwrap_or(&contents)).map_err(failed)?;
            fs::hard_link(part, &to).or_else(|_| fs::copy(part, &to).map(drop)).map_err(failed)?;
            continue;
        }
        let only = is_image.then_some(Path::new(MODELS));
        let file = File::open(part).map_err(failed)?;
        nereid_archives::unpack(file, &contents, ArchiveLimits::default(), Links::Inside, only)
            .map_err(|problem| format!("cannot unpack it: {problem}"))?;
    }
    let root = if is_image { contents.join(MODELS) } else { contents };
    let names = fs::read_dir(&root).map_err(|_| "it has no folder 'models'".to_owned())?;
    let names: BTreeSet<_> =
        names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if !is_model(names.iter().map(String::as_str)) {
        return Ok(root);
    }
    fs::rename(&root, folder.join(name)).map_err(failed)?;
    Ok(folder.to_owned())
}

/// Whether a folder with these names is that of a model, and not of several.
pub(crate) fn is_model<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| name == "config.pbtxt" || nereid_repository::version_number(name).is_some())
}

impl Store for Bundle {
    fn location(&self) -> &str {
        self.downloader.bucket.address.as_str()
    }

    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>> {
        let (this, folder) = (self.clone(), folder.to_owned());
        run(&self.runtime, async move { this.unpacked(as_of).await?.store.list(&folder, as_of).await })
    }

    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>> {
        let (this, folder) = (self.clone(), folder.to_owned());
        run(&self.runtime, async move { this.unpacked(as_of).await?.store.stat(&folder, as_of).await })
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, Fetched> {
        Box::pin(async move {
            let (this, as_of) = (self.clone(), fetch.as_of);
            let unpacked = run(&self.runtime, async move { this.unpacked(as_of).await }).await?;
            let fetched = unpacked.store.fetch(fetch).await?;
            Ok(Fetched { guard: unpacked.guard.clone(), ..fetched })
        })
    }

    fn read<'a>(&'a self, file: &'a str, as_of: Instant) -> SourceFuture<'a, Option<Vec<u8>>> {
        let (this, file) = (self.clone(), file.to_owned());
        run(&self.runtime, async move { this.unpacked(as_of).await?.store.read(&file, as_of).await })
    }
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bundle").field("location", &self.location()).finish_non_exhaustive()
    }
}
