//! Conformance tests for every kind of [`Store`].

#![allow(clippy::unwrap_used, reason = "a suite of tests")]

use std::fs;
use std::time::Instant;

use nereid_core::Progress;
use nereid_core::backend_api::{ErrorCode, block_on};

use super::{Entry, Fetch, Object, ObjectKind, Store};

/// A store that a test fills.
pub trait StoreUnderTest {
    /// The implementation under test.
    type Store: Store;

    /// Opens the store.
    fn store(&self) -> Self::Store;

    /// Writes a file, over the one that has this path.
    fn put(&self, path: &str, contents: &[u8]);

    /// Removes a file.
    fn remove(&self, path: &str);
}

/// Checks an implementation with empty stores from `make`.
pub fn check_store<T: StoreUnderTest>(make: impl Fn() -> T) {
    lists_what_is_right_below(&make());
    stats_what_is_below_at_any_depth(&make());
    stamps_differ_when_contents_do(&make());
    fetches_into_a_folder(&make());
    knows_no_other_folders(&make());
    can_be_dropped_at_any_time(&make());
}

fn names(store: &impl Store, folder: &str) -> Vec<(String, bool)> {
    let entries = block_on(store.list(folder, Instant::now())).unwrap();
    let mut names: Vec<_> = entries.into_iter().map(|Entry { name, is_folder }| (name, is_folder)).collect();
    names.sort();
    names
}

fn lists_what_is_right_below(test: &impl StoreUnderTest) {
    test.put("m/1/model.onnx", b"one");
    test.put("m/config.pbtxt", b"");
    test.put("model of spaces/1/ä.txt", b"two");
    test.put("README", b"");
    let store = test.store();
    let expected = [("README", false), ("m", true), ("model of spaces", true)];
    assert_eq!(names(&store, ""), expected.map(|(name, is_folder)| (name.to_owned(), is_folder)));
    let expected = [("1", true), ("config.pbtxt", false)];
    assert_eq!(names(&store, "m"), expected.map(|(name, is_folder)| (name.to_owned(), is_folder)));
    assert_eq!(names(&store, "model of spaces/1"), [("ä.txt".to_owned(), false)]);
    assert!(!store.location().is_empty());
}

fn stats_what_is_below_at_any_depth(test: &impl StoreUnderTest) {
    for (path, contents) in [("m/2/deep/b", "bb"), ("m/2/a", "a"), ("m/config.pbtxt", ""), ("n/1/c", "c")] {
        test.put(path, contents.as_bytes());
    }
    let objects = block_on(test.store().stat("m", Instant::now())).unwrap();
    let described: Vec<_> = objects
        .iter()
        .map(|Object { path, kind }| match kind {
            ObjectKind::Folder => format!("{path}/"),
            ObjectKind::File { size, .. } => format!("{path} {size}"),
        })
        .collect();
    assert_eq!(described, ["2/", "2/a 1", "2/deep/", "2/deep/b 2", "config.pbtxt 0"]);
}

fn stamps_differ_when_contents_do(test: &impl StoreUnderTest) {
    test.put("m/1/a", b"one");
    test.put("m/1/b", b"one");
    let store = test.store();
    let stat = || block_on(store.stat("m", Instant::now())).unwrap();
    let before = stat();
    assert_eq!(stat(), before);
    // As long as before.
    test.put("m/1/b", b"two");
    let after = stat();
    assert_eq!((&after[0], &after[1]), (&before[0], &before[1]));
    assert_ne!(after[2], before[2]);
    test.remove("m/1/b");
    assert_eq!(stat(), before[..2]);
}

fn fetches_into_a_folder(test: &impl StoreUnderTest) {
    test.put("m/config.pbtxt", b"config");
    test.put("m/1/model.onnx", b"one");
    test.put("m/2/model.onnx", b"two");
    let (store, progress) = (test.store(), Progress::default());
    let is_needed = |path: &str| !path.starts_with("2/");
    let fetched = block_on(store.fetch(Fetch {
        folder: "m",
        is_needed: &is_needed,
        progress: &progress,
        as_of: Instant::now(),
        route: None,
    }))
    .unwrap();
    for (path, contents) in [("config.pbtxt", "config"), ("1/model.onnx", "one")] {
        assert_eq!(fs::read_to_string(fetched.path.join(path)).unwrap(), contents);
    }
    let (done, total) = progress.bytes();
    assert_eq!(done, total);
    // A second fetch adds new files and keeps those of the first.
    test.put("m/2/model.onnx", b"new");
    let all =
        Fetch { folder: "m", is_needed: &|_| true, progress: &progress, as_of: Instant::now(), route: None };
    let again = block_on(store.fetch(all)).unwrap();
    assert_eq!(fs::read_to_string(again.path.join("2/model.onnx")).unwrap(), "new");
    drop(again);
    assert_eq!(fs::read_to_string(fetched.path.join("1/model.onnx")).unwrap(), "one");
}

fn knows_no_other_folders(test: &impl StoreUnderTest) {
    test.put("m/1/model.onnx", b"one");
    let store = test.store();
    for folder in ["nope", "m/2", "m/1/model.onnx", "..", "../m", "m/../..", "/etc", "/"] {
        let fetch = Fetch {
            folder,
            is_needed: &|_| true,
            progress: &Progress::default(),
            as_of: Instant::now(),
            route: None,
        };
        let errors = [
            block_on(store.list(folder, Instant::now())).unwrap_err(),
            block_on(store.stat(folder, Instant::now())).unwrap_err(),
            block_on(store.fetch(fetch)).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.code() == ErrorCode::NotFound), "{folder}: {errors:?}");
    }
}

fn can_be_dropped_at_any_time(test: &impl StoreUnderTest) {
    test.put("m/1/model.onnx", b"one");
    let store = test.store();
    drop(store.fetch(Fetch {
        folder: "m",
        is_needed: &|_| true,
        progress: &Progress::default(),
        as_of: Instant::now(),
        route: None,
    }));
    drop((store.list("", Instant::now()), store.stat("m", Instant::now())));
    assert_eq!(names(&store, "m"), [("1".to_owned(), true)]);
}
