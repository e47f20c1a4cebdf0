//! Records that are written, read, merged, and damaged in every way.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

fn content() -> impl Strategy<Value = Content> {
    "[0-9a-f]{32}".prop_map(|text| Content::parse(&text).unwrap())
}

fn record() -> impl Strategy<Value = Record> {
    let gpus = btree_map(0..8, any::<u64>(), 0..3);
    (".{0,8}", any::<(u64, u64)>(), gpus, any::<u64>(), 0..50_u64).prop_map(
        |(model, (server, processes), gpus, load_ms, measured)| Record {
            model,
            memory: MemoryBytes { server, processes },
            gpus,
            load_time: Duration::from_millis(load_ms),
            measured,
        },
    )
}

fn records() -> impl Strategy<Value = Records> {
    btree_map(content(), record(), 0..12).prop_map(Records)
}

/// A change of a file's bytes.
#[derive(Clone, Debug)]
enum Change {
    Put(usize, u8),
    Remove(usize),
    Insert(usize, Vec<u8>),
    Truncate(usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        any::<(usize, u8)>().prop_map(|(at, byte)| Change::Put(at, byte)),
        any::<usize>().prop_map(Change::Remove),
        (any::<usize>(), vec(any::<u8>(), 0..6)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        any::<usize>().prop_map(Change::Truncate),
        any::<(usize, usize)>().prop_map(|(from, to)| Change::Repeat(from, to)),
    ]
}

fn changed(mut bytes: Vec<u8>, change: &Change) -> Vec<u8> {
    let length = bytes.len();
    let at = |index: &usize| index % length.max(1);
    match change {
        Change::Put(index, byte) if length > 0 => bytes[at(index)] = *byte,
        Change::Remove(index) if length > 0 => drop(bytes.remove(at(index))),
        Change::Insert(index, more) => drop(bytes.splice(at(index)..at(index), more.iter().copied())),
        Change::Truncate(index) => bytes.truncate(at(index)),
        Change::Repeat(from, to) => {
            let (from, to) = (at(from).min(at(to)), at(from).max(at(to)));
            let part = bytes[from..to].to_vec();
            drop(bytes.splice(to..to, part));
        }
        Change::Put(..) | Change::Remove(_) => {}
    }
    bytes
}

proptest! {
    #[test]
    fn records_are_read_as_they_were_written(records in records()) {
        prop_assert_eq!(Records::parse(&records.to_bytes().unwrap()), Ok(records));
    }

    #[test]
    fn damaged_files_are_refused_and_never_taken_for_other_records(
        records in records(),
        changes in vec(change(), 1..4),
    ) {
        let written = records.to_bytes().unwrap();
        let bytes = changes.iter().fold(written, changed);
        if let Ok(read) = Records::parse(&bytes) {
            prop_assert_eq!(read, records);
        }
    }

    #[test]
    fn merging_keeps_the_latest_of_each(one in records(), other in records()) {
        let mut merged = one.clone();
        merged.merge(other.clone());
        let all: std::collections::BTreeSet<_> = one.0.keys().chain(other.0.keys()).collect();
        prop_assert_eq!(merged.0.keys().collect::<std::collections::BTreeSet<_>>(), all);
        for (content, record) in &merged.0 {
            let known = [one.get(content), other.get(content)];
            prop_assert!(known.contains(&Some(record)));
            prop_assert!(known.into_iter().flatten().all(|known| known.measured <= record.measured));
        }
    }
}

#[test]
fn other_files_are_foreign_and_broken_ones_damaged() {
    let good = String::from_utf8(Records::default().to_bytes().unwrap()).unwrap();
    for (text, is_foreign) in [
        (good.replace(":1,", ":2,"), true),
        ("key: value".to_owned(), true),
        ("{}".to_owned(), true),
        ("[1]".to_owned(), true),
        ("\0\0\0".to_owned(), true),
        (String::new(), false),
        (good.replace('[', "{"), false),
        (good.replace("[]", "[{}]"), false),
        (good.replace("[]", "[ ]"), false),
        (good.replace(":1,", ":-1,"), false),
        (good[..good.len() - 1].to_owned(), false),
    ] {
        let error = Records::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error == Unreadable::Foreign, is_foreign, "{text}: {error:?}");
    }
    assert_eq!(Records::parse(good.as_bytes()), Ok(Records::default()));
}

#[test]
fn only_the_latest_records_are_kept() {
    let put = |records: &mut Records, number: usize, measured: u64| {
        let content = Content::parse(&format!("{number:032x}")).unwrap();
        let (model, memory) = (number.to_string(), MemoryBytes::default());
        records.put(
            content,
            Record { model, memory, gpus: BTreeMap::new(), load_time: Duration::ZERO, measured },
        );
    };
    let mut records = Records::default();
    (0..MOST).for_each(|number| put(&mut records, number, 100 + number as u64));
    (0..5).for_each(|number| put(&mut records, MOST + number, 1000));
    let times: Vec<_> = records.0.values().map(|record| record.measured).collect();
    assert_eq!((records.len(), times.iter().min()), (MOST, Some(&105)));
    // All of one time.
    let mut equal = Records::default();
    (0..2 * MOST).for_each(|number| put(&mut equal, number, 7));
    assert_eq!(equal.len(), MOST);
    equal.merge(records.clone());
    assert_eq!(equal.len(), MOST);
    assert!(equal.0.values().all(|record| record.measured >= 100));
}
