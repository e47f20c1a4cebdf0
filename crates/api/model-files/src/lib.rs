//! Opens the files of models: regular files within the model's folder, and nothing else.
//!
//! Repositories and clients name files, and a name may lead to anything: a FIFO, which blocks its reader, a device
//! without an end, or a file of the machine that is none of the model's. Everything that reads a model's file reads it
//! through this crate, which knows no format.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Largest configuration or list of labels, in bytes.
pub const TEXT_LIMIT: u64 = 16 << 20;

/// Largest file of tensor data, in bytes.
pub const DATA_LIMIT: u64 = 4 << 30;

/// Largest protobuf message, in bytes: no reader takes more. ONNX models that are larger keep weights in other files.
pub const PROTOBUF_LIMIT: u64 = 2 << 30;

/// Why a file is not read. Its display does not name the file.
#[derive(Debug)]
pub enum FileError {
    /// The path is absolute, or leaves the folder by `..`.
    Outside,
    /// There is something else in its place.
    NotRegular(Kind),
    /// The file exceeds this limit in bytes.
    TooLarge(u64),
    /// The system's error.
    Io(io::Error),
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device, such as a terminal.
    CharacterDevice,
    /// A block device, such as a disk.
    BlockDevice,
    /// Something that this system alone knows.
    Other,
}

impl FileError {
    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside => {
                f.write_str("the path must stay within the model's folder: relative, and without '..'")
            }
            Self::NotRegular(kind) => write!(f, "not a regular file but {kind}"),
            Self::TooLarge(limit) => write!(f, "larger than {limit} bytes"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileError {}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory => "a directory",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::CharacterDevice => "a character device",
            Self::BlockDevice => "a block device",
            Self::Other => "of an unknown kind",
        })
    }
}

/// The path of a file that a configuration or a client names, in a folder. Links in the folder are its owner's, and may
/// lead out of it.
///
/// # Errors
/// [`FileError::Outside`] for a name that leads out of the folder by itself.
pub fn inside(folder: &Path, name: impl AsRef<Path>) -> Result<PathBuf, FileError> {
    let name = name.as_ref();
    if nereid_model_config::stays_in_folder(name) { Ok(folder.join(name)) } else { Err(FileError::Outside) }
}

/// The path of a model's file with this name in a version's folder. If the name is that of a folder, the path of the file
/// `within` the folder.
///
/// # Errors
/// As [`inside`].
pub fn model_file(version: &Path, name: &str, within: &str) -> Result<PathBuf, FileError> {
    let path = inside(version, name)?;
    Ok(if path.is_dir() { path.join(within) } else { path })
}

/// A hint for a missing file of a model: the only file in the same folder with the same ending in upper or lower case, or a
/// file of another format and how to serve it. Empty without such a file.
pub fn hint_at_missing(path: &Path) -> String {
    let entries = path.parent().and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let ending = |path: &Path| path.extension().map(OsStr::to_ascii_lowercase);
    let same = |other: &Path| other.extension().is_some() && ending(other) == ending(path);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let is_file = |name: &String| path.with_file_name(name).is_file();
    let mut others = names.iter().filter(|name| same(Path::new(name)) && is_file(name));
    match (others.next(), others.next()) {
        (Some(name), None) => {
            format!("; the only such file is '{name}': rename it, or set default_model_filename: \"{name}\"")
        }
        (None, _) => nereid_model_config::hint_at_other_format(names.iter().map(String::as_str)),
        _ => String::new(),
    }
}

/// Whether what is at a path can be opened as a file, links followed. Opens nothing.
///
/// # Errors
/// Why it cannot: there is nothing, or something else.
pub fn check(path: &Path) -> Result<(), FileError> {
    of_regular(&path.metadata()?)
}

/// Opens a regular file for reading, links followed. Never waits for another process, as opening a FIFO does.
///
/// # Errors
/// The file cannot be opened, or is not regular.
pub fn open(path: &Path) -> Result<File, FileError> {
    open_regular(path).map(|(file, _)| file)
}

/// The contents of a regular file.
///
/// # Errors
/// As [`open`]; it cannot be read, or has more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let (file, metadata) = open_regular(path)?;
    if metadata.len() > limit {
        return Err(FileError::TooLarge(limit));
    }
    let mut contents = Vec::new();
    let length = usize::try_from(metadata.len()).map_err(|_| FileError::TooLarge(limit))?;
    contents.try_reserve_exact(length).map_err(io::Error::from)?;
    // The reported length may be too small: files of /proc have none.
    file.take(limit.saturating_add(1)).read_to_end(&mut contents)?;
    if contents.len() as u64 > limit { Err(FileError::TooLarge(limit)) } else { Ok(contents) }
}

/// The text of a regular file of up to [`TEXT_LIMIT`] bytes.
///
/// # Errors
/// As [`read`]; or it is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let contents = read(path, TEXT_LIMIT)?;
    String::from_utf8(contents).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error).into())
}

fn open_regular(path: &Path) -> Result<(File, Metadata), FileError> {
    // Opening some devices does something, so what is there is looked at before, and again when it is open: it may have
    // been replaced in between.
    check(path)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    of_regular(&metadata)?;
    Ok((file, metadata))
}

fn of_regular(metadata: &Metadata) -> Result<(), FileError> {
    let kind = metadata.file_type();
    if kind.is_file() { Ok(()) } else { Err(FileError::NotRegular(kind.into())) }
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Self {
        if kind.is_dir() {
            Self::Directory
        } else if kind.is_fifo() {
            Self::Fifo
        } else if kind.is_socket() {
            Self::Socket
        } else if kind.is_char_device() {
            Self::CharacterDevice
        } else if kind.is_block_device() {
            Self::BlockDevice
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests;
