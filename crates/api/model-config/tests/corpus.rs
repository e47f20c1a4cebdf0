//! Checks the fuzz targets' properties on every input of their corpus. Inputs that once broke one belong there.

#[path = "../../../../fuzz/properties.rs"]
mod properties;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Every file of the target's corpus, with its path: its own files, and other tests' configurations.
fn corpus(name: &str, ending: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let own = root().join("fuzz/corpus").join(name);
    let others = root().join("crates/api/model-config/tests/configs");
    let folders = [own, others.join("recorded"), others.join("by_rule")];
    let paths = folders.iter().flat_map(|folder| {
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    });
    let paths = paths.map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.extension().is_some_and(|found| found == ending));
    paths.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

/// Prints the input on which a property failed, which the failure itself does not contain.
fn replay(name: &str, ending: &str, property: fn(&[u8])) {
    struct Input<'a>(&'a Path);
    impl Drop for Input<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the property failed on {}", self.0.display());
            }
        }
    }
    let inputs = corpus(name, ending);
    assert!(inputs.len() > 10, "the corpus '{name}' has only {} inputs", inputs.len());
    for (path, bytes) in &inputs {
        let _input = Input(path);
        property(bytes);
    }
}

#[test]
fn corpus_is_read_as_text() {
    replay("config", "pbtxt", properties::text);
}

#[test]
fn corpus_is_normalised_and_validated() {
    replay("config", "pbtxt", properties::config);
}

#[test]
fn corpus_is_read_as_json() {
    replay("json", "json", properties::json);
}

/// The fuzzer mutates existing inputs; a field that no input contains would take luck to find.
#[test]
fn corpus_covers_every_field_of_the_schema() {
    let texts: String = corpus("config", "pbtxt")
        .iter()
        .map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
        .collect();
    let schema = fs::read_to_string(root().join("proto/model_config.proto")).unwrap();
    // A line of a field: its type, its name, an equals sign, its number and a semicolon.
    let fields: Vec<_> = schema
        .lines()
        .filter(|line| !line.trim_start().starts_with("//") && line.contains(';'))
        .filter_map(|line| line.split_once(" = ")?.0.rsplit_once(' '))
        .filter(|(kind, _)| !kind.trim().is_empty())
        .map(|(_, name)| name)
        .filter(|name| *name == name.to_lowercase())
        .collect();
    assert!(fields.len() > 150, "only {} fields were found in the schema", fields.len());
    for field in fields {
        assert!(texts.contains(&format!("{field} {{")) || texts.contains(&format!("{field}:")), "{field}");
    }
}
