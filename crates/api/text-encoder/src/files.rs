//! Finds and reads the text files of a model.

use std::path::{Path, PathBuf};

use nereid_model_files::{FileError, inside, read};
use serde::de::DeserializeOwned;

/// The file with the vocabulary and its rules.
pub const TOKENIZER: &str = "tokenizer.json";

/// The largest `tokenizer.json`, in bytes. Vocabularies of 256,000 tokens take 35 MB.
pub const TOKENIZER_LIMIT: u64 = 64 << 20;

/// The largest of the other files, in bytes.
const SETTINGS_LIMIT: u64 = 4 << 20;

/// The folders of a model's files, by precedence: the version's, then the model's.
#[derive(Clone, Debug)]
pub struct Folders([PathBuf; 2]);

impl Folders {
    /// The folders of a version of a model.
    pub fn new(model: &Path, version: u64) -> Self {
        Self([model.join(version.to_string()), model.to_owned()])
    }

    /// Whether one of them has a tokenizer.
    pub fn have_tokenizer(&self) -> bool {
        self.0.iter().any(|folder| folder.join(TOKENIZER).is_file())
    }

    /// The path and the contents of a file, from the first folder that has it.
    ///
    /// # Errors
    /// The file cannot be read, or has more than `limit` bytes.
    pub(crate) fn find(&self, name: &str, limit: u64) -> Result<Option<(PathBuf, Vec<u8>)>, String> {
        for folder in &self.0 {
            let path = inside(folder, name).map_err(|error| unreadable(Path::new(name), &error))?;
            match read(&path, limit) {
                Ok(contents) => return Ok(Some((path, contents))),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(unreadable(&path, &error)),
            }
        }
        Ok(None)
    }

    /// A file of settings in JSON, if there is one, with its path.
    ///
    /// # Errors
    /// The file cannot be read, or is not JSON of this form.
    pub(crate) fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<(PathBuf, T)>, String> {
        let Some((path, contents)) = self.find(name, SETTINGS_LIMIT)? else { return Ok(None) };
        match serde_json::from_slice(&contents) {
            Ok(value) => Ok(Some((path, value))),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// [`Self::json`] without the path, and with defaults for a missing file.
    ///
    /// # Errors
    /// Same as [`Self::json`].
    pub(crate) fn settings<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, String> {
        Ok(self.json(name)?.map(|(_, value)| value).unwrap_or_default())
    }
}

fn unreadable(path: &Path, error: &FileError) -> String {
    format!("cannot read {}: {error}", path.display())
}
