//! Folders of load requests: private, removed at shutdown, or by a later server after a crash.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, symlink};

use bytes::Bytes;
use nereid_private_folders::{LOCK, UNLOCKED};

use super::*;

fn overrides(files: &[&str]) -> Overrides {
    let files = files.iter().map(|path| (PathBuf::from(path), Bytes::from_static(b"contents"))).collect();
    Overrides { config: Some("{}".into()), files }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn kept_files_are_private_and_removed_with_the_last_load() {
    let temporary = tempfile::tempdir().unwrap();
    let sent = SentFiles::new(temporary.path().to_owned());
    assert_eq!(names(temporary.path()), [""; 0]);
    let mut loads: Vec<_> =
        (0..3).map(|_| sent.keep("m", &overrides(&["1/a", "1/deep/b"])).unwrap()).collect();
    let [own] = names(temporary.path()).try_into().unwrap();
    for (path, _, _) in &loads {
        assert!(path.starts_with(temporary.path().join(&own)));
        assert_eq!(fs::read(path.join("1/deep/b")).unwrap(), b"contents");
        for folder in [path.as_path(), path.parent().unwrap()] {
            assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700, "{}", folder.display());
        }
    }
    let (path, guard, _) = loads.swap_remove(0);
    drop(guard);
    assert!(!path.exists());
    drop(sent);
    assert!(loads.iter().all(|(path, ..)| path.exists()));
    drop(loads);
    assert_eq!(names(temporary.path()), [""; 0]);
}

#[test]
fn remove_deletes_files_still_in_use() {
    let temporary = tempfile::tempdir().unwrap();
    let sent = SentFiles::new(temporary.path().to_owned());
    let (_, _guard, _) = sent.keep("m", &overrides(&["1/a"])).unwrap();
    sent.clone().remove();
    assert_eq!(names(temporary.path()), [""; 0]);
    sent.remove();
}

#[test]
fn a_folder_that_somebody_removed_is_made_again() {
    let temporary = tempfile::tempdir().unwrap();
    let sent = SentFiles::new(temporary.path().to_owned());
    let mut loads = Vec::new();
    for round in 0..3 {
        loads.push(sent.keep("m", &overrides(&["1/a"])).unwrap());
        let (path, _guard) = sent.folder().unwrap();
        assert!(path.is_dir() && loads[round].0.join("1/a").is_file());
        let [own] = names(temporary.path()).try_into().unwrap();
        fs::remove_dir_all(temporary.path().join(own)).unwrap();
    }
    let (path, ..) = sent.keep("m", &overrides(&["1/a"])).unwrap();
    drop(loads);
    assert!(!path.exists(), "its guard is dropped");
    let kept = sent.keep("m", &overrides(&["1/a"])).unwrap();
    drop(sent);
    assert!(kept.0.exists());
    drop(kept);
    assert_eq!(names(temporary.path()), [""; 0]);
}

#[test]
fn refused_load_leaves_only_the_lock_file() {
    let temporary = tempfile::tempdir().unwrap();
    let sent = SentFiles::new(temporary.path().to_owned());
    for files in [&["../a"][..], &["1/a", "/b"], &["1/a", "1/a/b"]] {
        sent.keep("m", &overrides(files)).unwrap_err();
        let [own] = names(temporary.path()).try_into().unwrap();
        assert_eq!(names(&temporary.path().join(own)), [LOCK], "{files:?}");
    }
}

#[test]
fn only_folders_of_dead_servers_are_removed() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    let living = SentFiles::new(temporary.path().to_owned());
    let (path, _guard, _) = living.keep("m", &overrides(&["1/a"])).unwrap();
    // The state left by a killed server: the lock file exists, but is not locked.
    let killed = at("nereid-sent-killed");
    fs::create_dir_all(killed.join("load/1")).unwrap();
    fs::write(killed.join("load/1/model.onnx"), "weights").unwrap();
    File::create(killed.join(LOCK)).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    File::create(elsewhere.path().join(LOCK)).unwrap();
    symlink(elsewhere.path(), at("nereid-sent-link")).unwrap();
    symlink(elsewhere.path(), killed.join("load/link")).unwrap();
    fs::create_dir(at("nereid-sent-young")).unwrap();
    let old = at("nereid-sent-old");
    fs::create_dir(&old).unwrap();
    File::open(&old).unwrap().set_modified(std::time::SystemTime::now() - 2 * UNLOCKED).unwrap();
    fs::create_dir(at("others")).unwrap();
    File::create(at("others").join(LOCK)).unwrap();
    File::create(at("nereid-sent-file")).unwrap();
    SentFiles::new(temporary.path().to_owned()).remove_left_over();
    assert!(!killed.exists() && !old.exists());
    for kept in ["nereid-sent-link", "nereid-sent-young", "others", "nereid-sent-file"] {
        assert!(at(kept).exists(), "{kept}");
    }
    assert!(elsewhere.path().join(LOCK).exists());
    assert!(path.join("1/a").exists());
}
