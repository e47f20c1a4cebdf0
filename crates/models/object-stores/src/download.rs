//! Downloads an object into the cache: in parallel ranges, each resumed where it broke.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use md5::{Digest, Md5};
use nereid_core::Progress;
use nereid_hubs::HubKind;
use nereid_repository::Route;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::address::Cloud;
use crate::bucket::Bucket;
use crate::cache::{Cache, CachedFile, Partial};
use crate::digests::{Algorithm, ExpectedDigest, bare, hex};
use crate::errors::{Failure, FailureKind};
use crate::hashing::{FileDigests, Hashing};
use crate::listing::stamp;
use crate::offered::OfferedDigest;
use crate::progress::REPORTED;
use crate::routed::{ObjectRoute, Range, RoutedError};

/// The size of a range in bytes.
const RANGE: u64 = 8 << 20;

/// The interval between checks of a file that another server fetches.
const BUSY: Duration = Duration::from_millis(50);

/// The shared state of downloads.
#[derive(Clone)]
pub(crate) struct Downloader {
    pub bucket: Arc<Bucket>,
    pub cache: Arc<Cache>,
    /// Limits the ranges of all downloads in progress.
    pub connections: Arc<Semaphore>,
    pub etags: Arc<Etags>,
}

/// Whether the ETags of a bucket are digests, as far as known.
#[derive(Debug, Default)]
pub(crate) struct Etags(AtomicU8);

/// A file's MD5 equalled its ETag.
const DIGESTS: u8 = 1;
/// They are not MD5s of files, although they look like it: ETags of encrypted objects.
const NO_DIGESTS: u8 = 2;

