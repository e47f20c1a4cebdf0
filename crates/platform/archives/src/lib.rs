//! Unpacks archives: tar files, plain or compressed with gzip or zstd, and zip files.
//!
//! No archive can write outside the folder: each component of a name is opened in the folder before it, and links are never
//! followed. Special files, owners, set-user-id bits and extended attributes are not created. Once an archive is unpacked,
//! all links are resolved: one that leads out is refused, and so is an absolute one unless [`Links::Absolute`] allows it.
//!
//! Does not know the contents of archives, or where they come from.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod root;
mod tar;
mod zip;
mod zstd;

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};
use std::path::Path;

use flate2::read::MultiGzDecoder;

pub use crate::root::check_links;
pub use crate::tar::{inspect_tar, unpack_tar};
pub use crate::zip::{verify_zip, zip_names};
use crate::zstd::Zstd;

/// How large an archive may become.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLimits {
    /// All files together, in bytes.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
}

impl ArchiveLimits {
    /// The most bytes that one byte of an archive may become. Weights are compressed to half of their size as a rule.
    const RATIO: u64 = 1000;
    /// The size up to which no ratio applies.
    const SMALL: u64 = 1 << 30;

    /// The limits of an archive with `length` bytes, which must not become a multiple of its size.
    fn for_archive_of(self, length: u64) -> Self {
        Self { bytes: self.bytes.min(length.saturating_mul(Self::RATIO).max(Self::SMALL)), ..self }
    }
}

impl Default for ArchiveLimits {
    /// Several times the size of the largest environments and models.
    fn default() -> Self {
        Self { bytes: 100 << 30, entries: 2_000_000 }
    }
}

/// Which symbolic links are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Links that stay in the folder.
    Inside,
    /// Absolute links as well, such as the interpreter's in a virtual environment.
    Absolute,
}

/// The format of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A tar file.
    Tar,
    /// A tar file compressed by gzip.
    TarGz,
    /// A tar file compressed by zstd.
    TarZstd,
    /// A zip file.
    Zip,
}

impl Format {
    /// Detects the format of a file by its first bytes, and rewinds it.
    ///
    /// # Errors
    /// The file cannot be read, or has another format, which the error names.
    pub fn of(file: &mut File) -> Result<Self, String> {
        const TAR: usize = 257;
        let mut start = Vec::new();
        file.take(512).read_to_end(&mut start).map_err(|error| error.to_string())?;
        file.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
        match start.as_slice() {
            [0x1f, 0x8b, ..] => Ok(Self::TarGz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(Self::TarZstd),
            start if start.get(TAR..TAR + 5) == Some(b"ustar") => Ok(Self::Tar),
            [b'P', b'K', 3 | 5, ..] => Ok(Self::Zip),
            [b'B', b'Z', b'h', ..] => Err("compressed by bzip2".to_owned()),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Err("compressed by xz".to_owned()),
            _ => Err("of an unknown format".to_owned()),
        }
    }

    /// Reads a tar file of this format.
    pub fn tar_reader<'a>(self, file: impl Read + 'a) -> Box<dyn Read + 'a> {
        match self {
            Self::TarGz => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
            Self::TarZstd => Box::new(BufReader::with_capacity(1 << 16, Zstd::new(file))),
            Self::Tar | Self::Zip => Box::new(file),
        }
    }
}

/// Unpacks an archive of any format into a folder, which need not be empty: existing files are replaced. With `only`,
/// all entries of a tar file outside that folder are skipped.
///
/// # Errors
/// The file is not an archive, exceeds the limits, has a refused entry, or cannot be written. The folder may then
/// contain a part of it.
pub fn unpack(
    mut file: File,
    folder: &Path,
    limits: ArchiveLimits,
    links: Links,
    only: Option<&Path>,
) -> Result<(), String> {
    let limits = limits.for_archive_of(file.metadata().map_err(|error| error.to_string())?.len());
    let format =
        Format::of(&mut file).map_err(|other| format!("neither a tar file nor a zip file, but {other}"))?;
    if format == Format::Zip {
        zip::unpack_zip(file, folder, limits)?;
        // Of an earlier archive.
        return check_links(folder, links);
    }
    inspect_tar(format.tar_reader(&file), limits, only)?;
    file.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
    unpack_tar(format.tar_reader(&file), folder, links, only, &|_| {})
}

#[cfg(test)]
mod tests;
