//! Checks the fuzz target's property on every ONNX file of its corpus, and on random changes of these.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use nereid_testkit::corpus::replay;
use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};
use tract_onnx::pb::{GraphProto, ModelProto, TensorProto};

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
fn constants_without_elements_are_served_or_refused() {
    for file in files() {
        let count = constants(&mut ModelProto::decode(&*file).unwrap()).len();
        for number in 0..count {
            // The shape without elements that has one dimension, and those that have its own but for one.
            for axis in 0..5 {
                let changed = emptied(&file, number, axis);
                changed.into_iter().for_each(|changed| model(&changed));
            }
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
    let artifacts = folder("artifacts/onnx");
    fs::create_dir_all(&artifacts).unwrap();
    scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut random = Random(RandomState::new().hash_one(0) | 1);
                while time() < end {
                    tried.fetch_add(1, Ordering::Relaxed);
                    let [one, other] = [0, 1].map(|_| &files[random.next() as usize % files.len()]);
                    let mut changed = exchanged(one, other, &mut random);
                    if random.next().is_multiple_of(8) {
                        let [number, axis] = [random.next() as usize % 4, random.next() as usize % 5];
                        changed = emptied(&changed, number, axis).unwrap_or(changed);
                    }
                    if changed == *one || random.next().is_multiple_of(2) {
                        changed = changed_bytes(&changed, &mut random);
                    }
                    // It stays where it is if it ends the process.
                    let kept = artifacts.join(format!("changed-{:x}", hash(&changed)));
                    fs::write(&kept, &changed).unwrap();
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| model(&changed))) {
                        eprintln!("{} breaks it: add it to fuzz/corpus/onnx", kept.display());
                        resume_unwind(panic);
                    }
                    // Another thread may have tried the same.
                    let _ = fs::remove_file(kept);
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

/// The file with one of its constants without elements: one of its dimensions is 0, or, past these, that is its only one.
/// None if it has no such constant or dimension.
fn emptied(file: &[u8], number: usize, axis: usize) -> Option<Vec<u8>> {
    let mut model = ModelProto::decode(file).ok()?;
    let constant = constants(&mut model).into_iter().nth(number)?;
    match axis.checked_sub(constant.dims.len()) {
        None => constant.dims[axis] = 0,
        Some(0) => constant.dims = vec![0],
        Some(_) => return None,
    }
    let TensorProto { name, dims, data_type, .. } = std::mem::take(constant);
    *constant = TensorProto { name, dims, data_type, ..TensorProto::default() };
    Some(model.encode_to_vec())
}

/// The constants of a file.
fn constants(model: &mut ModelProto) -> Vec<&mut TensorProto> {
    let Some(GraphProto { initializer, node, .. }) = &mut model.graph else { return Vec::new() };
    let attributes = node.iter_mut().flat_map(|node| &mut node.attribute);
    initializer.iter_mut().chain(attributes.filter_map(|attribute| attribute.t.as_mut())).collect()
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
