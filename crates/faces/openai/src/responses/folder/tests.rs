//! The folder of stored answers: restarts, owners and room, removal, damage, and folders or disks that fail.

use std::fs::{FileTimes, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::Duration;

use bytes::Bytes;
use nereid_core::Principal;
use tempfile::TempDir;

use super::format::encode;
use super::*;
use crate::responses::store::{AnswerStore, Store};

/// A folder for answers.
struct Place {
    home: TempDir,
    room: u64,
}

impl Place {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), room: 1 << 20 }
    }

    fn setting(&self) -> AnswerFolder {
        AnswerFolder { path: self.home.path().join("state"), bytes: self.room }
    }

    fn open(&self) -> Folder {
        Folder::open(self.setting()).unwrap()
    }

    /// A store with this room in memory.
    fn store(&self, room: usize) -> Arc<Store> {
        AnswerStore::with_folder(room, self.setting()).0
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join("state/nereid-answers").join(name)
    }

    fn file(&self, id: &str) -> PathBuf {
        self.path(&format!("{}.answer", at(id)))
    }

    /// Places a file in the folder of answers.
    fn plant(&self, name: &str, contents: &[u8]) {
        drop(self.open());
        fs::write(self.path(name), contents).unwrap();
    }

    fn files(&self) -> Vec<(PathBuf, Metadata)> {
        let entries = fs::read_dir(self.path("")).unwrap().map(Result::unwrap);
        let files = entries.map(|entry| (entry.path(), entry.metadata().unwrap()));
        files.filter(|(path, _)| !path.ends_with(LOCK)).collect()
    }

    /// Makes a file look as old as this.
    fn age(&self, id: &str, age: Duration) {
        let times = FileTimes::new().set_modified(SystemTime::now() - age);
        File::open(self.file(id)).unwrap().set_times(times).unwrap();
    }
}

fn at(id: &str) -> Locator {
    Locator::of_answer(id)
}

fn answer(principal: Option<&str>, document: &str) -> StoredAnswer {
    StoredAnswer {
        principal: principal.map(Principal::new),
        model: "m".to_owned(),
        lora: None,
        document: Bytes::copy_from_slice(document.as_bytes()),
        turns: vec!["[1]".into(), "[2]".into()],
    }
}

fn put(folder: &Folder, id: &str, document: &str) {
    assert!(folder.put(at(id), Arc::new(answer(None, document))));
}

/// The last problem.
fn problem(folder: &Folder) -> String {
    lock(&folder.shared.problem).clone().unwrap_or_default()
}

#[test]
fn answers_outlive_the_server() {
    let place = Place::new();
    let folder = place.open();
    put(&folder, "a", "first");
    put(&folder, "b", "second");
    drop(folder);
    let folder = place.open();
    let found = folder.get(at("a")).unwrap();
    assert_eq!(format!("{found:?}"), format!("{:?}", answer(None, "first")));
    assert_eq!(folder.get(at("b")).unwrap().document, "second");
    assert!(folder.get(at("c")).is_none());
    assert_eq!(problem(&folder), "");
}

