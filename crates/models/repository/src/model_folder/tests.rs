//! Model folders, good and bad.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use nereid_core::backend_api::ErrorCode;
use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use super::*;

const CONFIG_TEXT: &str = r#"
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }
"#;

/// A repository with one model `m`, made of these files and folders.
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
    read_with(repository, &ReadOptions::default())
}

fn read_with(repository: &TempDir, options: &ReadOptions) -> Result<ModelSpec> {
    read_model(&repository.path().join("m"), "m", options)
}

fn without_completion() -> ReadOptions {
    ReadOptions { complete: false, ..ReadOptions::default() }
}

fn named(name: &str) -> ReadOptions {
    ReadOptions { config_name: Some(name.into()), ..ReadOptions::default() }
}

#[test]
fn model_has_folder_name_latest_version_and_labels() {
    let folder = repository(
        &[("config.pbtxt", CONFIG_TEXT), ("labels.txt", "ant\nbee cat\r\n\nd:e\n"), ("7", "not a folder")],
        &["1", "10", "2", "003", "0", "v4", "+5", "6x"],
    );
    let model = read(&folder).unwrap();
    assert_eq!((model.id.name.as_str(), model.config.name.as_str()), ("m", "m"));
    assert_eq!(model.versions, [10]);
    assert_eq!(model.labels["OUTPUT0"], ["ant", "bee cat\r", "", "d:e"]);
}

#[test]
fn omitted_configuration_fields_get_defaults() {
    let folder = repository(&[("config.pbtxt", CONFIG_TEXT), ("labels.txt", "")], &["1"]);
    let config = read(&folder).unwrap().config;
    assert!(config.version_policy.is_some());
    assert_eq!(config.instance_group.len(), 1);
}

#[test]
fn version_policy_selects_versions() {
    let text = format!("{CONFIG_TEXT}\nversion_policy {{ all {{ }} }}");
    let folder = repository(&[("config.pbtxt", &text), ("labels.txt", "")], &["0", "3", "01"]);
    assert_eq!(read(&folder).unwrap().versions, [0, 3]);
    let text = format!("{CONFIG_TEXT}\nversion_policy {{ specific {{ versions: [3, 9] }} }}");
    fs::write(folder.path().join("m/config.pbtxt"), text).unwrap();
    assert_eq!(read(&folder).unwrap().versions, [3]);
}

#[test]
fn errors_name_the_file() {
    let bytes = "\u{fffd}";
    let cases = [
        (vec![("config.pbtxt", "backend: \"identity\"\nnope: 1\n")], "config.pbtxt:2:"),
        (vec![("config.pbtxt", "name: \"other\" backend: \"identity\"")], "configures model 'other'"),
        // All errors at once.
        (
            vec![("config.pbtxt", "name: \"other\" backend: \"identity\" max_batch_size: -4")],
            "config.pbtxt:1:35: field 'max_batch_size'",
        ),
        (vec![("1/mine.onnx", "")], "; the folder of version 1 has 'mine.onnx': rename it to 'model.onnx'"),
        (vec![("model.onnx", "")], "; 'model.onnx' must be in the folder of a version, as '1/model.onnx'"),
        (vec![("config.pbtxt", "max_batch_size: -1 backend: \"identity\"")], "max_batch_size"),
        (vec![("config.pbtxt", bytes)], "config.pbtxt"),
        (vec![("config.pbtxt", "max_batch_size: 4")], "model.onnx, model.xml"),
    ];
    for (files, expected) in cases {
        let folder = repository(&files, &["1"]);
        let error = read(&folder).unwrap_err();
        assert!(error.message().contains(expected), "{error} should name {expected}");
        assert!(matches!(error.code(), ErrorCode::InvalidArg | ErrorCode::NotFound));
    }
}

