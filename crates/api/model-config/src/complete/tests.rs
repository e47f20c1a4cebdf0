//! The rules of completion, each with input and outcome. The outcomes match Triton's for the same models, except
//! where a test states otherwise.

use super::*;
use crate::{parse_text, to_text};

fn tensor(name: &str, dims: &[i64]) -> ModelTensor {
    ModelTensor { name: name.into(), data_type: DataType::Fp32, dims: Some(dims.into()) }
}

/// A model with an input `X` and an output `Y` of these dimensions.
fn model(input: &[i64], output: &[i64]) -> ModelTensors {
    ModelTensors { inputs: vec![tensor("X", input)], outputs: vec![tensor("Y", output)] }
}

#[track_caller]
fn completed_with(default: i32, text: &str, model: &ModelTensors) -> Result<ModelConfig, CompletionError> {
    let mut config = parse_text(text).unwrap();
    complete_tensors(&mut config, model, default).map(|()| config)
}

#[track_caller]
fn check(text: &str, model: &ModelTensors, expected: &str) {
    check_default(4, text, model, expected);
}

#[track_caller]
fn check_default(default: i32, text: &str, model: &ModelTensors, expected: &str) {
    let config = completed_with(default, text, model).unwrap();
    assert_eq!(to_text(&config), to_text(&parse_text(expected).unwrap()));
}

const THREE: &str = "input { name: 'X' data_type: TYPE_FP32 dims: [ 3 ] }
    output { name: 'Y' data_type: TYPE_FP32 dims: [ 3 ] }";

#[test]
fn model_with_only_variable_first_dimensions_batches() {
    let expected = format!("max_batch_size: 4 dynamic_batching {{ }} {THREE}");
    check("", &model(&[-1, 3], &[-1, 3]), &expected);
}

#[test]
fn one_fixed_first_dimension_prevents_batching() {
    let expected = "input { name: 'X' data_type: TYPE_FP32 dims: [ -1, 2 ] }
        output { name: 'Y' data_type: TYPE_FP32 dims: [ 4 ] }";
    check("", &model(&[-1, 2], &[4]), expected);
    let expected = "input { name: 'X' data_type: TYPE_FP32 dims: [ 2, -1 ] }
        output { name: 'Y' data_type: TYPE_FP32 dims: [ -1 ] }";
    check("", &model(&[2, -1], &[-1]), expected);
    let expected = "input { name: 'X' data_type: TYPE_FP32 dims: [ 1, 3 ] }
        output { name: 'Y' data_type: TYPE_FP32 dims: [ 1, 3 ] }";
    check("", &model(&[1, 3], &[1, 3]), expected);
}

#[test]
fn tensor_with_only_a_batch_dimension_is_reshaped_to_empty() {
    let expected = "max_batch_size: 4 dynamic_batching { }
        input { name: 'X' data_type: TYPE_FP32 dims: [ 1 ] reshape { } }
        output { name: 'Y' data_type: TYPE_FP32 dims: [ 3 ] }";
    check("", &model(&[-1], &[-1, 3]), expected);
}

#[test]
fn scalar_is_completed_with_one_dimension() {
    let expected = "input { name: 'X' data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: 'Y' data_type: TYPE_FP32 dims: [ 1 ] }";
    check("", &model(&[], &[]), expected);
}

#[test]
fn configured_batch_size_is_kept_and_enables_dynamic_batching_above_one() {
    let batching = model(&[-1, 3], &[-1, 3]);
    check("max_batch_size: 16", &batching, &format!("max_batch_size: 16 dynamic_batching {{ }} {THREE}"));
    check("max_batch_size: 1", &batching, &format!("max_batch_size: 1 {THREE}"));
}

#[test]
fn default_batch_size_of_one_or_less_disables_the_batcher() {
    let batching = model(&[-1, 3], &[-1, 3]);
    check_default(7, "", &batching, &format!("max_batch_size: 7 dynamic_batching {{ }} {THREE}"));
    check_default(1, "", &batching, &format!("max_batch_size: 1 {THREE}"));
    for none in [0, -2] {
        let expected = "input { name: 'X' data_type: TYPE_FP32 dims: [ -1, 3 ] }
            output { name: 'Y' data_type: TYPE_FP32 dims: [ -1, 3 ] }";
        check_default(none, "", &batching, expected);
    }
}

