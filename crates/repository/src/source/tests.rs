//! Models from folders, with and without what a client gives in their place.

use bytes::Bytes;
use nereid_core::backend_api::ErrorCode;
use tempfile::TempDir;

use super::*;

const CONFIG: &str = r#"backend: "identity"
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }"#;
const JSON: &str = r#"{"backend": "identity", "max_batch_size": 2,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}"#;

fn folder(models: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for model in models {
        fs::create_dir_all(folder.path().join(model).join("1")).unwrap();
        fs::write(folder.path().join(model).join("config.pbtxt"), CONFIG).unwrap();
    }
    folder
}

fn repositories(folders: &[&TempDir]) -> Repositories {
    let paths = folders.iter().map(|folder| folder.path().to_owned()).collect();
    Repositories::new(paths, ReadOptions::default())
}

fn config(json: &str) -> Overrides {
    Overrides { config: Some(json.into()), files: Vec::new() }
}

fn file(path: &str) -> Overrides {
    Overrides { config: Some(JSON.into()), files: vec![(path.into(), Bytes::from_static(b"contents"))] }
}

#[test]
fn models_are_folders_that_are_not_hidden() {
    let first = folder(&["m", ".git"]);
    fs::write(first.path().join("README"), "").unwrap();
    // One of the repositories is gone.
    let source = repositories(&[&first, &folder(&["n"])]);
    assert_eq!(source.names().unwrap_err().code(), ErrorCode::NotFound);
    let second = folder(&["n", "m"]);
    let source = repositories(&[&first, &second]);
    assert_eq!(source.names().unwrap(), ["m", "n"]);
    assert_eq!(source.read("n", &Overrides::default()).unwrap().versions, [1]);
}

#[test]
fn a_model_that_stands_twice_or_nowhere_is_refused() {
    let (first, second) = (folder(&["m"]), folder(&["m"]));
    let source = repositories(&[&first, &second]);
    let error = source.read("m", &Overrides::default()).err().unwrap();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert!(error.message().contains("more than one repository"), "{error}");
    for name in ["nope", "", ".", "..", "../m", "m/1", "/etc", ".git"] {
        let error = source.fingerprint(name).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound, "{name}");
    }
}

#[test]
fn a_configuration_may_be_given_in_place_of_the_models_own() {
    let folder = folder(&["m"]);
    let source = repositories(&[&folder]);
    let spec = source.read("m", &config(JSON)).unwrap();
    assert_eq!((spec.config.max_batch_size, spec.config.name.as_str(), spec.versions), (2, "m", vec![1]));
    assert_eq!(spec.fingerprint, source.fingerprint("m").unwrap());
    for wrong in
        ["{", r#"{"name": "other"}"#, r#"{"nothing": 1}"#, r#"{"backend": "identity", "max_batch_size": -1}"#]
    {
        assert_eq!(source.read("m", &config(wrong)).err().unwrap().code(), ErrorCode::InvalidArg, "{wrong}");
    }
}

#[test]
fn files_may_be_given_in_place_of_the_models_own_and_go_with_it() {
    let source = repositories(&[&folder(&["m"])]);
    let spec = source.read("m", &file("7/model.onnx")).unwrap();
    assert_eq!(spec.versions, [7]);
    let path = spec.directory.join("7/model.onnx");
    assert_eq!(fs::read(&path).unwrap(), b"contents");
    drop(spec);
    assert!(!path.exists());
    let without = Overrides { config: None, ..file("7/model.onnx") };
    assert!(source.read("m", &without).err().unwrap().message().contains("give 'config' as well"));
}

#[test]
fn a_file_cannot_be_put_anywhere_else() {
    let source = repositories(&[&folder(&["m"])]);
    for path in ["../evil", "1/../../evil", "/etc/evil", "", ".", "1/./../.."] {
        let error = source.read("m", &file(path)).err().unwrap();
        assert_eq!(error.code(), ErrorCode::InvalidArg, "{path}");
    }
}