#[test]
fn load_time_violations_are_version_faults() {
    let dims = CONFIG_TEXT.replacen("[ -1 ]", "[ 0 ]", 1);
    let reshape = CONFIG_TEXT.replacen("[ -1 ]", "[ 4 ] reshape { shape: [ 5 ] }", 1);
    let cases = [
        (&*dims, "config.pbtxt:3:53: field 'input[0].dims[0]'"),
        (&reshape, "field 'input[0].reshape'"),
        (CONFIG_TEXT, "m/labels.txt"),
    ];
    for (text, expected) in cases {
        let folder = repository(&[("config.pbtxt", text)], &["3"]);
        let model = read(&folder).unwrap();
        assert_eq!(model.versions, [3]);
        let fault = model.fault.expect(expected);
        assert!(fault.message().contains(expected), "{fault} should name {expected}");
    }
    // Without completion, tensors are checked before versions.
    let folder = repository(&[("config.pbtxt", &dims), ("labels.txt", "")], &["3"]);
    assert!(read_with(&folder, &without_completion()).unwrap_err().message().contains("input[0].dims[0]"));
}

#[test]
fn all_errors_are_reported_with_their_lines() {
    let of =
        |text: &str| read(&repository(&[("config.pbtxt", text)], &["1"])).unwrap_err().message().to_owned();
    let unreadable = of("backend: 'identity'\nmax_batch_sise: 1\n\nplatfrom: 'x'\n");
    for expected in ["config.pbtxt:2:1: ", "'max_batch_size'", "config.pbtxt:4:1: ", "'platform'"] {
        assert!(unreadable.contains(expected), "{unreadable} should name {expected}");
    }
    let wrong = of("backend: 'identity'\nmax_batch_size: -1\ninput { name: 'X'\n  dims: [ 0 ] }\n");
    for expected in
        ["config.pbtxt:2:1: field 'max_batch_size'", "config.pbtxt:4:11: field 'input[0].dims[0]'"]
    {
        assert!(wrong.contains(expected), "{wrong} should name {expected}");
    }
}

#[test]
fn comments_in_other_encodings_are_accepted() {
    let folder = repository(&[("labels.txt", "")], &["1"]);
    let latin = [b"# caf\xe9\n", CONFIG_TEXT.as_bytes()].concat();
    fs::write(folder.path().join("m/config.pbtxt"), latin).unwrap();
    assert_eq!(read(&folder).unwrap().config.backend, "identity");
}

#[test]
fn name_and_backend_are_derived_without_a_configuration() {
    let folder = repository(&[("2/model.onnx", "")], &["2", "10", "configs"]);
    let model = read(&folder).unwrap();
    assert_eq!(model.completion, Completion::Needed);
    assert_eq!(model.versions, [10]);
    let config = model.config;
    assert_eq!((config.name.as_str(), config.backend.as_str()), ("m", "onnxruntime"));
    assert_eq!(config.default_model_filename, "model.onnx");
    assert_eq!(config.instance_group[0].count, 2);
    assert!(config.input.is_empty());
}

#[test]
fn partial_configuration_is_left_for_completion() {
    let folder = repository(&[("config.pbtxt", "max_batch_size: 3"), ("1/model.onnx", "")], &["1"]);
    let model = read(&folder).unwrap();
    assert_eq!((model.completion, model.config.max_batch_size), (Completion::Allowed, 3));
    assert_eq!(model.config.backend, "onnxruntime");
}

#[test]
fn strict_mode_requires_a_complete_configuration() {
    let folder = repository(&[("1/model.onnx", "")], &["1"]);
    let error = read_with(&folder, &without_completion()).unwrap_err();
    assert!(error.message().contains("config.pbtxt"), "{error}");
    assert!(error.message().contains("only if configurations are completed"), "{error}");

    fs::write(folder.path().join("m/config.pbtxt"), "input { name: 'X' }").unwrap();
    assert!(read(&folder).is_ok());
    let error = read_with(&folder, &without_completion()).unwrap_err();
    assert!(error.message().contains("input[0].data_type"), "{error}");
    assert!(error.message().contains("input[0].dims"), "{error}");

    fs::write(folder.path().join("m/config.pbtxt"), "max_batch_size: 4").unwrap();
    let model = read_with(&folder, &without_completion()).unwrap();
    assert_eq!((model.completion, model.config.backend.as_str()), (Completion::Off, "onnxruntime"));
}

#[test]
fn empty_folder_has_no_backend() {
    let error = read(&repository(&[], &["1"])).unwrap_err();
    assert!(
        error.message().contains("'backend' or 'platform' is required; no version folder contains"),
        "{error}"
    );
}