#[test]
fn batching_an_unbatched_model_is_refused() {
    let error = completed_with(4, "max_batch_size: 2", &model(&[-1, 3], &[2, 3])).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("max_batch_size is 2, but output 'Y' of the model has the dimensions [2, 3]")
    );
    assert!(completed_with(4, "max_batch_size: 1", &model(&[], &[-1])).is_err());
}

#[test]
fn configured_inputs_and_outputs_are_left_unchanged() {
    check(THREE, &model(&[-1, 3], &[-1, 3]), THREE);
    let batching = format!("max_batch_size: 9 {THREE}");
    check(&batching, &model(&[-1, 3], &[-1, 3]), &batching);
    // Completion does not check whether the list fits the model.
    check(&batching, &model(&[5], &[5]), &batching);
    let ragged = "max_batch_size: 4 batch_input { kind: BATCH_ITEM_SHAPE target_name: 'X' }
        output { name: 'Y' data_type: TYPE_FP32 dims: [ 3 ] }";
    check(ragged, &model(&[-1, 3], &[-1, 3]), ragged);
}

#[test]
fn configured_list_is_kept_and_the_other_completed() {
    let batching = model(&[-1, 3], &[-1, 3]);
    let input = "input { name: 'OTHER' data_type: TYPE_INT8 dims: [ -1 ] }";
    let output = "output { name: 'Y' data_type: TYPE_FP32 dims: [ 3 ] }";
    check(input, &batching, &format!("max_batch_size: 4 dynamic_batching {{ }} {input} {output}"));
    let input = "input { name: 'X' data_type: TYPE_FP32 dims: [ 3 ] }";
    let output = "output { name: 'Y' label_filename: 'labels.txt' }";
    check(output, &batching, &format!("max_batch_size: 4 dynamic_batching {{ }} {input} {output}"));
}

#[test]
fn configured_scheduler_is_kept() {
    let batching = model(&[-1, 3], &[-1, 3]);
    let dynamic = "dynamic_batching { max_queue_delay_microseconds: 7 }";
    check(dynamic, &batching, &format!("max_batch_size: 4 {dynamic} {THREE}"));
    let sequence = "sequence_batching { }";
    check(sequence, &batching, &format!("max_batch_size: 4 {sequence} {THREE}"));
}

/// The reference lists them as inputs, too, and then refuses the model for having too many.
#[test]
fn sequence_batcher_tensors_are_not_listed() {
    let tensors = |names: &[&str]| names.iter().map(|name| tensor(name, &[-1, 3])).collect();
    let model = ModelTensors { inputs: tensors(&["START", "X", "S"]), outputs: tensors(&["Y", "S_OUT"]) };
    let sequence = "sequence_batching {
        control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
        state { input_name: 'S' output_name: 'S_OUT' data_type: TYPE_FP32 dims: [ 3 ] } }";
    check(sequence, &model, &format!("max_batch_size: 4 {sequence} {THREE}"));
}

#[test]
fn unknown_rank_is_refused_only_if_needed() {
    let mut open = model(&[-1, 3], &[]);
    open.outputs[0].dims = None;
    let message = completed_with(4, "", &open).unwrap_err().to_string();
    assert!(message.contains("output 'Y'") && message.contains("list all outputs"), "{message}");
    let output = "output { name: 'Y' data_type: TYPE_FP32 dims: [ 3 ] }";
    // Such an output does not show whether it is batched.
    check(output, &open, &format!("input {{ name: 'X' data_type: TYPE_FP32 dims: [ -1, 3 ] }} {output}"));
}

fn entries(names: &[&str]) -> Vec<FolderEntry> {
    let entry = |name: &&str| FolderEntry {
        name: name.trim_end_matches('/').to_owned(),
        is_folder: name.ends_with('/'),
    };
    names.iter().map(entry).collect()
}

/// Backend, platform and file of a configuration, derived from version folders; a name ending in `/` is a folder.
#[track_caller]
fn check_backend(text: &str, versions: &[&[&str]], expected: [&str; 3]) {
    let mut config = parse_text(text).unwrap();
    complete_backend(&mut config, versions.iter().map(|names| entries(names)));
    let reported = [&config.backend, &config.platform, &config.default_model_filename];
    assert_eq!(reported.map(String::as_str), expected, "{text} {versions:?}");
}

