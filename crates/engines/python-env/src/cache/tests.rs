//! Entries are created once for concurrent users, and recover from any state that an earlier process left.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::*;

fn damaged(folder: &Path) -> Error {
    Error::Broken { program: folder.to_owned(), cause: "damaged".to_owned() }
}

/// Uses an entry with a single file and counts how often it is created.
fn read(cache: &Cache, made: &AtomicUsize) -> Result<String, Error> {
    let make = |folder: &Path, _: &File| {
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "the folder is empty");
        made.fetch_add(1, Relaxed);
        fs::write(folder.join("half"), "").unwrap();
        thread::yield_now();
        fs::write(folder.join("content"), "whole").unwrap();
        Ok(())
    };
    let open = |folder: &Path| fs::read_to_string(folder.join("content")).map_err(|_| damaged(folder));
    cache.entry("key").with(&make, &|_| {}, &open).map(|(content, _)| content)
}

/// Makes an entry, and keeps it in use as long as what this returns.
fn keep(cache: &Cache, key: &str) -> InUse {
    let make = |folder: &Path, _: &File| {
        fs::write(folder.join("content"), key).unwrap();
        Ok(())
    };
    cache.entry(key).with(&make, &|_| {}, &|_| Ok(())).unwrap().1
}

#[test]
fn creating_an_entry_removes_long_unused_ones() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path().to_owned());
    let age = |key: &str, days: u64| {
        let used = File::options().write(true).open(folder.path().join(format!("{key}.used"))).unwrap();
        used.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60)).unwrap();
    };
    let in_use = keep(&cache, "in use");
    for key in ["recent", "unused", "used again"] {
        drop(keep(&cache, key));
    }
    // As an earlier version left it.
    drop(keep(&cache, "without a file"));
    fs::remove_file(folder.path().join("without a file.used")).unwrap();
    for (key, days) in [("in use", 31), ("recent", 29), ("unused", 31), ("used again", 31)] {
        age(key, days);
    }
    let is_there = |key: &str| folder.path().join(key).join("env/content").is_file();
    drop(keep(&cache, "used again"));
    assert!(is_there("unused"), "nothing was made");
    let mut reported = std::cell::RefCell::new(Vec::new());
    let make = |folder: &Path, _: &File| {
        fs::write(folder.join("content"), "").unwrap();
        Ok(())
    };
    let progress = |line: &str| reported.borrow_mut().push(line.to_owned());
    cache.entry("new").with(&make, &progress, &|_| Ok(())).unwrap();
    for (key, expected) in [
        ("in use", true),
        ("recent", true),
        ("unused", false),
        ("used again", true),
        ("without a file", true),
        ("new", true),
    ] {
        assert_eq!(is_there(key), expected, "{key}");
    }
    let removed = folder.path().join("unused");
    assert_eq!(
        *reported.get_mut(),
        [format!("removed {}, which no model has used for 30 days", removed.display())]
    );
    drop(in_use);
    drop(keep(&cache, "one more"));
    assert!(!is_there("in use"));
    assert_eq!(fs::read_to_string(keep_content(&cache, "unused")).unwrap(), "unused", "it is made again");
}

/// Creates an entry if it is missing; returns its file.
fn keep_content(cache: &Cache, key: &str) -> PathBuf {
    drop(keep(cache, key));
    cache.folder.join(key).join("env/content")
}

#[test]
fn concurrent_users_create_an_entry_once() {
    let folder = tempfile::tempdir().unwrap();
    let made = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cache = Cache::new(folder.path().join("deep/cache"));
                assert_eq!(read(&cache, &made).unwrap(), "whole");
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
}

#[test]
fn interrupted_entry_is_recreated() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path().to_owned());
    let at = |name: &str| folder.path().join("key").join(name);
    let made = AtomicUsize::new(0);
    read(&cache, &made).unwrap();
    let damages: [&dyn Fn(); 5] = [
        &|| fs::remove_file(at("complete")).unwrap(),
        &|| fs::remove_file(at("env/content")).unwrap(),
        &|| fs::remove_dir_all(at("env")).unwrap(),
        &|| fs::remove_dir_all(folder.path().join("key")).unwrap(),
        &|| {
            fs::remove_dir_all(folder.path().join("key")).unwrap();
            fs::create_dir_all(at("env/deep/folder")).unwrap();
        },
    ];
    for (index, damage) in damages.iter().enumerate() {
        damage();
        assert_eq!(read(&cache, &made).unwrap(), "whole");
        assert_eq!(made.load(Relaxed), index + 2, "damage {index}");
    }
    read(&cache, &made).unwrap();
    assert_eq!(made.load(Relaxed), damages.len() + 1);
}

#[test]
fn failed_entry_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path().to_owned());
    let fill = |folder: &Path, _: &File| fs::write(folder.join("file"), "").map_err(Error::io("file"));
    let fail = |folder: &Path, lock: &File| fill(folder, lock).and(Err(damaged(folder)));
    let open = |folder: &Path| Err::<(), _>(damaged(folder));
    for _ in 0..3 {
        assert!(cache.entry("key").with(&fail, &|_| {}, &|_| Ok(())).is_err());
        assert!(!folder.path().join("key").exists());
        assert!(cache.entry("key").with(&fill, &|_| {}, &open).is_err());
        assert!(!folder.path().join("key").exists());
    }
    // An error other than damage keeps an entry that was complete before.
    cache.entry("key").with(&fill, &|_| {}, &|_| Ok(())).unwrap();
    let refuse = |_: &Path| {
        Err::<(), _>(Error::NoActivation(PathBuf::new()))
            .map_err(|_| Error::Io { what: "busy".to_owned(), cause: io::Error::other("busy") })
    };
    assert!(cache.entry("key").with(&fail, &|_| {}, &refuse).is_err());
    assert!(folder.path().join("key/env/file").exists());
}

#[test]
fn a_digest_follows_the_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let digests = Digests::default();
    fs::write(&path, "abc").unwrap();
    let first = digests.of(&path).unwrap();
    // The beginning of SHA-256's well-known example.
    assert_eq!(first, "ba7816bf8f01cfea414140de5dae2223");
    assert_eq!(digests.of(&path).unwrap(), first);
    fs::write(&path, "abcd").unwrap();
    assert_ne!(digests.of(&path).unwrap(), first);
    assert!(digests.of(folder.path()).unwrap_err().to_string().contains("not a regular file"));
}
