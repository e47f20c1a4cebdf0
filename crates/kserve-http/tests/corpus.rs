//! Checks the fuzz targets' properties on every input of their corpus. An input that once broke one belongs there, too.

#[path = "../../../fuzz/http_properties.rs"]
mod http_properties;

use std::fs;
use std::path::Path;

/// Names the input on which a property fails, which the panic itself cannot.
fn replay(name: &str, property: fn(&[u8])) {
    struct Input(std::path::PathBuf);
    impl Drop for Input {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the property failed on {}", self.0.display());
            }
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let inputs: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(inputs.len() > 10, "the corpus '{name}' has only {} inputs", inputs.len());
    for path in inputs {
        let bytes = fs::read(&path).unwrap();
        let _input = Input(path);
        property(&bytes);
    }
}

#[test]
fn the_corpus_is_read_as_inference_requests() {
    replay("infer", http_properties::infer);
}

#[test]
fn the_corpus_is_read_as_generate_requests() {
    replay("generate", http_properties::generate);
}
