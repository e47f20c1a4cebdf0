//! The audit log: lines in order, rotation, files that cannot be written, floods of refusals.

use std::fs;

use nereid_protocol::{Action, Denied, Identity};
use serde_json::Value;

use super::*;

fn event<'a>(subject: &'a str, outcome: AuditOutcome<'a>, caller: &'a Identity) -> AuditEvent<'a> {
    let (caller, action, subject) = (Some(caller), Action::Load, Some(subject));
    AuditEvent { caller, action, subject, request: None, reason: None, outcome }
}

fn subjects(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| line["subject"].as_str().unwrap_or("omitted").to_owned()).collect()
}

#[test]
fn lines_are_in_order_and_continue_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, caller) = (folder.path().join("audit"), Identity::default());
    for round in 0..3 {
        let log = AuditLog::open(&path).unwrap();
        for number in 0..10 {
            log.record(&event(&format!("{round}-{number}"), AuditOutcome::Done, &caller));
        }
        log.close();
        assert_eq!(log.counts(), AuditCounts { written: 10, ..AuditCounts::default() });
        log.record(&event("late", AuditOutcome::Done, &caller));
        assert_eq!(log.counts().lost, 1);
    }
    let expected: Vec<_> =
        (0..3).flat_map(|round| (0..10).map(move |number| format!("{round}-{number}"))).collect();
    assert_eq!(subjects(&path), expected);
    assert!(AuditLog::open(folder.path()).unwrap_err().contains("cannot open the audit log"));
}

#[test]
fn renamed_file_is_followed_until_the_log_is_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("audit"), folder.path().join("audit.1"));
    let (log, caller) = (AuditLog::open(&path).unwrap(), Identity::default());
    log.record(&event("a", AuditOutcome::Done, &caller));
    fs::rename(&path, &old).unwrap();
    log.record(&event("b", AuditOutcome::Done, &caller));
    log.reopen();
    log.record(&event("c", AuditOutcome::Done, &caller));
    log.close();
    assert_eq!(
        (subjects(&old), subjects(&path)),
        (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()])
    );
}

#[test]
fn lines_that_cannot_be_written_are_counted_and_the_next_ones_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (path, caller) = (folder.path().join("audit"), Identity::default());
    // Every write to this device fails, as on a full disk.
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let log = AuditLog::open(&path).unwrap();
    for _ in 0..3 {
        log.record(&event("lost", AuditOutcome::Done, &caller));
    }
    log.reopen();
    while log.counts().lost < 3 {
        std::thread::yield_now();
    }
    fs::remove_file(&path).unwrap();
    // Within the middle of a line, as a write that ran out of space leaves it.
    fs::write(&path, "").unwrap();
    log.reopen();
    log.record(&event("a", AuditOutcome::Done, &caller));
    log.close();
    assert_eq!(log.counts(), AuditCounts { written: 1, lost: 3, omitted: 0 });
    assert_eq!(subjects(&path), ["a"]);
}

#[test]
fn torn_line_is_ended_before_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    fs::write(&path, "{\"torn").unwrap();
    let (file, counters) = (opened(&path).unwrap(), Arc::default());
    let mut writer = Writer { path: path.clone(), file, counters, is_torn: true, is_failing: true };
    writer.write("next".to_owned());
    writer.write("last".to_owned());
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"torn\nnext\nlast\n");
}

#[test]
fn flood_of_refusals_is_limited_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (path, caller) = (folder.path().join("audit"), Identity::default());
    let denied = Denied::Unauthenticated("no key".to_owned());
    let (log, start) = (AuditLog::open(&path).unwrap(), Instant::now());
    let refused = |at| log.record_at(&event("refused", AuditOutcome::Refused(&denied), &caller), at);
    for _ in 0..1000 {
        refused(start);
    }
    // Changes are not limited.
    log.record(&event("change", AuditOutcome::Done, &caller));
    refused(start + WINDOW);
    log.close();
    let found = subjects(&path);
    let count = |subject: &str| found.iter().filter(|found| *found == subject).count();
    assert_eq!((count("refused"), count("change"), count("omitted")), (101, 1, 1));
    assert!(fs::read_to_string(&path).unwrap().contains("\"refusals\":900"));
    assert_eq!(log.counts(), AuditCounts { written: 103, lost: 0, omitted: 900 });
}