#[test]
fn configuration_name_selects_the_configuration() {
    let files = [
        ("configs/big.pbtxt", "max_batch_size: 64"),
        ("config.pbtxt", "max_batch_size: 1"),
        ("1/model.onnx", ""),
    ];
    let folder = repository(&files, &["1", "configs"]);
    let size = |options: &ReadOptions| read_with(&folder, options).unwrap().config.max_batch_size;
    assert_eq!(size(&named("big")), 64);
    assert_eq!(size(&ReadOptions::default()), 1);
    // A model without a configuration of that name uses its default one.
    assert_eq!(size(&named("other")), 1);
    // The usual one may be missing, with or without a named one.
    fs::remove_file(folder.path().join("m/config.pbtxt")).unwrap();
    assert_eq!(size(&named("big")), 64);
    assert_eq!(read_with(&folder, &named("big")).unwrap().completion, Completion::Allowed);
    assert_eq!(read_with(&folder, &named("other")).unwrap().completion, Completion::Needed);
}

#[test]
fn invalid_selected_configuration_is_an_error() {
    let files =
        [("configs/big.pbtxt", "max_batch_size: x"), ("config.pbtxt", CONFIG_TEXT), ("labels.txt", "")];
    let folder = repository(&files, &["1", "configs"]);
    let error = read_with(&folder, &named("big")).unwrap_err();
    assert!(error.message().contains("configs/big.pbtxt:1:"), "{error}");
    assert!(read(&folder).is_ok());
}

#[test]
fn missing_warmup_data_is_reported_with_its_field() {
    let warmup = r#"model_warmup { name: "w" batch_size: 1
        inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 3 input_data_file: "row" } } }"#;
    let text = format!("{CONFIG_TEXT} {warmup}");
    let files = [("config.pbtxt", text.as_str()), ("labels.txt", "a")];
    let error = read(&repository(&files, &["1"])).unwrap().fault.unwrap();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.message().contains(r#"model_warmup[0].inputs["INPUT0"].input_data_file"#), "{error}");
    assert!(error.message().contains("m/warmup/row"), "{error}");

    let folder = repository(&files, &["1", "warmup"]);
    fs::write(folder.path().join("m/warmup/row"), [0; 12]).unwrap();
    assert_eq!(read(&folder).unwrap().fault, None);
}

#[test]
fn a_model_runs_on_the_gpus_that_its_backend_may_use() {
    let options = ReadOptions {
        gpus: Gpus::new(vec![0, 1], |backend| backend == "onnxruntime"),
        ..ReadOptions::default()
    };
    let gpus = |files: &[(&str, &str)]| {
        let model = read_with(&repository(files, &["1"]), &options).unwrap();
        model.config.instance_group[0].gpus.clone()
    };
    // The backend comes from the configuration or from the name of the model's file.
    assert_eq!(gpus(&[("1/model.onnx", "")]), [0, 1]);
    assert_eq!(gpus(&[("config.pbtxt", "platform: 'onnxruntime_onnx'")]), [0, 1]);
    assert_eq!(gpus(&[("config.pbtxt", CONFIG_TEXT), ("labels.txt", "")]), [0; 0]);
    let on_gpus = format!("{CONFIG_TEXT} instance_group {{ kind: KIND_GPU }}");
    assert_eq!(gpus(&[("config.pbtxt", &on_gpus), ("labels.txt", "")]), [0, 1]);
}

