//! Regular files are opened; everything else is refused.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use super::*;

/// A folder with one of each thing that may be in the place of a file, by name, and what it is reported as.
fn special_files() -> (TempDir, Vec<(&'static str, Kind)>) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    mkfifoat(CWD, at("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    drop(UnixListener::bind(at("socket")).unwrap());
    symlink("/dev/zero", at("zero")).unwrap();
    symlink("/dev/tty", at("terminal")).unwrap();
    symlink("fifo", at("link to a fifo")).unwrap();
    symlink("link to a fifo", at("link to a link")).unwrap();
    let kinds = vec![
        ("directory", Kind::Directory),
        ("fifo", Kind::Fifo),
        ("socket", Kind::Socket),
        ("zero", Kind::CharacterDevice),
        ("terminal", Kind::CharacterDevice),
        ("link to a fifo", Kind::Fifo),
        ("link to a link", Kind::Fifo),
    ];
    (folder, kinds)
}

#[test]
fn only_regular_files_are_opened() {
    let (folder, kinds) = special_files();
    for (name, kind) in kinds {
        let path = folder.path().join(name);
        for outcome in
            [check(&path), open(&path).map(drop), read(&path, u64::MAX).map(drop), read_text(&path).map(drop)]
        {
            assert!(
                matches!(outcome, Err(FileError::NotRegular(found)) if found == kind),
                "{name}: {outcome:?}"
            );
        }
    }
}

#[test]
fn files_and_links_to_them_are_read_wherever_they_lead() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(elsewhere.path().join("weights"), "w").unwrap();
    symlink(elsewhere.path().join("weights"), folder.path().join("link")).unwrap();
    assert_eq!(read(&inside(folder.path(), "link").unwrap(), 1).unwrap(), b"w");
    assert_eq!(read_text(&folder.path().join("./link")).unwrap(), "w");
}

#[test]
fn a_file_that_is_not_there_is_missing_and_other_errors_are_not() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    symlink("nowhere", folder.path().join("dangling")).unwrap();
    for name in ["none", "none/below", "file/below", "dangling"] {
        let error = open(&folder.path().join(name)).unwrap_err();
        assert!(error.is_missing(), "{name}: {error}");
    }
    assert!(!open(folder.path()).unwrap_err().is_missing());
}

#[test]
fn the_limit_holds_whatever_the_system_says_of_the_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for length in [0_usize, 1, 99, 100] {
        fs::write(&path, vec![7; length]).unwrap();
        assert_eq!(read(&path, 100).unwrap().len(), length);
    }
    for length in [101, 5000] {
        fs::write(&path, vec![7; length]).unwrap();
        assert!(matches!(read(&path, 100), Err(FileError::TooLarge(100))), "{length}");
    }
    // A sparse file as long as a disk, and one whose length is reported as 0.
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(read(&path, DATA_LIMIT), Err(FileError::TooLarge(DATA_LIMIT))));
    let memory = Path::new("/proc/meminfo");
    assert!(!read(memory, 1 << 20).unwrap().is_empty());
    assert!(matches!(read(memory, 10), Err(FileError::TooLarge(10))));
}

#[test]
fn a_name_leads_out_of_no_folder() {
    let folder = Path::new("/repository/model/1");
    for name in ["model.onnx", "deep/er/model.onnx", "./model.onnx", "..model", "model..onnx", "..."] {
        assert_eq!(inside(folder, name).unwrap(), folder.join(name), "{name}");
    }
    for name in [
        "",
        ".",
        "./.",
        "/",
        "/dev/zero",
        "..",
        "../x",
        "a/../../x",
        "a/../x",
        "a/..",
        "//x",
        "/repository/model/1/x",
    ] {
        assert!(matches!(inside(folder, name), Err(FileError::Outside)), "{name}");
    }
}

#[test]
fn the_only_file_with_the_ending_of_a_missing_one_is_hinted_at() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("model.onnx");
    let hint = || hint_at_missing(&missing);
    for (name, is_hinted) in
        [("README", false), ("x.pt", false), ("mine.onnx", true), ("notes.txt", true), ("other.onnx", false)]
    {
        fs::write(folder.path().join(name), "").unwrap();
        assert_eq!(hint().contains("default_model_filename: \"mine.onnx\""), is_hinted, "{name}: {}", hint());
    }
    for name in ["mine.onnx", "other.onnx"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert_eq!(hint(), "");
    fs::write(folder.path().join("Model.ONNX"), "").unwrap();
    assert!(hint().contains("default_model_filename: \"Model.ONNX\""), "{}", hint());
    assert_eq!(hint_at_missing(Path::new("/no/such/folder/model.onnx")), "");
}

#[test]
fn a_file_of_another_format_is_hinted_at() {
    for (missing, names, expected) in [
        ("model.onnx", &["model.pkl"][..], "; the folder has 'model.pkl', a file of Python objects: convert"),
        ("model.pt", &["config.json", "model.safetensors"], "; the folder has 'model.safetensors', weights"),
        ("model.pt", &["mine.pt", "model.safetensors"], "; the only such file is 'mine.pt'"),
        ("model.pt", &["one.pt", "two.pt", "model.safetensors"], ""),
        ("model.py", &["notes.txt"], ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        let hint = hint_at_missing(&folder.path().join(missing));
        assert!(hint.starts_with(expected) && hint.is_empty() == expected.is_empty(), "{names:?}: {hint}");
    }
}