#[test]
fn file_in_version_folder_implies_the_backend() {
    for (file, backend, platform) in [
        ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
        ("model.onnx/", "onnxruntime", "onnxruntime_onnx"),
        ("model.plan", "tensorrt", "tensorrt_plan"),
        ("model.graphdef", "tensorflow", "tensorflow_graphdef"),
        ("model.savedmodel/", "tensorflow", "tensorflow_savedmodel"),
        ("model.xml", "openvino", ""),
        ("model.pt", "pytorch", "pytorch_libtorch"),
        ("model.netdef", "caffe2", "caffe2_netdef"),
        ("model.gguf", "llamacpp", "gguf"),
        ("model.gguf/", "", ""),
        ("model.pt2", "pytorch", "torch_aoti"),
        ("model.py", "python", ""),
        ("model.savedmodel", "", ""),
        ("model.plan/", "", ""),
        ("weights.bin", "", ""),
    ] {
        check_backend("name: 'm'", &[&["a.txt", file]], [backend, platform, ""]);
    }
}

#[test]
fn first_recognizable_file_and_version_win() {
    check_backend("", &[&["model.py", "model.onnx"]], ["onnxruntime", "onnxruntime_onnx", ""]);
    check_backend("", &[&[], &["model.py"], &["model.onnx"]], ["python", "", ""]);
    let language: &[&str] = &["config.json", "model.safetensors", "tokenizer.json"];
    check_backend("", &[language], ["transformers", "", ""]);
    check_backend("", &[&["config.json", "model.safetensors.index.json"]], ["transformers", "", ""]);
    check_backend("", &[&["model.safetensors", "tokenizer.json"]], ["", "", ""]);
    // Files of other engines come first.
    for (file, backend, platform) in [("model.py", "python", ""), ("model.gguf", "llamacpp", "gguf")] {
        check_backend("", &[&[language, &[file]].concat()], [backend, platform, ""]);
    }
    check_backend("", &[], ["", "", ""]);
}

#[test]
fn configured_backend_is_not_completed() {
    let onnx: &[&[&str]] = &[&["model.onnx"]];
    check_backend("backend: 'mine'", onnx, ["mine", "", ""]);
    check_backend("platform: 'tensorrt_plan'", onnx, ["", "tensorrt_plan", ""]);
    check_backend("default_model_filename: 'my.bin'", onnx, ["", "", "my.bin"]);
    // TensorFlow's two forms are different platforms.
    let both: &[&[&str]] = &[&["model.onnx", "model.savedmodel/"]];
    check_backend("backend: 'tensorflow'", both, ["tensorflow", "tensorflow_savedmodel", ""]);
    check_backend("backend: 'tensorflow'", onnx, ["tensorflow", "", ""]);
}

#[test]
fn file_takes_precedence_over_the_model_name() {
    let normalised = |versions: &[&[&str]]| {
        let mut config = parse_text("name: 'model.identity'").unwrap();
        complete_backend(&mut config, versions.iter().map(|names| entries(names)));
        crate::normalise(&mut config);
        [config.backend, config.default_model_filename]
    };
    assert_eq!(normalised(&[&["model.py"]]), ["python", "model.py"]);
    assert_eq!(normalised(&[&["other.py"]]), ["identity", "model.identity"]);
}

/// Checks hints for version folders 3, 4 and so on, and for the model's folder.
#[track_caller]
fn check_hint(versions: &[&[&str]], beside: &[&str], expected: &str) {
    let folders = (3..).zip(versions.iter().map(|names| entries(names)));
    let hint = hint_at_backend(folders, &entries(beside));
    assert!(hint.contains(expected), "{versions:?} {beside:?}: {hint}");
}

