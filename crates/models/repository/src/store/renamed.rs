//! A store in which some folders of models have other names.

use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{ModelLocation, Progress, SourceFuture};

use super::{Entry, Fetch, FetchedFolder, Object, Store};

/// A store that presents some folders under other names. A folder whose name another one takes is hidden.
#[derive(Clone, Debug)]
pub(crate) struct RenamedStore {
    store: Arc<dyn Store>,
    renamed: Vec<RenamedFolder>,
}

/// A renamed folder.
#[derive(Clone, Debug)]
struct RenamedFolder {
    /// The folder's name in the store.
    folder: String,
    /// The visible name.
    name: String,
}

impl RenamedStore {
    /// Presents each folder under its paired name.
    pub(crate) fn new<'a>(
        store: Arc<dyn Store>,
        renamed: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let renamed = renamed.into_iter().map(|(folder, name)| (folder.to_owned(), name.to_owned()));
        Self { store, renamed: renamed.map(|(folder, name)| RenamedFolder { folder, name }).collect() }
    }

    /// The visible name of a store's folder: its own unless it was renamed, and `None` if another folder takes it.
    fn name(&self, folder: &str) -> Option<String> {
        if let Some(renamed) = self.renamed.iter().find(|renamed| renamed.folder == folder) {
            return Some(renamed.name.clone());
        }
        let hidden = self.renamed.iter().any(|renamed| renamed.name == folder);
        (!hidden).then(|| folder.to_owned())
    }

    /// The name in the store of a visible folder.
    fn original(&self, folder: &str) -> Result<String> {
        let (first, rest) = match folder.split_once('/') {
            Some((first, rest)) => (first, Some(rest)),
            None => (folder, None),
        };
        if let Some(RenamedFolder { folder, .. }) = self.renamed.iter().find(|renamed| renamed.name == first)
        {
            return Ok(rest.map_or_else(|| folder.clone(), |rest| format!("{folder}/{rest}")));
        }
        match self.renamed.iter().find(|renamed| renamed.folder == first) {
            Some(renamed) => Err(Error::not_found(format!("'{folder}' is called '{}'", renamed.name))),
            None => Ok(folder.to_owned()),
        }
    }
}

impl Store for RenamedStore {
    fn location(&self) -> &str {
        self.store.location()
    }

    fn prepare<'a>(&'a self, progress: &'a Progress, as_of: Instant) -> SourceFuture<'a, ()> {
        self.store.prepare(progress, as_of)
    }

    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>> {
        Box::pin(async move {
            if !folder.is_empty() {
                return self.store.list(&self.original(folder)?, as_of).await;
            }
            let entries = self.store.list(folder, as_of).await?;
            let named = |entry: Entry| Some(Entry { name: self.name(&entry.name)?, ..entry });
            Ok(entries.into_iter().filter_map(named).collect())
        })
    }

    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>> {
        Box::pin(async move { self.store.stat(&self.original(folder)?, as_of).await })
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, FetchedFolder> {
        Box::pin(async move {
            let folder = self.original(fetch.folder)?;
            self.store.fetch(Fetch { folder: &folder, ..fetch }).await
        })
    }

    fn locate(&self, folder: &str) -> ModelLocation {
        // Unreachable for hidden folders: callers locate only visible ones.
        self.store.locate(&self.original(folder).unwrap_or_else(|_| folder.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nereid_core::Progress;
    use nereid_core::backend_api::block_on;
    use tempfile::TempDir;

    use super::*;
    use crate::store::LocalStore;
    use crate::store::conformance::{StoreUnderTest, check_store};

    /// A folder in which `original` is called `other`.
    struct Folder(TempDir);

    impl StoreUnderTest for Folder {
        type Store = RenamedStore;

        fn store(&self) -> Self::Store {
            let store = LocalStore::new(self.0.path().to_owned());
            RenamedStore::new(Arc::new(store), [("original", "other")])
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
    fn store_passes_conformance() {
        check_store(|| Folder(tempfile::tempdir().unwrap()));
    }

    #[test]
    fn renamed_folder_is_found_only_under_its_new_name() {
        let folder = Folder(tempfile::tempdir().unwrap());
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

    #[test]
    fn folders_may_exchange_their_names() {
        let folder = Folder(tempfile::tempdir().unwrap());
        for (path, contents) in [("a/1/of-a", b"a"), ("b/1/of-b", b"b"), ("c/1/of-c", b"c")] {
            folder.put(path, contents);
        }
        for (renamed, expected) in [
            (
                vec![("a", "b"), ("b", "a")],
                vec![("a", Some("of-b")), ("b", Some("of-a")), ("c", Some("of-c"))],
            ),
            (vec![("a", "b")], vec![("a", None), ("b", Some("of-a")), ("c", Some("of-c"))]),
            (vec![("a", "a")], vec![("a", Some("of-a")), ("b", Some("of-b"))]),
            (vec![], vec![("a", Some("of-a")), ("b", Some("of-b")), ("d", None)]),
        ] {
            let store = LocalStore::new(folder.0.path().to_owned());
            let store = RenamedStore::new(Arc::new(store), renamed.clone());
            for (name, file) in expected {
                let found = block_on(store.stat(&format!("{name}/1"), Instant::now())).ok();
                let found = found.and_then(|objects| Some(objects.first()?.path.clone()));
                assert_eq!(found.as_deref(), file, "{renamed:?}: {name}");
            }
        }
    }
}
