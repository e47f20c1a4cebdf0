//! Unpacks and verifies zip files: stored and deflated entries.

use std::fs::File;
use std::io::{self, Read, copy};
use std::path::{Component, Path};

use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, FileReader, RECOMMENDED_BUFFER_SIZE, ZipArchive, ZipArchiveEntryWayfinder};
use rustix::fs::Mode;

use crate::ArchiveLimits;
use crate::root::Root;

/// An entry that is kept.
struct KeptEntry {
    name: String,
    is_folder: bool,
    is_deflated: bool,
    place: ZipArchiveEntryWayfinder,
}

/// Unpacks a zip file into a folder. Links are not kept: a zip file that has one is refused.
pub(crate) fn unpack_zip(file: File, folder: &Path, limits: ArchiveLimits) -> Result<(), String> {
    let root = Root::open(folder)?;
    read(file, limits, |name, contents| {
        let path = Path::new(name);
        let Some((contents, left)) = contents else { return root.make_folder(path).map(|()| 0) };
        let mut target = root.make_file(path, Mode::from_raw_mode(0o666))?;
        copy(&mut contents.take(left), &mut target).map_err(|error| format!("'{name}': {error}"))
    })
}

/// Compares the contents of a zip file's entries with their sizes and checksums. Writes nothing.
///
/// # Errors
/// The file is not a zip file that [`unpack`](crate::unpack) would accept, or an entry is damaged.
pub fn verify_zip(file: File, limits: ArchiveLimits) -> Result<(), String> {
    read(file, limits, |name, contents| {
        let Some((contents, left)) = contents else { return Ok(0) };
        copy(&mut contents.take(left), &mut io::sink()).map_err(|error| format!("'{name}': {error}"))
    })
}

/// The names of a zip file's entries, in the file's order. Reads no contents.
///
/// # Errors
/// The file is not a zip file that [`unpack`](crate::unpack) would accept.
pub fn zip_names(file: File, limits: ArchiveLimits) -> Result<Vec<String>, String> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(|error| error.to_string())?;
    Ok(entries(&archive, &mut buffer, limits)?.into_iter().map(|entry| entry.name).collect())
}

/// An entry's contents, with how many bytes of them to take at most; `None` for a folder.
type Contents<'a> = Option<(&'a mut dyn Read, u64)>;

/// Hands each entry to `accept`, which returns how many bytes it took. Reading contents to their end checks them.
fn read(
    file: File,
    limits: ArchiveLimits,
    accept: impl Fn(&str, Contents<'_>) -> Result<u64, String>,
) -> Result<(), String> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(|error| error.to_string())?;
    // The declared sizes of entries may be wrong.
    let mut left = limits.bytes;
    for KeptEntry { name, is_folder, is_deflated, place } in entries(&archive, &mut buffer, limits)? {
        if is_folder {
            accept(&name, None)?;
            continue;
        }
        let entry = archive.get_entry(place).map_err(|error| format!("'{name}': {error}"))?;
        let data = entry.reader();
        let contents: Box<dyn Read> =
            if is_deflated { Box::new(DeflateDecoder::new(data)) } else { Box::new(data) };
        // Compares sizes and checksums.
        let mut contents = entry.verifying_reader(contents);
        let taken = accept(&name, Some((&mut contents, left.saturating_add(1))))?;
        left = left.checked_sub(taken).ok_or_else(|| too_large(limits))?;
    }
    Ok(())
}

fn too_large(limits: ArchiveLimits) -> String {
    format!("it has more than {} bytes", limits.bytes)
}

/// The entries of a zip file, all of which may be kept.
fn entries(
    archive: &ZipArchive<FileReader>,
    buffer: &mut [u8],
    limits: ArchiveLimits,
) -> Result<Vec<KeptEntry>, String> {
    let (mut kept, mut bytes) = (Vec::new(), 0_u64);
    let mut entries = archive.entries(buffer);
    while let Some(entry) = entries.next_entry().map_err(|error| error.to_string())? {
        let name = std::str::from_utf8(entry.file_path().as_bytes());
        let name = name.map_err(|_| "the name of an entry is not UTF-8".to_owned())?.to_owned();
        if entry.mode().is_symlink() {
            return Err(format!("'{name}' is not a file or folder"));
        }
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !Path::new(&name).components().all(is_plain) || name.contains(['\\', '\0']) {
            return Err(format!("'{name}' leads out of the folder"));
        }
        let is_deflated = match entry.compression_method() {
            _ if entry.flags().is_encrypted() => return Err(format!("'{name}' is encrypted")),
            CompressionMethod::STORE => false,
            CompressionMethod::DEFLATE => true,
            other => return Err(format!("'{name}' is compressed by method {other:?}, not by deflate")),
        };
        bytes = bytes.saturating_add(entry.uncompressed_size_hint());
        if bytes > limits.bytes {
            return Err(too_large(limits));
        }
        if kept.len() as u64 >= limits.entries {
            return Err(format!("it has more than {} entries", limits.entries));
        }
        kept.push(KeptEntry { name, is_folder: entry.is_dir(), is_deflated, place: entry.wayfinder() });
    }
    if kept.is_empty() {
        return Err("it is empty".to_owned());
    }
    Ok(kept)
}
