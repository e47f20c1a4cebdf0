//! Unpacks tar files.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::Mode;
use tar::{Archive, Entry, EntryType};

use crate::root::{Root, check_links};
use crate::{ArchiveLimits, Links};

/// Largest entry that only describes the next one, such as a long name, in bytes. The reader keeps it in memory.
const DESCRIPTION_LIMIT: u64 = 1 << 20;

/// The interval between progress reports.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// Reads a tar file completely before anything is written: checks the kinds of its entries, and returns the sum of
/// their sizes.
///
/// # Errors
/// The file is not a tar file, exceeds the limits, or has a refused entry.
pub fn inspect_tar(reader: impl Read, limits: ArchiveLimits, only: Option<&Path>) -> Result<u64, String> {
    let mut archive = Archive::new(reader);
    let (mut bytes, mut entries) = (0_u64, 0_u64);
    for entry in archive.entries().map_err(of_format)?.raw(true) {
        let entry = entry.map_err(of_format)?;
        let kind = entry.header().entry_type();
        let name = || String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions()
            || kind.is_gnu_longname()
            || kind.is_gnu_longlink()
        {
            if entry.size() > DESCRIPTION_LIMIT {
                return Err(format!("the description of an entry has {} bytes", entry.size()));
            }
        } else if !is_kept(kind) && is_below(&entry.path().map_err(of_format)?, only) {
            return Err(format!("'{}' is not a file, folder or link", name()));
        }
        entries += 1;
        bytes = bytes.saturating_add(entry.size());
        if bytes > limits.bytes {
            return Err(format!("it has more than {} bytes", limits.bytes));
        }
        if entries > limits.entries {
            return Err(format!("it has more than {} entries", limits.entries));
        }
    }
    if entries == 0 { Err("it is empty".to_owned()) } else { Ok(bytes) }
}

fn is_kept(kind: EntryType) -> bool {
    kind.is_file() || kind.is_contiguous() || kind.is_dir() || kind.is_symlink() || kind.is_hard_link()
}

/// Unpacks a tar file into a folder, and reports the progress in bytes. Existing files are replaced.
///
/// # Errors
/// An entry is refused or cannot be written. The folder may then contain a part of the archive.
pub fn unpack_tar(
    reader: impl Read,
    folder: &Path,
    links: Links,
    only: Option<&Path>,
    progress: &dyn Fn(u64),
) -> Result<(), String> {
    let root = Root::open(folder)?;
    let mut archive = Archive::new(reader);
    let mut done = 0;
    let mut reported = Instant::now();
    for entry in archive.entries().map_err(of_format)? {
        let mut entry = entry.map_err(of_format)?;
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            continue;
        }
        let path = entry.path().map_err(of_format)?.into_owned();
        if !is_below(&path, only) {
            continue;
        }
        if !is_kept(kind) {
            return Err(format!("'{}' is not a file, folder or link", path.display()));
        }
        done += entry.size();
        if kind.is_dir() {
            // Folders get the user's default mode, so that they can be filled and removed.
            root.make_folder(&path)?;
        } else if kind.is_symlink() {
            root.make_link(&path, &target(&entry)?)?;
        } else if kind.is_hard_link() {
            root.make_hard_link(&path, &target(&entry)?)?;
        } else {
            write_file(&root, &path, &mut entry)?;
        }
        if reported.elapsed() >= INTERVAL {
            progress(done);
            reported = Instant::now();
        }
    }
    check_links(folder, links)
}

/// The target of a link.
fn target<R: Read>(entry: &Entry<'_, R>) -> Result<PathBuf, String> {
    Ok(entry.link_name().map_err(of_format)?.unwrap_or_default().into_owned())
}

/// Writes a file, with its permissions but for those that change the user, and with its time.
fn write_file<R: Read>(root: &Root, path: &Path, entry: &mut Entry<'_, R>) -> Result<(), String> {
    let mode = Mode::from_raw_mode(entry.header().mode().map_err(of_format)? & 0o777);
    let modified = entry.header().mtime().map_err(of_format)?;
    let mut file = root.make_file(path, mode)?;
    let failed = |error: io::Error| format!("'{}': {error}", path.display());
    io::copy(entry, &mut file).map_err(failed)?;
    // Compiled Python files contain the times of their sources.
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(modified)).map_err(failed)
}

/// Whether an entry is below a folder of the archive, in any spelling of its path.
fn is_below(path: &Path, folder: Option<&Path>) -> bool {
    let Some(folder) = folder else { return true };
    let is_named = |part: &Component<'_>| !matches!(part, Component::CurDir | Component::RootDir);
    let mut parts = path.components().filter(is_named);
    folder.components().all(|part| parts.next() == Some(part))
}

/// The library's error message names its operation before the cause.
fn of_format(error: io::Error) -> String {
    match error.get_ref().and_then(std::error::Error::source) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