/// A model with a file for each configuration field that names one.
const NAMING_FILES: &str = r#"
backend: "mine"
max_batch_size: 1
default_model_filename: "weights"
input { name: "I" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" }
model_warmup { name: "w" batch_size: 1 inputs { key: "I" value {
  data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "sample" } } }
sequence_batching { state { input_name: "S" output_name: "S" data_type: TYPE_FP32 dims: [ 1 ]
  initial_state { name: "s" data_type: TYPE_FP32 dims: [ 1 ] data_file: "zero" } } }
"#;

#[test]
fn special_files_are_refused_in_every_position() {
    let positions = ["config.pbtxt", "labels.txt", "warmup/sample", "initial_state/zero", "1/weights"];
    let folders = ["1", "warmup", "initial_state"];
    let files = positions.map(|path| (path, if path == "config.pbtxt" { NAMING_FILES } else { "data" }));
    let in_order = read(&repository(&files, &folders)).unwrap();
    assert!(in_order.fault.is_none(), "{:?}", in_order.fault);
    let elsewhere = tempfile::tempdir().unwrap();
    let fifo = elsewhere.path().join("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let socket = elsewhere.path().join("socket");
    drop(UnixListener::bind(&socket).unwrap());
    let specials = [
        (fifo.as_path(), "a FIFO"),
        (&socket, "a socket"),
        (Path::new("/dev/zero"), "a character device"),
        (Path::new("/dev/tty"), "a character device"),
        (elsewhere.path(), "a directory"),
    ];
    for position in positions {
        for (special, what) in specials {
            let repository = repository(&files, &folders);
            let path = repository.path().join("m").join(position);
            fs::remove_file(&path).unwrap();
            symlink(special, &path).unwrap();
            let refusal = read(&repository).map_or_else(Some, |spec| spec.fault);
            // A model may be a folder.
            if position == "1/weights" && what == "a directory" {
                assert!(refusal.is_none(), "{refusal:?}");
                continue;
            }
            let message = refusal.unwrap_or_else(|| panic!("{position}: {what}")).message().to_owned();
            assert!(message.contains(position) && message.contains(what), "{position}, {what}: {message}");
        }
    }
}

#[test]
fn oversized_configuration_is_refused() {
    let folder = repository(&[("config.pbtxt", "")], &["1"]);
    let config = fs::File::create(folder.path().join("m/config.pbtxt")).unwrap();
    config.set_len(1 << 40).unwrap();
    let message = read(&folder).unwrap_err().message().to_owned();
    assert!(message.contains("larger than 16777216 bytes"), "{message}");
}

#[test]
fn empty_version_policy_is_a_version_fault_unlike_a_broken_graph() {
    let ensemble = r#"platform: "ensemble"
        input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } EXTRA
        output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
        ensemble_scheduling { step { model_name: "n" model_version: -1
          input_map { key: "A" value: "X" } output_map { key: "B" value: "Y" } } }"#;
    let with = |extra: &str| ensemble.replace("EXTRA", extra);
    let unread = with(r#"input { name: "Z" data_type: TYPE_FP32 dims: [ 1 ] }"#);
    let unwritten = with(r#"output { name: "Z" data_type: TYPE_FP32 dims: [ 1 ] }"#);
    let wrong_shape = with("").replacen("dims: [ 1 ]", "dims: [ 0 ]", 1);
    let policy = |policy: &str| {
        format!("{CONFIG_TEXT} version_policy {{ {policy} }}").replace(r#"label_filename: "labels.txt""#, "")
    };
    let cases = [
        (with(""), None, true),
        (unread, Some("no step reads input 'Z'"), false),
        (unwritten, Some("no step writes output 'Z'"), false),
        (wrong_shape, Some("input[0].dims[0]"), true),
        (policy("latest { num_versions: 0 }"), Some("must be at least 1"), true),
        (policy("specific { }"), Some("must name at least one version"), true),
        (policy("specific { versions: [ -1 ] }"), Some("-1 is not a version number"), true),
    ];
    for (text, expected, is_fault) in &cases {
        let repository = repository(&[("config.pbtxt", text)], &["1"]);
        let found = read(&repository).map(|spec| spec.fault);
        assert_eq!(found.is_ok(), *is_fault, "{text}: {found:?}");
        let message = found.unwrap_or_else(Some).map(|error| error.message().to_owned());
        match (expected, message) {
            (None, None) => {}
            (Some(expected), Some(message)) => assert!(message.contains(expected), "{message}"),
            (expected, message) => panic!("{text}: {expected:?}, {message:?}"),
        }
    }
    let without = read_with(
        &repository(&[("config.pbtxt", &policy("latest { num_versions: 0 }"))], &["1"]),
        &without_completion(),
    );
    assert!(without.unwrap().fault.is_some());
}
