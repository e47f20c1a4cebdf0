//! The folders searched for a plugin's library.

use std::path::{Component, Path, PathBuf};

use crate::library::PluginError;

/// Folders, in search order.
#[derive(Clone, Debug)]
pub struct SearchPath {
    folders: Vec<PathBuf>,
}

/// A library found in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFile {
    /// The library's file.
    pub library: PathBuf,
    /// The folder that contains it.
    pub folder: PathBuf,
}

impl SearchPath {
    /// Searches these folders in order.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }

    /// The folder of one plugin in the directory of its kind, such as `<cache-directory>/redis`.
    pub fn in_directory(directory: &Path, plugin: &str) -> Self {
        Self::new(vec![directory.join(plugin)])
    }

    /// Returns the first match for a file name.
    ///
    /// # Errors
    /// No folder contains it; the error lists them.
    pub fn find(&self, file: &str) -> Result<LibraryFile, PluginError> {
        let found = self.folders.iter().find(|folder| is_file_name(file) && folder.join(file).is_file());
        match found {
            Some(folder) => Ok(LibraryFile { library: folder.join(file), folder: folder.clone() }),
            None => Err(PluginError::NotFound { file: file.to_owned(), folders: self.folders.clone() }),
        }
    }
}

/// Whether a name is a plain file name, not a path out of its folder.
pub fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Kind;

    #[test]
    fn first_folder_with_the_file_wins() {
        let root = tempfile::tempdir().unwrap();
        let [near, far] = ["near", "far"].map(|name| root.path().join(name));
        let search = SearchPath::new(vec![near.clone(), far.clone()]);
        let file = Kind::CACHE.library_name("redis");
        for folder in [&far, &near] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(&file), "").unwrap();
            assert_eq!(
                search.find(&file).unwrap(),
                LibraryFile { library: folder.join(&file), folder: folder.clone() }
            );
        }
    }

    #[test]
    fn error_lists_the_searched_folders() {
        let search = SearchPath::in_directory(Path::new("/caches"), "redis");
        let error = search.find("libtritoncache_redis.so").unwrap_err();
        assert_eq!(error.to_string(), "cannot find 'libtritoncache_redis.so' (searched '/caches/redis')");
    }

    #[test]
    fn path_as_plugin_name_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let [inner, outer] = ["inner", "outer"].map(|name| root.path().join(name));
        fs::create_dir(&inner).unwrap();
        fs::write(&outer, "").unwrap();
        assert!(SearchPath::new(vec![inner]).find("../outer").is_err());
        assert!(is_file_name("libx.so"));
        for name in ["", ".", "..", "a/b", "/a", "../a"] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
