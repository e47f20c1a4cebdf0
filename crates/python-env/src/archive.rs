//! Unpacks an environment's archive: a tar file, compressed by gzip or not, as conda-pack and venv-pack write it.
//!
//! Whatever the archive holds, nothing is written outside the folder: names stay in it, nothing is written through a link
//! that leads out, and there are no special files, owners, set-user-id bits or extended attributes. An absolute link is
//! kept, because a virtual environment's interpreter is one; a relative link that leads out is refused, because it means
//! another thing at every place.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use ring::digest::{Context, SHA256};
use tar::{Archive, EntryType};

use crate::Error;

/// How large an archive may become.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLimits {
    /// All files together, in bytes.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
}

impl Default for ArchiveLimits {
    /// Several times what the largest environments have.
    fn default() -> Self {
        Self { bytes: 100 << 30, entries: 2_000_000 }
    }
}

/// Largest entry that only describes the next one, such as a long name, in bytes. The reader keeps it in memory.
const DESCRIPTION_LIMIT: u64 = 1 << 20;

/// How often progress is reported.
const INTERVAL: Duration = Duration::from_secs(5);

/// Unpacks an archive with this digest into an empty folder.
///
/// # Errors
/// It is no such archive, is larger than the limits, has an entry that is refused, or has changed since the digest was
/// computed. The folder may then hold a part of it.
pub(crate) fn unpack(
    path: &Path,
    digest: &str,
    folder: &Path,
    limits: ArchiveLimits,
    progress: &dyn Fn(&str),
) -> Result<(), Error> {
    let outcome = || {
        let mut file = nereid_model_files::open(path).map_err(|error| error.to_string())?;
        let format = Format::of(&mut file)?;
        let total = inspect(format.reader(&file), limits)?;
        file.rewind().map_err(|error| error.to_string())?;
        progress(&format!("unpacking {} ({} MB) to {}", path.display(), total >> 20, folder.display()));
        let mut reader = Digesting { inner: &file, context: Context::new(&SHA256) };
        extract(format.reader(&mut reader), folder, &|done| {
            progress(&format!("unpacking {}: {} of {} MB", path.display(), done >> 20, total >> 20));
        })?;
        io::copy(&mut reader, &mut io::sink()).map_err(|error| error.to_string())?;
        if hex(reader.context) == digest { Ok(()) } else { Err("it changed while it was read".to_owned()) }
    };
    outcome().map_err(|cause| Error::Archive { path: path.to_owned(), cause })
}

/// How the tar file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Plain,
    Gzip,
}

impl Format {
    fn of(file: &mut File) -> Result<Self, String> {
        const TAR: usize = 257;
        let mut start = Vec::new();
        file.take(512).read_to_end(&mut start).map_err(|error| error.to_string())?;
        file.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
        let other = match start.as_slice() {
            [0x1f, 0x8b, ..] => return Ok(Self::Gzip),
            start if start.get(TAR..TAR + 5) == Some(b"ustar") => return Ok(Self::Plain),
            [b'P', b'K', 3 | 5, ..] => "a zip file",
            [b'B', b'Z', b'h', ..] => "compressed by bzip2",
            [0xfd, b'7', b'z', b'X', b'Z', ..] => "compressed by xz",
            [0x28, 0xb5, 0x2f, 0xfd, ..] => "compressed by zstd",
            _ => "of an unknown format",
        };
        Err(format!("environments must be tar files, compressed by gzip or not; this one is {other}"))
    }

    fn reader<'a>(self, file: impl Read + 'a) -> Box<dyn Read + 'a> {
        match self {
            Self::Plain => Box::new(file),
            Self::Gzip => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
        }
    }
}

/// Reads all of the archive before anything is written: the kinds of its entries and their sizes, whose sum is returned.
fn inspect(reader: impl Read, limits: ArchiveLimits) -> Result<u64, String> {
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
        } else if !is_kept(kind) {
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

fn extract(reader: impl Read, folder: &Path, progress: &dyn Fn(u64)) -> Result<(), String> {
    // The reader of archives compares with this path.
    let folder = folder.canonicalize().map_err(|error| error.to_string())?;
    let mut archive = Archive::new(reader);
    archive.set_preserve_permissions(false);
    archive.set_preserve_ownerships(false);
    // Compiled files of Python hold the times of their sources.
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
        if !is_kept(kind) {
            return Err(format!("'{}' is not a file, folder or link", path.display()));
        }
        if depth(&path).is_none() {
            return Err(format!("'{}' leads out of the environment", path.display()));
        }
        if kind.is_symlink() || kind.is_hard_link() {
            let target = entry.link_name().map_err(of_format)?.unwrap_or_default().into_owned();
            // A hard link's target is a name in the archive.
            let from = if kind.is_symlink() { path.parent().unwrap_or(Path::new("")) } else { Path::new("") };
            let is_absolute = kind.is_symlink() && target.is_absolute();
            if !is_absolute && depth(&from.join(&target)).is_none() {
                return Err(format!(
                    "'{}' is a link to '{}', which leads out of the environment",
                    path.display(),
                    target.display()
                ));
            }
        }
        done += entry.size();
        if kind.is_dir() {
            // Folders get this user's usual mode, so that they can be filled and removed.
            make_folder(&folder, &path)?;
        } else if !entry.unpack_in(&folder).map_err(of_format)? {
            return Err(format!("'{}' leads out of the environment", path.display()));
        }
        if reported.elapsed() >= INTERVAL {
            progress(done);
            reported = Instant::now();
        }
    }
    Ok(())
}

/// How deep a path is below the folder that it is relative to; nothing for an absolute path, and for one that leads out.
fn depth(path: &Path) -> Option<usize> {
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

fn make_folder(root: &Path, path: &Path) -> Result<(), String> {
    let mut folder = root.to_owned();
    for component in path.components().filter(|component| matches!(component, Component::Normal(_))) {
        folder.push(component);
        let failed = |error: io::Error| format!("'{}': {error}", path.display());
        match folder.canonicalize() {
            Ok(place) if !place.starts_with(root) => {
                return Err(format!("'{}' leads out of the environment by a link", path.display()));
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

/// The reader of archives puts what it did before the cause.
fn of_format(error: io::Error) -> String {
    match error.get_ref().and_then(std::error::Error::source) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Computes the digest of what passes.
struct Digesting<'a> {
    inner: &'a File,
    context: Context,
}

impl Read for Digesting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.context.update(&buffer[..count]);
        Ok(count)
    }
}

/// A digest's first 32 digits: enough to tell contents apart, and short enough for the paths in scripts, which systems limit.
pub(crate) fn hex(context: Context) -> String {
    context.finish().as_ref()[..16].iter().fold(String::new(), |mut text, byte| {
        // Writing to text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
