//! Cases particular to folders: links, editors' files, and coarse clocks.

use nereid_core::Progress;
use nereid_core::backend_api::block_on;
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
fn store_passes_conformance() {
    check_store(|| tempfile::tempdir().unwrap());
}

#[test]
fn model_source_passes_conformance() {
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
fn editor_backup_files_are_skipped() {
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
fn links_to_parent_folders_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (root, elsewhere) = (folder.path(), outside.path());
    for model in [root.join("m"), elsewhere.join("linked")] {
        fs::create_dir_all(model.join("1/deep")).unwrap();
        for (link, target) in [
            ("1/to the model", model.clone()),
            ("1/deep/to the version", model.join("1")),
            ("to the repository", root.to_owned()),
            ("1/to the root", "/".into()),
            ("nowhere", "nowhere".into()),
        ] {
            std::os::unix::fs::symlink(target, model.join(link)).unwrap();
        }
        // This one leads on.
        fs::create_dir_all(elsewhere.join("data")).unwrap();
        fs::write(elsewhere.join("data/weights"), "x").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("data"), model.join("1/data")).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.join("linked"), root.join("linked")).unwrap();
    let store = folder.store();
    let below = |model: &str| block_on(store.stat(model, Instant::now())).unwrap();
    for model in ["m", "linked"] {
        let before = below(model);
        let paths: Vec<_> = before.iter().map(|object| object.path.as_str()).collect();
        let expected = [
            "1",
            "1/data",
            "1/data/weights",
            "1/deep",
            "1/deep/to the version",
            "1/to the model",
            "1/to the root",
            "to the repository",
        ];
        assert_eq!(paths, expected, "{model}");
        // A change of another model does not change this one.
        fs::create_dir_all(root.join(format!("beside {model}/1"))).unwrap();
        assert_eq!(below(model), before);
    }
}

/// Each links to the other, and neither is an ancestor.
#[test]
fn mutual_links_are_followed_once() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let others = [outside.path().join("one"), outside.path().join("two")];
    fs::create_dir(folder.path().join("m")).unwrap();
    for (other, next) in others.iter().zip(others.iter().rev()) {
        fs::create_dir(other).unwrap();
        for link in ["a", "b"] {
            std::os::unix::fs::symlink(next, other.join(link)).unwrap();
        }
    }
    std::os::unix::fs::symlink(&others[0], folder.path().join("m/1")).unwrap();
    let objects = block_on(folder.store().stat("m", Instant::now())).unwrap();
    let paths: Vec<_> = objects.iter().map(|object| object.path.as_str()).collect();
    assert_eq!(paths, ["1", "1/a", "1/a/a", "1/a/b", "1/b", "1/b/a", "1/b/b"]);
}
