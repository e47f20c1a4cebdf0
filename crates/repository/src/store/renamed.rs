//! A store in which one folder of models has another name.

use std::time::Instant;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{ModelLocation, SourceFuture};

use super::{Entry, Fetch, Fetched, Object, Store};

/// A store in which one folder has another name. A folder that had the new name before is hidden.
#[derive(Clone, Debug)]
pub(crate) struct RenamedStore<S> {
    store: S,
    /// The folder in `store`.
    folder: String,
    /// What it is called.
    name: String,
}

impl<S: Store> RenamedStore<S> {
    /// `store` with its `folder` called `name`.
    pub(crate) fn new(store: S, folder: impl Into<String>, name: impl Into<String>) -> Self {
        Self { store, folder: folder.into(), name: name.into() }
    }

    /// What the store calls a folder.
    fn original(&self, folder: &str) -> Result<String> {
        let (first, rest) = match folder.split_once('/') {
            Some((first, rest)) => (first, Some(rest)),
            None => (folder, None),
        };
        if first == self.name {
            return Ok(rest.map_or_else(|| self.folder.clone(), |rest| format!("{}/{rest}", self.folder)));
        }
        if first == self.folder {
            return Err(Error::not_found(format!("'{folder}' is called '{}'", self.name)));
        }
        Ok(folder.to_owned())
    }
}

impl<S: Store> Store for RenamedStore<S> {
    fn location(&self) -> &str {
        self.store.location()
    }

    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>> {
        Box::pin(async move {
            if !folder.is_empty() {
                return self.store.list(&self.original(folder)?, as_of).await;
            }
            let mut entries = self.store.list(folder, as_of).await?;
            if self.folder != self.name {
                entries.retain(|entry| entry.name != self.name);
            }
            for entry in entries.iter_mut().filter(|entry| entry.name == self.folder) {
                entry.name.clone_from(&self.name);
            }
            Ok(entries)
        })
    }

    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>> {
        Box::pin(async move { self.store.stat(&self.original(folder)?, as_of).await })
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, Fetched> {
        Box::pin(async move {
            let folder = self.original(fetch.folder)?;
            self.store.fetch(Fetch { folder: &folder, ..fetch }).await
        })
    }

    fn locate(&self, folder: &str) -> ModelLocation {
        // A folder that is hidden here has no files that anybody asks for.
        self.store.locate(&self.original(folder).unwrap_or_else(|_| folder.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nereid_core::{Progress, block_on};
    use tempfile::TempDir;

    use super::*;
    use crate::store::LocalStore;
    use crate::store::conformance::{StoreUnderTest, check_store};

    /// A folder in which `original` is called `other`.
    struct Renamed(TempDir);

    impl StoreUnderTest for Renamed {
        type Store = RenamedStore<LocalStore>;

        fn store(&self) -> Self::Store {
            RenamedStore::new(LocalStore::new(self.0.path().to_owned()), "original", "other")
        }

        fn put(&self, path: &str, contents: &[u8]) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }

        fn remove(&self, path: &str) {
            fs::remove_file(self.0.path().join(path)).unwrap();
        }
    }

    #[test]
    fn it_is_a_store() {
        check_store(|| Renamed(tempfile::tempdir().unwrap()));
    }

    #[test]
    fn the_folder_is_found_under_its_new_name_alone() {
        let folder = Renamed(tempfile::tempdir().unwrap());
        folder.put("original/1/model", b"a");
        folder.put("other/1/hidden", b"b");
        folder.put("third/1/model", b"c");
        let store = folder.store();
        let mut names: Vec<_> =
            block_on(store.list("", Instant::now())).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, ["other", "third"]);
        let paths = |name: &str| {
            let objects = block_on(store.stat(name, Instant::now()));
            objects.map(|objects| objects.into_iter().map(|object| object.path).collect::<Vec<_>>())
        };
        assert_eq!(paths("other").unwrap(), ["1", "1/model"]);
        assert_eq!(paths("other/1").unwrap(), ["model"]);
        assert_eq!(paths("third").unwrap(), ["1", "1/model"]);
        assert!(paths("original").is_err());
        let progress = Progress::default();
        let fetch = Fetch {
            folder: "other",
            is_needed: &|_| true,
            progress: &progress,
            as_of: Instant::now(),
            route: None,
        };
        let fetched = block_on(store.fetch(fetch)).unwrap();
        assert_eq!(fetched.path, folder.0.path().join("original"));
    }
}
