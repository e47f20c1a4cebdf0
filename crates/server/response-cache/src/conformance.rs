//! Conformance tests for every [`ResponseCache`], with any storage. For tests.

#![allow(clippy::expect_used, clippy::panic, reason = "a suite of tests")]

use std::thread;
use std::time::{Duration, Instant};

use nereid_core::backend_api::{DataType, ParameterValue, Response, Tensor, block_on};

use crate::{CacheEntry, CacheKey, CacheLookup, ResponseCache};

/// Time limit until an insertion becomes visible.
const PATIENCE: Duration = Duration::from_secs(10);

/// A key of a load.
pub fn key(load: u64, number: u64) -> CacheKey {
    let mut digest = [0; 32];
    // Digests are spread evenly, like the digests of requests.
    for (place, part) in digest.chunks_mut(8).enumerate() {
        let mixed =
            (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17 * place as u32) ^ load << 50;
        part.copy_from_slice(&mixed.to_le_bytes());
    }
    CacheKey::of(load, digest)
}

/// An entry with one output of `length` bytes of that value.
pub fn entry(value: u8, length: usize) -> CacheEntry {
    let output = Tensor::new("Y", DataType::Uint8, [length as i64], vec![value; length]);
    CacheEntry::of(&Response::new(vec![output])).expect("it is in host memory")
}

/// The entry of a key.
pub fn lookup(cache: &dyn ResponseCache, key: &CacheKey) -> Option<CacheEntry> {
    match cache.lookup(key) {
        CacheLookup::Ready(found) => found,
        CacheLookup::Wait(lookup) => block_on(lookup),
    }
}

/// Waits for the entry of a key.
fn eventually(cache: &dyn ResponseCache, key: &CacheKey, wanted: impl Fn(&CacheEntry) -> bool) -> CacheEntry {
    let begin = Instant::now();
    loop {
        match lookup(cache, key).filter(&wanted) {
            Some(entry) => return entry,
            None if begin.elapsed() > PATIENCE => panic!("an entry is not found after {PATIENCE:?}"),
            None => thread::yield_now(),
        }
    }
}

/// The fate of an entry when another is inserted under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldEntries {
    /// The old entry is replaced.
    Go,
    /// The old entry may stay: libraries may refuse existing keys, as Triton's own cache does. A library's keys are
    /// valid for one run of the server, in which a key has one answer.
    MayStay,
}

/// Checks an implementation with empty caches from `make`.
pub fn check<C: ResponseCache>(old: OldEntries, make: impl Fn() -> C) {
    finds_what_was_inserted(&make());
    finds_nothing_else(&make());
    replaces(&make(), old);
    keeps_all_of_an_answer(&make());
    is_used_by_many_at_once(&make());
}

fn contents(entry: &CacheEntry) -> Vec<u8> {
    entry.response().outputs[0].contiguous().expect("it is in host memory").into_owned()
}

fn finds_what_was_inserted(cache: &dyn ResponseCache) {
    for (number, length) in [0, 1, 64, 1000, 100_000].into_iter().enumerate() {
        let key = key(1, number as u64);
        cache.insert(&key, entry(number as u8, length));
        let found = eventually(cache, &key, |_| true);
        assert_eq!(contents(&found), vec![number as u8; length]);
    }
}

fn finds_nothing_else(cache: &dyn ResponseCache) {
    assert!(lookup(cache, &key(1, 1)).is_none());
    cache.insert(&key(1, 1), entry(1, 10));
    eventually(cache, &key(1, 1), |_| true);
    assert!((2..100).all(|number| lookup(cache, &key(1, number)).is_none()));
    assert!(lookup(cache, &key(2, 1)).is_none());
}

fn replaces(cache: &dyn ResponseCache, old: OldEntries) {
    let is_entry_of = |found: &CacheEntry, value: u8| contents(found) == vec![value; usize::from(value)];
    for value in 1..5 {
        cache.insert(&key(1, 1), entry(value, usize::from(value)));
        eventually(cache, &key(1, 1), |found| match old {
            OldEntries::Go => is_entry_of(found, value),
            OldEntries::MayStay => (1..=value).any(|value| is_entry_of(found, value)),
        });
    }
}

fn keeps_all_of_an_answer(cache: &dyn ResponseCache) {
    let tensors = [
        Tensor::new("a", DataType::Fp32, [2, 1], vec![1; 8]),
        Tensor::new("", DataType::Bytes, [1], vec![2, 0, 0, 0, 65, 66]),
        Tensor::new("scalar", DataType::Int64, [], vec![3; 8]),
        Tensor::new("empty", DataType::Bool, [3, 0], vec![]),
    ];
    let mut response = Response::new(tensors.to_vec());
    let values = [
        ("flag", ParameterValue::Bool(true)),
        ("int", ParameterValue::Int(-5)),
        ("double", ParameterValue::Double(0.5)),
        ("text", ParameterValue::String("ä".into())),
    ];
    values.iter().for_each(|(name, value)| response.parameters.set(*name, value.clone()));
    cache.insert(&key(1, 1), CacheEntry::of(&response).expect("it is in host memory"));
    let found = eventually(cache, &key(1, 1), |_| true);
    assert_eq!(found.response().parameters, response.parameters);
    assert_eq!(found.response().outputs.len(), tensors.len());
    for (found, given) in found.response().outputs.iter().zip(&tensors) {
        assert_eq!(
            (&found.name, found.data_type, &found.shape),
            (&given.name, given.data_type, &given.shape)
        );
        assert_eq!(found.contiguous().expect("host"), given.contiguous().expect("host"));
    }
}

fn is_used_by_many_at_once(cache: &dyn ResponseCache) {
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for round in 0..50_u64 {
                    let key = key(1, round % 7);
                    if (round + thread).is_multiple_of(3) {
                        cache.insert(&key, entry((round % 7) as u8, 100));
                    } else if let Some(found) = lookup(cache, &key) {
                        assert_eq!(contents(&found), vec![(round % 7) as u8; 100]);
                    }
                }
            });
        }
    });
}
