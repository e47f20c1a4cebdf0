//! What is particular about folders: links, editors' files, and clocks that tick slowly.

use nereid_core::{Progress, block_on};
use tempfile::TempDir;

use super::*;
use crate::source::conformance::check_source;
use crate::store::conformance::{StoreUnderTest, check_store};

impl StoreUnderTest for TempDir {
    type Store = LocalStore;

    fn store(&self) -> LocalStore {
        LocalStore::new(self.path().to_owned())
    }

    fn put(&self, path: &str, contents: &[u8]) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.path().join(path)).unwrap();
    }
}

#[test]
fn it_is_a_store() {
    check_store(|| tempfile::tempdir().unwrap());
}

#[test]
fn models_come_from_it() {
    check_source(|| tempfile::tempdir().unwrap());
}

#[test]
fn a_folder_is_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    folder.put("m/1/model.onnx", b"contents");
    let fetch = Fetch {
        folder: "m",
        is_needed: &|_| true,
        progress: &Progress::default(),
        as_of: Instant::now(),
        route: None,
    };
    assert_eq!(block_on(folder.store().fetch(fetch)).unwrap().path, folder.path().join("m"));
}

#[test]
fn files_that_editors_leave_behind_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    folder.put("m/config.pbtxt", b"a");
    let before = block_on(folder.store().stat("m", Instant::now())).unwrap();
    folder.put("m/.config.pbtxt.swp", b"an editor's");
    folder.put("m/config.pbtxt~", b"an editor's");
    assert_eq!(block_on(folder.store().stat("m", Instant::now())).unwrap(), before);
}

#[test]
fn small_files_of_the_same_size_and_time_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.pbtxt");
    fs::write(&path, "a").unwrap();
    let tied = fs::metadata(&path).unwrap();
    // As if both were written within one tick of the clock.
    let stamp_of = |text: &str| {
        fs::write(&path, text).unwrap();
        stamp(&path, &tied)
    };
    assert_ne!(stamp_of("a"), stamp_of("b"));
    assert_eq!(stamp_of("b"), stamp_of("b"));
}

#[test]
fn a_link_that_leads_back_is_followed_only_so_deep() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("m/1")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("m"), folder.path().join("m/1/back")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("m/broken")).unwrap();
    let store = folder.store();
    assert_eq!(
        block_on(store.stat("m", Instant::now())).unwrap(),
        block_on(store.stat("m", Instant::now())).unwrap()
    );
}
