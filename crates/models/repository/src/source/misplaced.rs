//! Recognises a folder that was named in place of a repository: the one above the repository, or a model in it.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use nereid_core::backend_api::block_on;

use super::naming::is_model_name;
use crate::model_folder::{CONFIG, version_number};
use crate::store::{Entry, LocalStore, Store};

/// With more folders, nothing is claimed: stores may be remote, and each list takes a request.
const MAX_FOLDERS: usize = 40;

/// The kind of folder that was named in place of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// The folder above the repository, which has this name.
    Above(String),
    /// A model.
    Model,
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Above(name) => {
                write!(f, "has no models, but its folder '{name}' looks like a repository: name that folder")
            }
            Self::Model => {
                f.write_str("looks like a model: name the folder above it, which is the repository")
            }
        }
    }
}

impl Misplaced {
    /// Judges a local folder. `None` if it may be a repository.
    pub fn find(repository: &Path) -> Option<Self> {
        Self::of_store(&LocalStore::new(repository.to_owned()), Instant::now())
    }

    /// Judges a store. `None` if it may be a repository. Unreadable folders count as empty.
    pub(super) fn of_store(store: &dyn Store, as_of: Instant) -> Option<Self> {
        let list = |folder: &str| block_on(store.list(folder, as_of)).unwrap_or_default();
        let entries = list("");
        let mut below = Vec::new();
        for name in folders(&entries) {
            let entries = list(name);
            if is_model(&entries) || below.len() >= MAX_FOLDERS {
                return None;
            }
            below.push((name, entries));
        }
        if is_model(&entries) {
            return Some(Self::Model);
        }
        let has_model = |name: &str, entries: &[Entry]| {
            folders(entries).take(MAX_FOLDERS).any(|model| is_model(&list(&format!("{name}/{model}"))))
        };
        below
            .iter()
            .find(|(name, entries)| has_model(name, entries))
            .map(|(name, _)| Self::Above((*name).to_owned()))
    }
}

/// The folders that could be models.
fn folders(entries: &[Entry]) -> impl Iterator<Item = &str> {
    let folders = entries.iter().filter(|entry| entry.is_folder && is_model_name(&entry.name));
    folders.map(|entry| entry.name.as_str())
}

/// Whether a folder with these entries looks like a model: it has a configuration, or a folder of a version.
fn is_model(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| match entry.is_folder {
        true => version_number(&entry.name).is_some(),
        false => entry.name == CONFIG,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Makes these files, or folders if the name ends in `/`, and judges the folder with them.
    fn found(paths: &[&str]) -> Option<Misplaced> {
        let root = tempfile::tempdir().unwrap();
        for path in paths {
            let path = root.path().join(path);
            match path.to_str().unwrap().ends_with('/') {
                true => fs::create_dir_all(path).unwrap(),
                false => {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, "").unwrap();
                }
            }
        }
        Misplaced::find(root.path())
    }

    #[test]
    fn repositories_are_recognised_below_and_models_above() {
        let above = |name: &str| Some(Misplaced::Above(name.to_owned()));
        for (paths, expected) in [
            (&["examples/models/m/1/model.onnx"][..], None),
            (&["models/m/1/model.onnx"], above("models")),
            (&["models/m/config.pbtxt"], above("models")),
            (&["docs/a.md", "src/b/c.rs", "models/x/notes.txt", "models/m/1/"], above("models")),
            (&[".git/m/1/"], None),
            (&["m/1/model.onnx"], None),
            (&["m/1/"], None),
            (&["m/config.pbtxt"], None),
            (&["m/1/model.onnx", "nested/n/1/model.onnx"], None),
            (&["1/model.onnx"], Some(Misplaced::Model)),
            (&["config.pbtxt"], Some(Misplaced::Model)),
            (&["config.pbtxt", "1/model.onnx", "2/model.onnx"], Some(Misplaced::Model)),
            (&["config.pbtxt", "m/1/model.onnx"], None),
            (&["1/1/model.onnx"], None),
            (&["m/model.onnx"], None),
            (&["model.onnx"], None),
            (&["a/"], None),
            (&[], None),
        ] {
            assert_eq!(found(paths), expected, "{paths:?}");
        }
    }

    #[test]
    fn nothing_is_claimed_of_many_folders() {
        for (number, expected) in
            [(MAX_FOLDERS - 1, Some(Misplaced::Above("models".into()))), (MAX_FOLDERS, None)]
        {
            let others: Vec<_> = (0..number).map(|number| format!("{number:03}x/")).collect();
            let paths: Vec<_> = others.iter().map(String::as_str).chain(["models/m/1/"]).collect();
            assert_eq!(found(&paths), expected, "{number}");
        }
    }

    #[test]
    fn missing_folder_looks_like_nothing() {
        assert_eq!(Misplaced::find(Path::new("/no/such/folder")), None);
    }
}
