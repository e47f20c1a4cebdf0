//! Checks the fuzz target's property on every ONNX file of its corpus, and on random changes of these.

use std::alloc::System;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use cap::Cap;
use nereid_testkit::corpus::replay;
use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{GraphProto, ModelProto, TensorProto};

#[path = "../../../../fuzz/onnx_properties.rs"]
mod onnx_properties;

use onnx_properties::{Random, hash, model};

/// Ends the tests when models take far more memory than they may.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Several times what the tensors of a model may take.
const MEMORY_OF_A_MODEL: usize = 256 << 20;

/// Numbers that a size, an axis or a count had better not be.
const NUMBERS: [i64; 10] = [0, 1, -1, 3, 257, 65_537, 1 << 24, 1 << 30, -(1 << 30), i64::MAX];

/// How many numbers of a constant are exchanged: one that holds sizes, axes or a count has few.
const FEW: usize = 16;

/// How many changed files are tried of each.
const CHANGES: usize = 20;

/// For how many seconds of processor time other changes are tried in each run. `cargo xtask test` sets two minutes.
const SECONDS: &str = "NEREID_FUZZ_SECONDS";

#[test]
fn the_corpus_is_served_or_refused() {
    limit_memory();
    replay("onnx", model);
}

#[test]
fn changed_files_are_served_or_refused() {
    limit_memory();
    for file in files() {
        let mut random = Random(hash(&file) | 1);
        for _ in 0..CHANGES {
            model(&changed_bytes(&file, &mut random));
        }
    }
}

#[test]
fn constants_without_elements_are_served_or_refused() {
    limit_memory();
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
    limit_memory();
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
                    if random.next().is_multiple_of(4) {
                        changed = renumbered(&changed, &mut random).unwrap_or(changed);
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

/// Limits memory to the needs of a model for each thread of a test, and for each test that runs with it.
fn limit_memory() {
    // Once: of two tests that set it at the same time, one would fail.
    static LIMITED: Once = Once::new();
    LIMITED.call_once(|| {
        let threads = available_parallelism().map_or(1, usize::from);
        MEMORY.set_limit(2 * threads * MEMORY_OF_A_MODEL).expect("they have not taken that much yet");
    });
}

/// A folder of `fuzz`.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz").join(name)
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

/// The file with one or two of its numbers exchanged. None if it has none.
fn renumbered(file: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut model = ModelProto::decode(file).ok()?;
    for _ in 0..1 + random.next() % 2 {
        let mut numbers = numbers(&mut model);
        let number = random.next() as usize % numbers.len().max(1);
        numbers.get_mut(number)?.set(NUMBERS[random.next() as usize % NUMBERS.len()]);
    }
    Some(model.encode_to_vec())
}

/// A number in a file.
enum Number<'a> {
    Whole(&'a mut i64),
    Real(&'a mut f32),
    WholeBytes(&'a mut [u8]),
    RealBytes(&'a mut [u8]),
}

impl Number<'_> {
    fn set(&mut self, value: i64) {
        match self {
            Self::Whole(number) => **number = value,
            Self::Real(number) => **number = value as f32,
            Self::WholeBytes(bytes) => bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]),
            Self::RealBytes(bytes) => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
        }
    }
}

/// The numbers of attributes, and the first ones of constants.
fn numbers(model: &mut ModelProto) -> Vec<Number<'_>> {
    let Some(GraphProto { initializer, node, .. }) = &mut model.graph else { return Vec::new() };
    let mut numbers = Vec::new();
    let mut constants: Vec<_> = initializer.iter_mut().collect();
    for attribute in node.iter_mut().flat_map(|node| &mut node.attribute) {
        match AttributeType::try_from(attribute.r#type) {
            Ok(AttributeType::Int) => numbers.push(Number::Whole(&mut attribute.i)),
            Ok(AttributeType::Float) => numbers.push(Number::Real(&mut attribute.f)),
            _ => {}
        }
        numbers.extend(attribute.ints.iter_mut().map(Number::Whole));
        numbers.extend(attribute.floats.iter_mut().map(Number::Real));
        constants.extend(attribute.t.as_mut());
    }
    for constant in constants {
        numbers.extend(constant.int64_data.iter_mut().take(FEW).map(Number::Whole));
        numbers.extend(constant.float_data.iter_mut().take(FEW).map(Number::Real));
        let raw = &mut constant.raw_data;
        match Element::try_from(constant.data_type) {
            Ok(Element::Int64) => numbers.extend(raw.chunks_exact_mut(8).take(FEW).map(Number::WholeBytes)),
            Ok(Element::Int32) => numbers.extend(raw.chunks_exact_mut(4).take(FEW).map(Number::WholeBytes)),
            Ok(Element::Float) => numbers.extend(raw.chunks_exact_mut(4).take(FEW).map(Number::RealBytes)),
            _ => {}
        }
    }
    numbers
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
