//! Checks the fuzz target's property on every ONNX file of its corpus, and on random changes of these.

use std::fs;
use std::path::Path;

use nereid_testkit::corpus::replay;

#[path = "../../../fuzz/onnx_properties.rs"]
mod onnx_properties;

use onnx_properties::{Random, hash, model};

/// How many changed files are tried of each.
const CHANGES: usize = 20;

#[test]
fn the_corpus_is_served_or_refused() {
    replay("onnx", model);
}

#[test]
fn changed_files_are_served_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/onnx");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let file = fs::read(&path).unwrap();
        let mut random = Random(hash(&file) | 1);
        for _ in 0..CHANGES {
            let mut changed = file.clone();
            for _ in 0..1 + random.next() % 3 {
                let at = random.next() as usize % changed.len();
                match random.next() % 4 {
                    0 => changed[at] = random.next() as u8,
                    1 => changed[at] ^= 1 << (random.next() % 8),
                    2 => changed[at] = changed[at].wrapping_add(1),
                    _ => changed[at] = [0, 1, 0x7f, 0xff][random.next() as usize % 4],
                }
            }
            model(&changed);
        }
    }
}
