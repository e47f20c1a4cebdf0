//! Model folders as people make them, good and bad.

use std::fs;

use nereid_core::backend_api::ErrorCode;
use tempfile::TempDir;

use super::*;
use crate::LocalRepository;

const CONFIG_TEXT: &str = r#"
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }
"#;

/// A repository that holds one model `m`, made of these files and folders.
fn repository(files: &[(&str, &str)], folders: &[&str]) -> TempDir {
    let repository = tempfile::tempdir().unwrap();
    for folder in folders {
        fs::create_dir_all(repository.path().join("m").join(folder)).unwrap();
    }
    for (file, text) in files {
        fs::write(repository.path().join("m").join(file), text).unwrap();
    }
    repository
}

fn read(repository: &TempDir) -> Result<ModelSpec> {
    read_model(&repository.path().join("m"), "m")
}

#[test]
fn a_model_has_its_folders_name_its_latest_version_and_its_labels() {
    let folder = repository(
        &[("config.pbtxt", CONFIG_TEXT), ("labels.txt", "ant\nbee cat\r\nd:e\n"), ("7", "not a folder")],
        &["1", "10", "2", "003", "0", "v4", "+5", "6x"],
    );
    let model = read(&folder).unwrap();
    assert_eq!((model.name.as_str(), model.config.name.as_str()), ("m", "m"));
    assert_eq!(model.versions, [10]);
    assert_eq!(model.labels["OUTPUT0"], ["ant", "bee cat", "d:e"]);
}

#[test]
fn what_the_configuration_leaves_out_is_filled_in() {
    let folder = repository(&[("config.pbtxt", CONFIG_TEXT), ("labels.txt", "")], &["1"]);
    let config = read(&folder).unwrap().config;
    assert!(config.version_policy.is_some());
    assert_eq!(config.instance_group.len(), 1);
}

#[test]
fn the_version_policy_chooses() {
    let text = format!("{CONFIG_TEXT}\nversion_policy {{ all {{ }} }}");
    let folder = repository(&[("config.pbtxt", &text), ("labels.txt", "")], &["0", "3", "01"]);
    assert_eq!(read(&folder).unwrap().versions, [0, 3]);
    let text = format!("{CONFIG_TEXT}\nversion_policy {{ specific {{ versions: [3, 9] }} }}");
    fs::write(folder.path().join("m/config.pbtxt"), text).unwrap();
    assert_eq!(read(&folder).unwrap().versions, [3]);
}

#[test]
fn what_is_wrong_is_said_with_its_file() {
    let bytes = "\u{fffd}";
    let cases = [
        (vec![], "config.pbtxt"),
        (vec![("config.pbtxt", "backend: \"identity\"\nnope: 1\n")], "config.pbtxt:2:"),
        (vec![("config.pbtxt", "name: \"other\" backend: \"identity\"")], "a model named 'other'"),
        (vec![("config.pbtxt", "max_batch_size: -1 backend: \"identity\"")], "max_batch_size"),
        (vec![("config.pbtxt", CONFIG_TEXT)], "labels.txt"),
        (vec![("config.pbtxt", bytes)], "config.pbtxt"),
    ];
    for (files, expected) in cases {
        let folder = repository(&files, &["1"]);
        let error = read(&folder).unwrap_err();
        assert!(error.message().contains(expected), "{error} should name {expected}");
        assert!(matches!(error.code(), ErrorCode::InvalidArg | ErrorCode::NotFound));
    }
}

#[test]
fn a_comment_in_another_encoding_does_no_harm() {
    let folder = repository(&[("labels.txt", "")], &["1"]);
    let latin = [b"# caf\xe9\n", CONFIG_TEXT.as_bytes()].concat();
    fs::write(folder.path().join("m/config.pbtxt"), latin).unwrap();
    assert_eq!(read(&folder).unwrap().config.backend, "identity");
}

#[test]
fn a_repository_gives_good_and_bad_models_and_passes_over_the_rest() {
    let folder = repository(&[("config.pbtxt", CONFIG_TEXT), ("labels.txt", "")], &["1"]);
    fs::create_dir(folder.path().join("bad")).unwrap();
    fs::create_dir(folder.path().join(".git")).unwrap();
    fs::write(folder.path().join("README"), "").unwrap();
    let models = LocalRepository::new(folder.path()).models().unwrap();
    let found: Vec<_> = models.iter().map(|(name, model)| (name.as_str(), model.is_ok())).collect();
    assert_eq!(found, [("bad", false), ("m", true)]);
}

#[test]
fn a_repository_that_is_not_there_is_an_error() {
    let error = LocalRepository::new("no/such/folder").models().unwrap_err();
    assert!(error.message().contains("no/such/folder"), "{error}");
}
