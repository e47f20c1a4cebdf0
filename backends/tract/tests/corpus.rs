//! Checks the fuzz target's property on every ONNX file of its corpus, and on random changes of these.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use nereid_testkit::corpus::replay;
use rustix::time::{ClockId, clock_gettime};

#[path = "../../../fuzz/onnx_properties.rs"]
mod onnx_properties;

use onnx_properties::{Random, hash, model};

/// How many changed files are tried of each.
const CHANGES: usize = 20;

/// For how many seconds of processor time other changes are tried in each run. `cargo xtask test` asks for two minutes.
const SECONDS: &str = "NEREID_FUZZ_SECONDS";

#[test]
fn the_corpus_is_served_or_refused() {
    replay("onnx", model);
}

#[test]
fn changed_files_are_served_or_refused() {
    for file in files() {
        let mut random = Random(hash(&file) | 1);
        for _ in 0..CHANGES {
            model(&changed_bytes(&file, &mut random));
        }
    }
}

#[test]
fn other_changes_in_each_run_are_served_or_refused() {
    // The backend contains thousands of panics of the engine's library: a line for each, without a backtrace.
    set_hook(Box::new(|panic| eprintln!("{panic}")));
    let seconds: i64 = std::env::var(SECONDS).map_or(2, |text| text.parse().unwrap());
    // On a busy machine others in the same time would be fewer.
    let time = || clock_gettime(ClockId::ProcessCPUTime).tv_sec;
    let (end, files, tried) = (time() + seconds, files(), AtomicUsize::new(0));
    scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut random = Random(RandomState::new().hash_one(0) | 1);
                while time() < end {
                    tried.fetch_add(1, Ordering::Relaxed);
                    let [one, other] = [0, 1].map(|_| &files[random.next() as usize % files.len()]);
                    let mut changed = exchanged(one, other, &mut random);
                    if changed == *one || random.next().is_multiple_of(2) {
                        changed = changed_bytes(&changed, &mut random);
                    }
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| model(&changed))) {
                        let kept = folder("artifacts/onnx").join(format!("changed-{:x}", hash(&changed)));
                        fs::create_dir_all(kept.parent().unwrap()).unwrap();
                        fs::write(&kept, &changed).unwrap();
                        eprintln!("{} breaks it: add it to fuzz/corpus/onnx", kept.display());
                        resume_unwind(panic);
                    }
                }
            });
        }
    });
    println!("{} changed files in {seconds} s of processor time", tried.into_inner());
}

/// A folder of `fuzz`.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(name)
}

/// The files of the corpus.
fn files() -> Vec<Vec<u8>> {
    let mut paths: Vec<_> =
        fs::read_dir(folder("corpus/onnx")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// The file with one to three bytes changed.
fn changed_bytes(file: &[u8], random: &mut Random) -> Vec<u8> {
    let mut changed = file.to_vec();
    for _ in 0..1 + random.next() % 3 {
        let at = random.next() as usize % changed.len();
        match random.next() % 4 {
            0 => changed[at] = random.next() as u8,
            1 => changed[at] ^= 1 << (random.next() % 8),
            2 => changed[at] = changed[at].wrapping_add(1),
            _ => changed[at] = [0, 1, 0x7f, 0xff][random.next() as usize % 4],
        }
    }
    changed
}

/// The first file with bytes of the second in place of its own: of the same length, or behind one another, since a message
/// that follows another is merged into it.
fn exchanged(file: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut changed = file.to_vec();
    match random.next() % 4 {
        0 => changed.extend_from_slice(other),
        1 => {
            let from = random.next() as usize % other.len();
            let length = 1 + random.next() as usize % 16.min(other.len() - from);
            let at = random.next() as usize % changed.len();
            let end = (at + length).min(changed.len());
            changed[at..end].copy_from_slice(&other[from..from + end - at]);
        }
        _ => {}
    }
    changed
}
