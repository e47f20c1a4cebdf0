//! The file of API keys: one line for each, with its hash.
//!
//! The file begins with a line that names its format, so that a truncated file is not taken for one without keys.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nereid_core::Principal;
use nereid_protocol::Credential;
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::key::{Expiry, KeyHash, NewKey, hex, id_digits, now, parse_day, parse_hash, parse_id, today};
use crate::policy::is_name;

/// The first line.
const HEAD: &str =
    "# API keys of Nereid, version 1: id, principal, last day, day of creation, BLAKE3 of the key, note";

/// The part of the first line that readers check.
const MARK: &str = "# API keys of Nereid, version 1";

/// A key in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The id, as it is in the key.
    pub id: Credential,
    /// The principal that the key proves.
    pub principal: Principal,
    /// The last day on which the key is valid.
    pub expiry: Expiry,
    /// The day on which it was made.
    pub created: String,
    /// A remark, in one line.
    pub note: String,
    pub(crate) hash: KeyHash,
}

impl KeyEntry {
    /// The id as it is written in the key.
    pub fn id_text(&self) -> String {
        id_digits(self.id)
    }

    /// Whether the last day is over.
    pub fn is_expired(&self) -> bool {
        now() >= self.expiry.end()
    }

    fn parse(line: &str) -> Result<Self, String> {
        let mut words = line.splitn(6, ' ');
        let mut word = |what: &str| words.next().ok_or_else(|| format!("the line lacks {what}"));
        let (id, principal, expiry) = (word("an id")?, word("a principal")?, word("a last day")?);
        let (created, hash) = (word("a day of creation")?, word("a hash")?);
        let id =
            parse_id(id).ok_or_else(|| format!("'{id}' is not an id: expected 16 hexadecimal digits"))?;
        if !is_name(principal) {
            return Err(format!("'{principal}' is not the name of a principal"));
        }
        let expiry = match expiry {
            "never" => Expiry::Never,
            day => {
                Expiry::On(parse_day(day).ok_or_else(|| format!("'{day}' is not a day such as 2027-12-31"))?)
            }
        };
        let hash =
            parse_hash(hash).ok_or_else(|| "the hash does not have 64 hexadecimal digits".to_owned())?;
        let (created, note) = (created.to_owned(), words.next().unwrap_or_default().to_owned());
        Ok(Self { id, principal: Principal::new(principal), expiry, created, note, hash })
    }
}

impl fmt::Display for KeyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { principal, expiry, created, note, .. } = self;
        write!(f, "{} {principal} {expiry} {created} {}", self.id_text(), hex(&self.hash.0))?;
        if note.is_empty() { Ok(()) } else { write!(f, " {note}") }
    }
}

/// The file of keys is unusable.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// The file cannot be read or written.
    #[error("cannot {action} the file of keys '{}': {error}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A line is malformed.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// The file has no such key.
    #[error("{} has no key '{id}'", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The id.
        id: String,
    },
    /// No key can be made.
    #[error("cannot make a key: {0}")]
    Random(String),
}

/// The keys in a file.
#[derive(Clone, Debug, Default)]
pub struct KeyFile(BTreeMap<Credential, KeyEntry>);

