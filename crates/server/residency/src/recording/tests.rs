//! Files that are missing, shared, broken, foreign, or cannot be written.

use std::os::unix::fs::symlink;
use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::memory::MemoryBytes;

fn content(number: usize) -> Content {
    Content::parse(&format!("{number:032x}")).unwrap()
}

fn record(server: u64) -> Record {
    let measured = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let memory = MemoryBytes { server, processes: 2 };
    Record {
        model: "m".to_owned(),
        memory,
        gpus: [(0, server)].into(),
        load_time: Duration::from_millis(3),
        measured,
    }
}

impl Recording {
    /// Waits until there is nothing left to write, or writing has failed.
    fn wait(&self) {
        while self.0.lock().is_writing {
            thread::yield_now();
        }
    }

    fn problem(&self) -> Option<String> {
        self.0.lock().problem.clone()
    }
}

#[test]
fn records_of_several_servers_and_runs_come_together() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("some/folder");
    let servers: Vec<_> = (0..4).map(|_| Recording::open(folder.clone())).collect();
    assert!(servers.iter().all(|(_, records)| records.is_empty()));
    thread::scope(|scope| {
        for (server, (recording, _)) in servers.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..30 {
                    recording.keep(content(server * 100 + number), record(number as u64));
                }
            });
        }
    });
    servers.iter().for_each(|(recording, _)| recording.wait());
    let (recording, records) = Recording::open(folder.clone());
    assert_eq!((records.len(), recording.problem()), (120, None));
    assert_eq!(records.get(&content(307)).unwrap().memory, MemoryBytes { server: 7, processes: 2 });
    let files: std::collections::BTreeSet<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, [FILE, LOCK].map(Into::into).into());
}

#[test]
fn a_damaged_file_is_replaced_and_a_foreign_one_left_alone() {
    let good = Records::default().to_bytes().unwrap();
    let cut = &good[..good.len() - 2];
    for (contents, is_replaced) in [
        (&b""[..], true),
        (cut, true),
        (b"mine", false),
        (br#"{"nereid_model_memory":9}"#, false),
        (br#"{"nereid_model_memory":1}"#, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        fs::write(&file, contents).unwrap();
        let (recording, records) = Recording::open(folder.path().to_owned());
        assert!(records.is_empty() && recording.problem().is_some());
        recording.keep(content(1), record(1));
        recording.wait();
        assert_eq!(fs::read(&file).unwrap() != contents, is_replaced, "{contents:?}");
        assert_eq!(recording.problem().is_none(), is_replaced, "{contents:?}");
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_a_problem_and_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "").unwrap();
    for name in ["directory", "link"] {
        fs::create_dir(path(name)).unwrap();
    }
    fs::create_dir(path("directory").join(FILE)).unwrap();
    // Endless, and not a regular file.
    symlink("/dev/zero", path("link").join(FILE)).unwrap();
    for (name, expected) in [
        ("file", "file: File exists"),
        ("file/below", "Not a directory"),
        ("directory", "not a regular file but a directory"),
        ("link", "not a regular file but a character device"),
    ] {
        let (recording, records) = Recording::open(path(name));
        assert!(records.is_empty(), "{name}");
        recording.keep(content(1), record(1));
        recording.wait();
        let problem = recording.problem().unwrap();
        assert!(problem.contains(expected) && problem.contains("not kept for the next start"), "{problem}");
    }
}

#[test]
fn records_that_could_not_be_written_are_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    fs::write(&place, "").unwrap();
    let (recording, _) = Recording::open(place.clone());
    recording.keep(content(1), record(1));
    recording.wait();
    assert!(recording.problem().is_some());
    fs::remove_file(&place).unwrap();
    recording.keep(content(2), record(2));
    recording.wait();
    assert_eq!((Recording::open(place).1.len(), recording.problem()), (2, None));
}

#[test]
fn what_a_killed_server_left_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(NEW), "half a fi").unwrap();
    let (recording, _) = Recording::open(folder.path().to_owned());
    recording.keep(content(1), record(1));
    recording.wait();
    assert!(!folder.path().join(NEW).exists());
    assert_eq!(Recording::open(folder.path().to_owned()).1.len(), 1);
}
