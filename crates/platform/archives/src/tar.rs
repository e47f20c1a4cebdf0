//! Unpacks tar files.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use tar::{Archive, EntryType};

use crate::{ArchiveLimits, Links};

/// Largest entry that only describes the next one, such as a long name, in bytes. The reader keeps it in memory.
const DESCRIPTION_LIMIT: u64 = 1 << 20;

/// The interval between progress reports.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// Reads a tar file completely before anything is written: checks the kinds of its entries, and returns the sum of
/// their sizes.
///
/// # Errors
/// It is not a tar file, exceeds the limits, or has a refused entry.
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

/// Unpacks a tar file into an empty folder, and reports the progress in bytes.
///
/// # Errors
/// It has a refused entry, or cannot be written. The folder may then contain a part of it.
pub fn unpack_tar(
    reader: impl Read,
    folder: &Path,
    links: Links,
    only: Option<&Path>,
    progress: &dyn Fn(u64),
) -> Result<(), String> {
    // The library compares paths with this one.
    let folder = folder.canonicalize().map_err(|error| error.to_string())?;
    let mut archive = Archive::new(reader);
    archive.set_preserve_permissions(false);
    archive.set_preserve_ownerships(false);
    // Compiled Python files contain the times of their sources.
    archive.set_preserve_mtime(true);
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
        if depth(&path).is_none() {
            return Err(format!("'{}' leads out of the folder", path.display()));
        }
        if kind.is_symlink() || kind.is_hard_link() {
            let target = entry.link_name().map_err(of_format)?.unwrap_or_default().into_owned();
            // The target of a hard link is a name in the archive.
            let from = if kind.is_symlink() { path.parent().unwrap_or(Path::new("")) } else { Path::new("") };
            let is_absolute = kind.is_symlink() && target.is_absolute() && links == Links::Absolute;
            if !is_absolute && depth(&from.join(&target)).is_none() {
                return Err(format!(
                    "'{}' is a link to '{}', which leads out of the folder",
                    path.display(),
                    target.display()
                ));
            }
        }
        done += entry.size();
        if kind.is_dir() {
            // Folders get the user's default mode, so that they can be filled and removed.
            make_folder(&folder, &path)?;
        } else if !entry.unpack_in(&folder).map_err(of_format)? {
            return Err(format!("'{}' leads out of the folder", path.display()));
        }
        if reported.elapsed() >= INTERVAL {
            progress(done);
            reported = Instant::now();
        }
    }
    Ok(())
}

/// Whether an entry is below a folder of the archive, in any spelling of its path.
fn is_below(path: &Path, folder: Option<&Path>) -> bool {
    let Some(folder) = folder else { return true };
    let is_named = |part: &Component<'_>| !matches!(part, Component::CurDir | Component::RootDir);
    let mut parts = path.components().filter(is_named);
    folder.components().all(|part| parts.next() == Some(part))
}

/// The depth of a relative path; `None` for an absolute path, and for one that leads out.
pub(crate) fn depth(path: &Path) -> Option<usize> {
    let mut depth = 0_usize;
    for component in path.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth = depth.checked_sub(1)?,
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(depth)
}

pub(crate) fn make_folder(root: &Path, path: &Path) -> Result<(), String> {
    let mut folder = root.to_owned();
    for component in path.components().filter(|component| matches!(component, Component::Normal(_))) {
        folder.push(component);
        let failed = |error: io::Error| format!("'{}': {error}", path.display());
        match folder.canonicalize() {
            Ok(place) if !place.starts_with(root) => {
                return Err(format!("'{}' leads out of the folder by a link", path.display()));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(&folder).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// The library's error message names its operation before the cause.
fn of_format(error: io::Error) -> String {
    match error.get_ref().and_then(std::error::Error::source) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
