//! Downloads the models of a remote repository into a folder.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nereid_backend_api::block_on;
use nereid_core::Progress;
use nereid_object_stores::{Address, CacheOptions, CloudOptions, Clouds, redacted};
use nereid_repository::Fetch;

/// The folder for the parts of a download until its models are complete. It stays after an interruption, so that the next attempt
/// resumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts(PathBuf);

impl Parts {
    /// In the folder that the models are downloaded into.
    pub fn within(folder: &Path) -> Self {
        Self(folder.join(".nereid-pull"))
    }

    /// In a repository, for the models of one address.
    pub fn of(address: &str, repository: &Path) -> Self {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Self(repository.join(format!(".nereid-pull-{:016x}", hasher.finish())))
    }

    /// Removes the folder unless the next attempt can use something of it.
    fn discard_if_useless(&self) {
        let mut files = fs::read_dir(self.0.join(FILES)).into_iter().flatten().flatten();
        if !files.any(|entry| entry.metadata().is_ok_and(|metadata| metadata.len() > 0)) {
            // What remains is removed by the next attempt.
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// The folder of a cache's files.
const FILES: &str = "files";

/// The interval between progress reports.
const INTERVAL: Duration = Duration::from_millis(200);

/// Whether an argument is the address of a remote repository.
pub fn is_address(location: &Path) -> bool {
    location.to_str().is_some_and(|location| Address::parse(location).is_some())
}

/// The progress of a model.
#[derive(Clone, Copy, Debug)]
pub struct PullProgress<'a> {
    /// The model.
    pub model: &'a str,
    /// Bytes received.
    pub fetched: u64,
    /// Total bytes, as far as known.
    pub total: u64,
    /// The time since the download began.
    pub elapsed: Duration,
}

/// Downloads all models of a repository into a folder, with progress reports. Returns their names.
///
/// # Errors
/// The address is invalid or cannot be read, or the folder already has a model of the same name.
pub fn pull(
    address: &str,
    folder: &Path,
    parts: &Parts,
    options: CloudOptions,
    report: &(dyn Fn(PullProgress<'_>) + Sync),
) -> Result<Vec<String>, String> {
    pull_through(address, folder, &parts.0, options, report).inspect_err(|_| parts.discard_if_useless())
}

fn pull_through(
    address: &str,
    folder: &Path,
    parts: &Path,
    options: CloudOptions,
    report: &(dyn Fn(PullProgress<'_>) + Sync),
) -> Result<Vec<String>, String> {
    let (parsed, address) = (Address::parse(address), &*redacted(address));
    let parsed = parsed.ok_or_else(|| {
        format!("'{address}' is not an address (s3://, gs://, as://, hf://, oci://, https://)")
    })?;
    let cannot_write = |error: io::Error| format!("cannot write to '{}': {error}", folder.display());
    fs::create_dir_all(parts).map_err(cannot_write)?;
    let cache = CacheOptions { directory: Some(parts.to_owned()), byte_size: None, is_temporary: true };
    let clouds = Clouds::new(CloudOptions { cache, ..options })?;
    let store = clouds.open(parsed.map_err(|error| error.to_string())?)?;
    let as_of = Instant::now();
    // An archive is fetched as a whole before its contents are known.
    let progress = Progress::default();
    let prepared = reporting(address, &progress, report, || block_on(store.prepare(&progress, as_of)));
    prepared.map_err(|error| error.message().to_owned())?;
    let entries = block_on(store.list("", as_of)).map_err(|error| error.message().to_owned())?;
    let is_model = |name: &String| !name.starts_with('.');
    let mut models: Vec<_> = entries
        .into_iter()
        .filter(|entry| entry.is_folder)
        .map(|entry| entry.name)
        .filter(is_model)
        .collect();
    models.sort();
    if models.is_empty() {
        return Err(format!("'{address}' has no models"));
    }
    if let Some(model) = models.iter().find(|model| folder.join(model).exists()) {
        return Err(format!("'{}' is there already: remove it first", folder.join(model).display()));
    }
    for model in &models {
        let progress = Progress::default();
        let fetch = Fetch { folder: model, is_needed: &|_| true, progress: &progress, as_of, route: None };
        let fetched = reporting(model, &progress, report, || block_on(store.fetch(fetch)));
        let fetched = fetched.map_err(|error| error.message().to_owned())?;
        let target = folder.join(model);
        fs::rename(&fetched.path, &target).map_err(cannot_write)?;
        make_writable(&target).map_err(cannot_write)?;
    }
    drop(store);
    clouds.close();
    fs::remove_dir_all(parts).map_err(cannot_write)?;
    Ok(models)
}

/// Runs a function while a thread reports progress.
fn reporting<T>(
    model: &str,
    progress: &Progress,
    report: &(dyn Fn(PullProgress<'_>) + Sync),
    act: impl FnOnce() -> T,
) -> T {
    let began = Instant::now();
    let now = || {
        let (fetched, total) = progress.bytes();
        PullProgress { model, fetched, total, elapsed: began.elapsed() }
    };
    std::thread::scope(|scope| {
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(INTERVAL) {
                report(now());
            }
            report(now());
        });
        let outcome = act();
        drop(ends);
        outcome
    })
}

/// Files of the cache are shared, and so read-only. The downloaded ones are not.
fn make_writable(folder: &Path) -> io::Result<()> {
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o644))?;
            }
        }
    }
    Ok(())
}