impl KeyFile {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or the first malformed line.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let text = fs::read_to_string(path).map_err(|error| io_error("read", path, error))?;
        let entries = parse(path, &text)?;
        Ok(Self(entries.into_iter().map(|entry| (entry.id, entry)).collect()))
    }

    /// The keys, by principal and expiry.
    pub fn entries(&self) -> Vec<&KeyEntry> {
        let mut entries: Vec<_> = self.0.values().collect();
        entries.sort_by_key(|entry| (entry.principal.name().to_owned(), entry.expiry, entry.id));
        entries
    }

    /// The entry of a key that a client presents at this time.
    ///
    /// # Errors
    /// Why the key proves nothing.
    pub(crate) fn verify(&self, key: &[u8], now: u64) -> Result<&KeyEntry, &'static str> {
        let unknown = "the API key is unknown or was revoked";
        let entry = crate::key::id_of(key).and_then(|id| self.0.get(&id)).ok_or(unknown)?;
        if !entry.hash.is_of(key) {
            return Err(unknown);
        }
        if now < entry.expiry.end() { Ok(entry) } else { Err("the API key has expired") }
    }

    /// Whether a key that was verified is still valid at this time.
    pub(crate) fn is_valid(&self, id: Credential, now: u64) -> bool {
        self.0.get(&id).is_some_and(|entry| now < entry.expiry.end())
    }

    /// Makes a key for a principal, and adds it to a file, which is created if it does not exist.
    ///
    /// # Errors
    /// The file is unusable.
    pub fn add(path: &Path, principal: &str, expiry: Expiry, note: &str) -> Result<NewKey, KeyFileError> {
        let key = NewKey::random(expiry).map_err(KeyFileError::Random)?;
        let printable = |character: char| if character.is_control() { ' ' } else { character };
        let entry = KeyEntry {
            id: key.id,
            principal: Principal::new(principal),
            expiry,
            created: Expiry::On(today()).to_string(),
            note: note.chars().map(printable).collect::<String>().trim().to_owned(),
            hash: KeyHash::of(key.text.as_bytes()),
        };
        change(path, true, |entries| {
            entries.push(entry);
            Ok(())
        })?;
        Ok(key)
    }

    /// Removes the key with this id from a file, and returns its entry.
    ///
    /// # Errors
    /// The file is unusable, or has no such key.
    pub fn revoke(path: &Path, id: &str) -> Result<KeyEntry, KeyFileError> {
        change(path, false, |entries| {
            let place = parse_id(id).and_then(|id| entries.iter().position(|entry| entry.id == id));
            let unknown = || KeyFileError::Unknown { path: path.to_owned(), id: id.to_owned() };
            place.map(|place| entries.remove(place)).ok_or_else(unknown)
        })
    }
}

fn io_error(action: &'static str, path: &Path, error: io::Error) -> KeyFileError {
    KeyFileError::Io { action, path: path.to_owned(), error }
}

/// The entries of a file with this text, in its order.
fn parse(path: &Path, text: &str) -> Result<Vec<KeyEntry>, KeyFileError> {
    let wrong = |line, reason| KeyFileError::Line { path: path.to_owned(), line, reason };
    if !text.starts_with(MARK) {
        return Err(wrong(1, format!("not a file of keys: the first line must begin with '{MARK}'")));
    }
    let mut entries: Vec<KeyEntry> = Vec::new();
    let mut seen = HashMap::new();
    for (line, text) in (1..).zip(text.lines()) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let entry = KeyEntry::parse(text).map_err(|reason| wrong(line, reason))?;
        if let Some(first) = seen.insert(entry.id, line) {
            return Err(wrong(line, format!("key {} is also on line {first}", entry.id_text())));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Changes the entries of a file, which others may be changing: readers see the old file or the new one. `create`: whether
/// the file may be missing.
fn change<T>(
    path: &Path,
    create: bool,
    edit: impl FnOnce(&mut Vec<KeyEntry>) -> Result<T, KeyFileError>,
) -> Result<T, KeyFileError> {
    // A link stays one: its target is replaced.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut file = locked(path, create).map_err(|error| io_error("open", path, error))?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| io_error("read", path, error))?;
    let mut entries = if text.is_empty() { Vec::new() } else { parse(path, &text)? };
    let outcome = edit(&mut entries)?;
    replace(path, &file, &entries).map_err(|error| io_error("write", path, error))?;
    Ok(outcome)
}

/// Opens a file under a lock that each writer takes. Its name may have got another file while this one waited.
fn locked(path: &Path, create: bool) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().read(true).append(true).create(create).mode(0o600).open(path)?;
        file.lock()?;
        let (here, there) = (file.metadata()?, fs::metadata(path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino())) {
            return Ok(file);
        }
    }
}

/// Replaces the file in one step, with its permissions.
fn replace(path: &Path, old: &File, entries: &[KeyEntry]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = NamedTempFile::new_in(folder)?;
    writeln!(new, "{HEAD}")?;
    for entry in entries {
        writeln!(new, "{entry}")?;
    }
    let mode = old.metadata()?.permissions().mode();
    new.as_file().set_permissions(fs::Permissions::from_mode(mode & 0o777))?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests;