impl Downloader {
    /// Places the contents of an object at a path.
    pub(crate) async fn fetch(
        &self,
        object: &ObjectMeta,
        to: &Path,
        progress: &Progress,
        route: Option<&Arc<dyn Route>>,
    ) -> Result<(), Failure> {
        let mut route = route.map(|route| ObjectRoute::new(Arc::clone(route)));
        let (key, size) = (self.key(object), object.size);
        let mut before = None;
        loop {
            match self.cache.find(&key, size).map_err(|error| cannot_write(&error))? {
                CachedFile::Complete(path, unstamped) => {
                    unstamped.map(|stamping| spawn_blocking(|| stamping.run()));
                    if place(&path, to).map_err(|error| cannot_write(&error))? {
                        return Ok(());
                    }
                }
                CachedFile::Busy => sleep(BUSY).await,
                CachedFile::Missing(partial) => {
                    let hashed = match self.fill(object, &partial, progress, route.as_ref()).await {
                        Ok(hashed) => hashed,
                        Err(failure) => {
                            if failure.kind == FailureKind::Changed {
                                self.cache.discard(partial);
                            }
                            return Err(failure);
                        }
                    };
                    if let Some(wrong) =
                        hashed.filter(|hashed| !self.is_right(object, hashed, before.as_ref()))
                    {
                        self.cache.discard(partial);
                        // The route may have delivered damaged data while the bucket has the right data.
                        if let Some(routed) = route.as_mut().filter(|routed| routed.may_fall_back()) {
                            routed.give_up();
                        }
                        if before.is_some() {
                            let FileDigests {
                                expected: ExpectedDigest { algorithm, hex: expected, .. },
                                hex,
                            } = wrong;
                            let message = format!(
                                "what arrives of '{}' is damaged: its {algorithm} is {hex}, and the store gives {expected}",
                                object.location
                            );
                            return Err(Failure::new(FailureKind::Unavailable, message));
                        }
                        before = Some(wrong);
                        continue;
                    }
                    let (path, stamping) =
                        self.cache.complete(partial).map_err(|error| cannot_write(&error))?;
                    let placed = place(&path, to).map_err(|error| cannot_write(&error));
                    spawn_blocking(|| stamping.run());
                    if placed? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Fetches the missing ranges. Returns the digest of the whole file, if its expected value is known.
    async fn fill(
        &self,
        object: &ObjectMeta,
        partial: &Partial,
        progress: &Progress,
        route: Option<&ObjectRoute>,
    ) -> Result<Option<FileDigests>, Failure> {
        let count = usize::try_from(object.size.div_ceil(RANGE)).unwrap_or(usize::MAX);
        let mut done = read_record(&partial.record, count).map_err(|error| cannot_write(&error))?;
        progress.expect(object.size);
        let there = (0..count).filter(|index| done[*index]).map(|index| length(object, index)).sum();
        progress.advance(there);
        if there > 0 {
            tracing::info!(
                "'{}': taking up a fetch that has {there} of {} bytes",
                object.location,
                object.size
            );
        }
        // The response to the first range shows at the latest whether the store sends a digest.
        let offered = Arc::new(OnceLock::new());
        let expected = self.known_digest(object, count).await?;
        let start = |expected| Hashing::start(expected, &partial.file, object.size);
        let mut hashing = expected.map(start);
        let mut ranges = JoinSet::new();
        let mut missing = (0..count).filter(|index| !done[*index]).collect::<Vec<_>>().into_iter();
        loop {
            if hashing.is_none() && (done.contains(&true) || done.is_empty()) {
                let expected = offered.get().cloned().or_else(|| self.expected_digest(object));
                hashing = expected.map(start);
            }
            if let Some(hashing) = &mut hashing {
                hashing.report(&done, RANGE);
            }
            // Wait until a connection is free for the next range, or a range ends.
            let is_missing = !missing.as_slice().is_empty();
            tokio::select! {
                Ok(permit) = Arc::clone(&self.connections).acquire_owned(), if is_missing => {
                    let Some(index) = missing.next() else { continue };
                    let (this, object) = (self.clone(), object.clone());
                    let (file, progress, route) =
                        (Arc::clone(&partial.file), progress.clone(), route.cloned());
                    let offered = Arc::clone(&offered);
                    ranges.spawn(async move {
                        let _permit = permit;
                        this.range(&object, index, &file, &progress, route, &offered).await.map(|()| index)
                    });
                }
                Some(ended) = ranges.join_next() => {
                    let index = ended.map_err(|error| {
                        Failure::new(FailureKind::Unavailable, format!("fetching was interrupted: {error}"))
                    })??;
                    done[index] = true;
                    partial.record.write_all_at(&[1], index as u64).map_err(|error| cannot_write(&error))?;
                }
                else => break,
            }
        }
        match hashing {
            Some(hashing) => Ok(Some(hashing.finish().await.map_err(|error| cannot_write(&error))?)),
            None => Ok(None),
        }
    }

    /// The expected digest of a file of this many ranges, if it is known before the download.
    async fn known_digest(
        &self,
        object: &ObjectMeta,
        ranges: usize,
    ) -> Result<Option<ExpectedDigest>, Failure> {
        let by_etag = self.expected_digest(object).filter(|expected| expected.is_certain);
        // S3 sends the digest of an object only with the whole object, not with ranges.
        let is_asked = ranges > 1 && matches!(self.bucket.address.cloud, Cloud::S3 { .. });
        if by_etag.is_some() || !is_asked {
            return Ok(by_etag);
        }
        let options = GetOptions { head: true, if_match: if_match(object), ..GetOptions::default() };
        let asked = self.bucket.attempt(|store| {
            let (location, options) = (object.location.clone(), options.clone());
            async move { store.get_opts(&location, options).await }
        });
        match asked.await {
            Ok(answer) => {
                Ok(OfferedDigest::in_extensions(&answer.extensions).map(|OfferedDigest(expected)| expected))
            }
            Err(failure) if matches!(failure.kind, FailureKind::Changed | FailureKind::NotFound) => {
                Err(changed(object))
            }
            Err(failure) => {
                tracing::debug!("'{}' gives no digest: {}", object.location, failure.message);
                Ok(None)
            }
        }
    }

    /// Fetches one range. Resumes it as long as data arrives.
    async fn range(
        &self,
        object: &ObjectMeta,
        index: usize,
        file: &File,
        progress: &Progress,
        mut route: Option<ObjectRoute>,
        offered: &OnceLock<ExpectedDigest>,
    ) -> Result<(), Failure> {
        let counting = route.clone();
        route = route.filter(ObjectRoute::is_used);
        let mut from = index as u64 * RANGE;
        let end = from + length(object, index);
        let (mut attempts, mut is_renewed) = (0, false);
        while from < end {
            let connection = self.bucket.connection().await?;
            let before = from;
            if let Some(routed) = &route {
                let range = Range { object, from: &mut from, end, file, progress };
                match routed.read(range, &connection.locator).await {
                    Ok(()) => continue,
                    Err(RoutedError::Write(error)) => return Err(cannot_write(&error)),
                    Err(RoutedError::Route(_)) if routed.may_fall_back() => route = None,
                    Err(RoutedError::Route(_)) if from > before => {}
                    Err(RoutedError::Route(message)) => {
                        if attempts + 1 >= self.bucket.patience.attempts {
                            return Err(Failure::new(FailureKind::Unavailable, message));
                        }
                        sleep(self.bucket.patience.pause(attempts)).await;
                        attempts += 1;
                    }
                }
                continue;
            }
            let read = read(&*connection.store, object, &mut from, end, file, progress, offered).await;
            if let Some(routed) = &counting {
                routed.count_from_store(from - before);
            }
            self.bucket.fetched.fetch_add(from - before, Ordering::Relaxed);
            let failure = match read {
                Ok(()) => continue,
                Err(ReadError::Store(error)) => Failure::of(&error, &connection.secrets),
                Err(ReadError::Changed) => return Err(changed(object)),
                Err(ReadError::Write(error)) => return Err(cannot_write(&error)),
            };
            if from > before {
                (attempts, is_renewed) = (0, false);
            }
            match failure.kind {
                FailureKind::Denied if !is_renewed => {
                    is_renewed = true;
                    self.bucket.forget(&connection).await;
                }
                FailureKind::Unavailable if attempts + 1 < self.bucket.patience.attempts => {
                    tracing::debug!("'{}' broke at byte {from}: {}", object.location, failure.message);
                    sleep(self.bucket.patience.pause(attempts)).await;
                    attempts += 1;
                }
                FailureKind::Changed | FailureKind::NotFound => return Err(changed(object)),
                _ => return Err(failure),
            }
        }
        Ok(())
    }

    /// Identifies the contents of an object. In buckets whose ETags derive from the contents, equal ETags mean equal
    /// contents.
    fn key(&self, object: &ObjectMeta) -> String {
        let mut hasher = Md5::new();
        let bucket = &self.bucket.address;
        if let Some(ExpectedDigest { algorithm: Algorithm::Sha256, hex, .. }) = self.expected_digest(object) {
            // A digest identifies the contents in any source.
            return hex;
        }
        // Unchanged files are shared between revisions of a repository.
        let cloud = if bucket.hub().is_some() { "a hub".to_owned() } else { format!("{:?}", bucket.cloud) };
        hasher.update(format!("{cloud}\n{}\n{}\n", bucket.bucket, object.size));
        match &object.e_tag {
            Some(etag) if bucket.cloud.has_etags_of_contents() => hasher.update(etag),
            Some(etag) => hasher.update(format!("{}\n{etag}", object.location)),
            None => hasher.update(format!("{}\n{}", object.location, stamp(object))),
        }
        hex(&hasher.finalize())
    }

    /// The expected digest, if the file's ETag contains one.
    fn expected_digest(&self, object: &ObjectMeta) -> Option<ExpectedDigest> {
        let expected = ExpectedDigest::of_etag(bare(object.e_tag.as_deref()?))?;
        let may_be = self.bucket.address.cloud.has_etags_of_contents()
            && self.etags.0.load(Ordering::Relaxed) != NO_DIGESTS;
        (may_be || expected.is_certain).then_some(expected)
    }

    /// Whether a file is undamaged. A file that arrives twice with the same contents is accepted, unless its digest is
    /// certain: then its ETag is not a digest.
    fn is_right(&self, object: &ObjectMeta, hashed: &FileDigests, before: Option<&FileDigests>) -> bool {
        let FileDigests { expected: ExpectedDigest { algorithm, hex: expected, is_certain }, hex } = hashed;
        if hex == expected {
            if !is_certain {
                self.etags.0.store(DIGESTS, Ordering::Relaxed);
            }
            return true;
        }
        let is_same = before == Some(hashed) && self.etags.0.load(Ordering::Relaxed) != DIGESTS;
        if is_same && !is_certain {
            tracing::debug!("the ETags of '{}' are not digests", self.bucket.address);
            self.etags.0.store(NO_DIGESTS, Ordering::Relaxed);
            return true;
        }
        let location = &object.location;
        tracing::warn!(
            "the {algorithm} of what arrived of '{location}' is {hex}, and the store gives {expected}"
        );
        false
    }
}

impl Cloud {
    /// Whether objects with equal contents have equal ETags.
    fn has_etags_of_contents(&self) -> bool {
        match self {
            Self::S3 { .. } => true,
            // Google's derive from uploads, and Azure's from times.
            Self::Google | Self::Azure { .. } => false,
            Self::Hub(hub) => !matches!(hub.kind, HubKind::Web(_)),
        }
    }
}

/// Why a range was not read completely.
enum ReadError {
    Store(object_store::Error),
    Changed,
    Write(io::Error),
}

/// Reads from `from` on, and advances it as data is written.
async fn read(
    store: &dyn ObjectStore,
    object: &ObjectMeta,
    from: &mut u64,
    end: u64,
    file: &File,
    progress: &Progress,
    offered: &OnceLock<ExpectedDigest>,
) -> Result<(), ReadError> {
    // Small files are read without a range: some servers do not support ranges.
    let range = (*from > 0 || end < object.size).then_some(GetRange::Bounded(*from..end));
    let version = object.version.clone();
    let options = GetOptions { range, if_match: if_match(object), version, ..GetOptions::default() };
    let answer = store.get_opts(&object.location, options).await.map_err(ReadError::Store)?;
    let etags = answer.meta.e_tag.as_deref().zip(object.e_tag.as_deref());
    let is_same =
        answer.meta.size == object.size && etags.is_none_or(|(one, other)| bare(one) == bare(other));
    if !is_same {
        return Err(ReadError::Changed);
    }
    if let Some(OfferedDigest(expected)) = OfferedDigest::in_extensions(&answer.extensions) {
        offered.get_or_init(|| expected);
    }
    let mut body = answer.into_stream();
    let mut unreported = 0;
    let outcome = loop {
        match body.next().await {
            Some(Ok(bytes)) => {
                let left = usize::try_from(end - *from).unwrap_or(usize::MAX);
                let bytes = &bytes[..bytes.len().min(left)];
                if let Err(error) = file.write_all_at(bytes, *from) {
                    break Err(ReadError::Write(error));
                }
                *from += bytes.len() as u64;
                unreported += bytes.len() as u64;
                if unreported >= REPORTED {
                    progress.advance(std::mem::take(&mut unreported));
                }
            }
            Some(Err(error)) => break Err(ReadError::Store(error)),
            None if *from < end => {
                let source = "the answer ended too early".into();
                break Err(ReadError::Store(object_store::Error::Generic { store: "cloud", source }));
            }
            None => break Ok(()),
        }
    };
    if unreported > 0 {
        progress.advance(unreported);
    }
    outcome
}

/// Makes a store send an object only if it is unchanged since it was listed.
fn if_match(object: &ObjectMeta) -> Option<String> {
    object.e_tag.as_deref().map(|etag| format!("\"{}\"", bare(etag)))
}

/// The length of a range.
fn length(object: &ObjectMeta, index: usize) -> u64 {
    (object.size - index as u64 * RANGE).min(RANGE)
}

/// The record of ranges received.
fn read_record(record: &File, count: usize) -> io::Result<Vec<bool>> {
    let mut bytes = vec![0; count];
    let length = record.metadata()?.len();
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(count);
    record.read_exact_at(&mut bytes[..length], 0)?;
    Ok(bytes.into_iter().map(|byte| byte == 1).collect())
}

/// Links a file of the cache into a model's folder. Returns `false` if the cache has just evicted it.
fn place(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !from.exists() => Ok(false),
        // Some file systems have no hard links, and all limit their number.
        Err(_) => fs::copy(from, to).map(|_| true),
    }
}

fn changed(object: &ObjectMeta) -> Failure {
    Failure::new(FailureKind::Changed, format!("'{}' changed while it was being fetched", object.location))
}

fn cannot_write(error: &io::Error) -> Failure {
    Failure::new(FailureKind::Refused, format!("cannot write to the cache: {error}"))
}