#[test]
fn files_are_for_their_owner_alone() {
    let place = Place::new();
    fs::create_dir(place.home.path().join("state")).unwrap();
    fs::set_permissions(place.home.path().join("state"), Permissions::from_mode(0o777)).unwrap();
    let folder = place.open();
    put(&folder, "a", "secret");
    drop(folder);
    assert_eq!(fs::metadata(place.path("")).unwrap().mode() & 0o777, 0o700);
    let files = place.files();
    assert_eq!((files.len(), files[0].1.mode() & 0o777), (1, 0o600));
    assert_eq!(fs::metadata(place.path(LOCK)).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn answers_belong_to_their_principal_after_a_restart_too() {
    let place = Place::new();
    let (one, other) = (Principal::new("one"), Principal::new("other"));
    let store = place.store(1 << 20);
    assert!(store.put(at("a"), answer(Some("one"), "x")) && store.put(at("b"), answer(None, "y")));
    drop(store);
    let store = place.store(1 << 20);
    for _ in 0..2 {
        for (id, principal, is_found) in [
            ("a", Some(&other), false),
            ("a", None, false),
            ("b", Some(&one), false),
            ("a", Some(&one), true),
            ("b", None, true),
        ] {
            assert_eq!(store.get(at(id), principal).is_some(), is_found, "{id} {principal:?}");
        }
    }
}

#[test]
fn answers_that_left_memory_are_read_from_files() {
    let place = Place::new();
    for memory in [0, 10_000] {
        let store = place.store(memory);
        let ids: Vec<_> = (0..20).map(|number| format!("{memory} {number}")).collect();
        for id in &ids {
            assert!(store.put(at(id), answer(None, id)), "{id}");
        }
        for id in ids.iter().chain(ids.iter().rev()) {
            assert_eq!(store.get(at(id), None).unwrap().document, id.as_bytes(), "{memory}");
        }
    }
}

#[test]
fn the_least_recently_used_files_leave_first() {
    let mut place = Place::new();
    place.room = 5 * 4096;
    let folder = place.open();
    for id in ["a", "b", "c", "d", "e"] {
        put(&folder, id, id);
    }
    folder.touch(at("a"));
    put(&folder, "f", "f");
    drop(folder);
    let left = |place: &Place| {
        let folder = place.open();
        ["a", "b", "c", "d", "e", "f"].map(|id| folder.get(at(id)).is_some())
    };
    assert_eq!(left(&place), [true, false, true, true, true, true]);
    // The order is known after a restart, too, and so is the room.
    place.age("c", Duration::from_secs(60));
    place.room = 4 * 4096;
    drop(place.open());
    assert_eq!(left(&place), [true, false, false, true, true, true]);
    let size: u64 = place.files().iter().map(|(_, metadata)| metadata.len()).sum();
    assert!(size > 0 && size <= place.room);
}

#[test]
fn answers_that_take_too_much_of_the_room_are_not_stored() {
    let mut place = Place::new();
    place.room = 16 << 10;
    let store = place.store(0);
    assert!(!store.put(at("large"), answer(None, &"x".repeat(5000))));
    assert!(store.put(at("small"), answer(None, "x")));
    assert!(store.get(at("large"), None).is_none() && store.get(at("small"), None).is_some());
}

#[test]
fn answers_expire_after_their_last_use() {
    let place = Place::new();
    let folder = place.open();
    for id in ["old", "young", "future", "used"] {
        put(&folder, id, id);
    }
    drop(folder);
    place.age("old", LIFETIME);
    place.age("young", LIFETIME - Duration::from_secs(3600));
    place.age("used", LIFETIME - Duration::from_secs(3600));
    let times = FileTimes::new().set_modified(SystemTime::now() + LIFETIME);
    File::open(place.file("future")).unwrap().set_times(times).unwrap();
    let folder = place.open();
    let found = ["old", "young", "future", "used"].map(|id| folder.get(at(id)).is_some());
    assert_eq!(found, [false, true, true, true]);
    folder.touch(at("used"));
    drop(folder);
    assert!(!place.file("old").exists());
    let used = |id: &str| fs::metadata(place.file(id)).unwrap().modified().unwrap();
    assert!(used("used") > used("young") + Duration::from_secs(3000));
}

#[test]
fn removed_answers_leave_no_file() {
    let place = Place::new();
    let store = place.store(1 << 20);
    for round in 0..50 {
        // At once, while the file is written, or when it is.
        let id = round.to_string();
        assert!(store.put(at(&id), answer(None, "x")));
        for _ in 0..round * 20 {
            thread::yield_now();
        }
        store.remove(at(&id));
        assert!(store.get(at(&id), None).is_none(), "{round}");
    }
    drop(store);
    assert_eq!(place.files().len(), 0);
}

#[test]
fn unfinished_files_of_a_killed_server_are_removed() {
    let place = Place::new();
    let contents = encode(&answer(None, "x")).unwrap();
    place.plant(&format!("{}.new", at("a")), &contents[..contents.len() / 2]);
    let folder = place.open();
    assert!(folder.get(at("a")).is_none());
    put(&folder, "a", "again");
    drop(folder);
    assert_eq!(place.files().len(), 1);
    assert_eq!(place.open().get(at("a")).unwrap().document, "again");
}

#[test]
fn damaged_files_are_removed_with_a_warning() {
    let place = Place::new();
    let contents = encode(&answer(None, "some text")).unwrap();
    for length in [0, 1, 20, 90, contents.len() - 1] {
        place.plant(&format!("{}.answer", at("a")), &contents[..length]);
        let folder = place.open();
        assert!(folder.get(at("a")).is_none(), "{length}");
        let file = place.file("a").display().to_string();
        assert_eq!(problem(&folder), format!("{file}: the stored answer is damaged, and removed"));
        assert!(!place.file("a").exists());
    }
}

#[test]
fn other_files_are_left_as_they_are() {
    let place = Place::new();
    let (foreign, newer) = (&b"a letter"[..], &b"nereid-answer 2 of a later release"[..]);
    for (id, contents) in [("a", foreign), ("b", newer)] {
        place.plant(&format!("{}.answer", at(id)), contents);
        let folder = place.open();
        assert!(folder.get(at(id)).is_none());
        assert!(problem(&folder).ends_with("not a stored answer of this release; it is left as it is"));
        drop(folder);
        assert_eq!(fs::read(place.file(id)).unwrap(), contents);
    }
    // Files with other names do not count, and neither do folders and links.
    let mut small = place;
    small.room = 4 * 4096;
    small.plant("letter.txt", &[0; 100_000]);
    small.plant("0.answer", &[0; 100_000]);
    fs::create_dir(small.file("folder")).unwrap();
    symlink("letter.txt", small.file("link")).unwrap();
    let folder = small.open();
    assert!(folder.get(at("folder")).is_none() && folder.get(at("link")).is_none());
    put(&folder, "c", "x");
    drop(folder);
    for left in [small.path("letter.txt"), small.path("0.answer"), small.file("folder"), small.file("link")] {
        assert!(left.symlink_metadata().is_ok(), "{}", left.display());
    }
    assert!(small.open().get(at("c")).is_some());
}

#[test]
fn answers_that_cannot_be_written_are_in_memory_alone() {
    let place = Place::new();
    drop(place.open());
    let partial = place.path(&format!("{}.new", at("a")));
    fs::create_dir(&partial).unwrap();
    let store = place.store(1 << 20);
    assert!(store.put(at("a"), answer(None, "kept")) && store.put(at("b"), answer(None, "written")));
    assert_eq!(store.get(at("a"), None).unwrap().document, "kept");
    drop(store);
    let store = place.store(1 << 20);
    assert!(store.get(at("a"), None).is_none());
    assert_eq!(store.get(at("b"), None).unwrap().document, "written");
}

#[test]
fn folder_that_cannot_be_used_is_done_without() {
    let place = Place::new();
    let first = place.open();
    let refused = Folder::open(place.setting()).unwrap_err();
    assert!(refused.ends_with("state/nereid-answers: another server uses it"), "{refused}");
    let store = place.store(1 << 20);
    assert!(store.put(at("a"), answer(None, "x")) && store.get(at("a"), None).is_some());
    drop(first);
    assert!(place.open().get(at("a")).is_none());

    let inner = place.path("");
    fs::set_permissions(&inner, Permissions::from_mode(0o777)).unwrap();
    assert!(Folder::open(place.setting()).unwrap_err().contains("is writable by other users"));
    let file = AnswerFolder { path: place.home.path().join("file/inner"), bytes: 1 };
    fs::write(place.home.path().join("file"), "").unwrap();
    assert!(Folder::open(file).unwrap_err().contains("Not a directory"));
}
