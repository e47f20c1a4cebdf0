//! The corpus of the fuzz targets, replayed by ordinary tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Minimum number of inputs: a property checked on fewer means little.
const FEWEST: usize = 10;

/// Holds the property of a fuzz target on every input of its corpus.
///
/// # Panics
/// If the property fails; the input is named. If the corpus is not there, or nearly empty.
pub fn replay(target: &str, property: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(paths.len() > FEWEST, "the corpus '{target}' has only {} inputs", paths.len());
    for path in paths {
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let _input = Input(path);
        property(&bytes);
    }
}

/// Names the input that a property failed on, which the failure itself cannot.
struct Input(PathBuf);

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the property failed on {}", self.0.display());
        }
    }
}