#[test]
fn only_candidate_file_is_hinted_at() {
    for (file, known, setting) in [
        ("mine.onnx", "model.onnx", "platform: \"onnxruntime_onnx\""),
        ("my.first.onnx", "model.onnx", "platform: \"onnxruntime_onnx\""),
        ("mine.pt", "model.pt", "platform: \"pytorch_libtorch\""),
        ("mine.pt2", "model.pt2", "platform: \"torch_aoti\""),
        ("mine.savedmodel/", "model.savedmodel", "platform: \"tensorflow_savedmodel\""),
        ("mine.xml", "model.xml", "backend: \"openvino\""),
        ("script.py", "model.py", "backend: \"python\""),
    ] {
        let name = file.trim_end_matches('/');
        let expected = format!(
            "version 4 has '{name}': rename it to '{known}', or set {setting} and default_model_filename: \"{name}\""
        );
        check_hint(&[&["notes.txt"], &["a.txt", file, "data/"]], &["model.onnx"], &expected);
        let expected = format!("'{name}' must be in the folder of a version, as '3/{known}'");
        check_hint(&[&[]], &["config.pbtxt", "3/", file], &expected);
        check_hint(&[], &[file], &expected.replace("'3/", "'1/"));
        // With two candidates, neither is hinted at.
        let two = [file, "other.plan"];
        check_hint(&[&two], &two, "no version folder contains a file that implies one (model.graphdef, ");
    }
    for file in ["model.onnx/", "mine.savedmodel", "onnx", ".onnx.swp", "weights.bin", ""] {
        check_hint(&[&[file]], &[file], "; no version folder contains a file that implies one (");
    }
}

#[test]
fn file_of_another_format_is_hinted_at_with_its_remedy() {
    for (file, remedy) in [
        ("model.pkl", "a file of Python objects: convert the model to ONNX"),
        ("model.safetensors", "weights without the model's graph: export the model to ONNX"),
        ("model.tflite", "a TensorFlow Lite model, which OpenVINO reads: set backend: \"openvino\""),
        ("model.engine", "a TensorRT plan: rename it to 'model.plan'"),
    ] {
        let hint = format!("; the folder of version 4 has '{file}', {remedy}");
        check_hint(&[&["notes.txt"], &["config.json", file]], &["other.h5"], &hint);
        check_hint(&[&[]], &["config.pbtxt", "3/", file], &format!("; '{file}' is {remedy}"));
        // A file that only needs another name comes first.
        check_hint(&[&[file, "mine.onnx"]], &[], "rename it to 'model.onnx'");
    }
}

#[track_caller]
fn check_adoption(own: &str, completed: &str, expected: &str) {
    let mut config = parse_text(own).unwrap();
    adopt_completed(&mut config, parse_text(completed).unwrap()).unwrap();
    assert_eq!(to_text(&config), to_text(&parse_text(expected).unwrap()));
}

#[test]
fn only_completable_fields_are_adopted() {
    check_adoption(
        "name: 'm' backend: 'b' input { name: 'OLD' }",
        &format!("name: 'other' backend: 'c' max_batch_size: 5 dynamic_batching {{ }} {THREE}
            parameters {{ key: 'k' value {{ string_value: 'v' }} }} model_transaction_policy {{ decoupled: true }}"),
        &format!("name: 'm' backend: 'b' max_batch_size: 5 dynamic_batching {{ }} {THREE}
            model_transaction_policy {{ decoupled: true }}"),
    );
    let decoupled = "model_transaction_policy { decoupled: true }";
    check_adoption(decoupled, "", decoupled);
    let dynamic = "dynamic_batching { preserve_ordering: true }";
    check_adoption(dynamic, "dynamic_batching { }", dynamic);
}

#[test]
fn backend_changing_the_scheduler_is_refused() {
    for completed in ["", "sequence_batching { }"] {
        let mut config = parse_text("dynamic_batching { }").unwrap();
        let error = adopt_completed(&mut config, parse_text(completed).unwrap()).unwrap_err();
        assert!(error.to_string().contains("chooses dynamic_batching"), "{error}");
        assert_eq!(config, parse_text("dynamic_batching { }").unwrap());
    }
}

#[test]
fn completed_parameters_are_adopted_unless_configured() {
    let parameters = |pairs: &[(&str, &str)]| {
        let pair = |(key, value): &(&str, &str)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
        };
        parse_text(&pairs.iter().map(pair).collect::<String>()).unwrap()
    };
    for (configured, completed, expected) in [
        (&[][..], &[("a", "1")][..], &[("a", "1")][..]),
        (&[("a", "0")], &[("a", "1"), ("b", "2")], &[("a", "0"), ("b", "2")]),
        (&[("a", "0")], &[], &[("a", "0")]),
    ] {
        let mut config = parameters(configured);
        adopt_parameters(&mut config, &parameters(completed));
        assert_eq!(config, parameters(expected));
    }
}
