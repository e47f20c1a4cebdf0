//! Each default, separately.

use super::*;
use crate::{Stage, parse_text, to_text, validate};

fn normalised(text: &str) -> ModelConfig {
    let mut config = parse_text(text).unwrap();
    normalise(&mut config);
    config
}

/// Checks that `text` is completed to `expected`, field by field.
fn check(text: &str, expected: &str) {
    let config = normalised(text);
    let expected = parse_text(expected).unwrap();
    assert_eq!(to_text(&config), to_text(&expected));
    let mut again = config.clone();
    normalise(&mut again);
    assert_eq!(again, config, "a second call changed something");
}

#[test]
fn bare_configuration_gets_every_default() {
    check(
        r#"name: "m" backend: "mine""#,
        r#"
        name: "m" backend: "mine"
        version_policy { latest { num_versions: 1 } }
        optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
        instance_group { name: "m" kind: KIND_CPU count: 1 }
        "#,
    );
}

#[test]
fn ensemble_gets_only_a_version_policy() {
    let text = r#"name: "e" platform: "ensemble" ensemble_scheduling { step { model_name: "m" } }"#;
    check(text, &format!("{text} version_policy {{ latest {{ num_versions: 1 }} }}"));
}

#[test]
fn configured_values_are_kept() {
    let text = r#"
        name: "m" backend: "onnxruntime" platform: "onnxruntime_onnx" default_model_filename: "net.onnx"
        max_batch_size: 8
        version_policy { all { } }
        optimization { input_pinned_memory { enable: false } output_pinned_memory { } }
        instance_group { name: "g" kind: KIND_MODEL count: 3 }
        dynamic_batching { preferred_batch_size: 2 }
    "#;
    check(text, text);
    assert_eq!(normalised("version_policy { }").version_policy, Some(ModelVersionPolicy::default()));
}

/// Source: AutoCompleteBackendFields in the reference's `model_config_utils.cc`, without its lookups in the version's
/// folder.
#[test]
fn backend_platform_and_file_imply_each_other() {
    for (text, expected) in [
        (r#"backend: "onnxruntime""#, ["onnxruntime", "onnxruntime_onnx", "model.onnx"]),
        (r#"platform: "onnxruntime_onnx""#, ["onnxruntime", "onnxruntime_onnx", "model.onnx"]),
        (r#"default_model_filename: "model.onnx""#, ["onnxruntime", "onnxruntime_onnx", "model.onnx"]),
        (r#"backend: "onnxruntime" default_model_filename: "n""#, ["onnxruntime", "onnxruntime_onnx", "n"]),
        (r#"backend: "python""#, ["python", "", "model.py"]),
        (r#"default_model_filename: "model.py""#, ["python", "", "model.py"]),
        (r#"backend: "mine" platform: "onnxruntime_onnx""#, ["mine", "onnxruntime_onnx", ""]),
        (r#"platform: "pytorch_libtorch""#, ["pytorch", "pytorch_libtorch", "model.pt"]),
        (r#"backend: "pytorch""#, ["pytorch", "pytorch_libtorch", "model.pt"]),
        (r#"default_model_filename: "model.pt2""#, ["pytorch", "torch_aoti", "model.pt2"]),
        (
            r#"default_model_filename: "model.savedmodel""#,
            ["tensorflow", "tensorflow_savedmodel", "model.savedmodel"],
        ),
        (
            r#"backend: "tensorflow" default_model_filename: "model.graphdef""#,
            ["tensorflow", "tensorflow_graphdef", "model.graphdef"],
        ),
        // Validation requires the platform.
        (r#"backend: "tensorflow""#, ["tensorflow", "", ""]),
        (
            r#"backend: "mine" platform: "tensorflow_graphdef""#,
            ["mine", "tensorflow_graphdef", "model.graphdef"],
        ),
        // Still contradictory; validation reports it.
        (
            r#"platform: "onnxruntime_onnx" default_model_filename: "model.plan""#,
            ["tensorrt", "onnxruntime_onnx", "model.plan"],
        ),
        (
            r#"platform: "onnxruntime_onnx" default_model_filename: "model.savedmodel""#,
            ["onnxruntime", "onnxruntime_onnx", "model.savedmodel"],
        ),
        (r#"name: "model.custom.x""#, ["custom.x", "", "model.custom.x"]),
        (r#"name: "model.custom" backend: "mine""#, ["mine", "", ""]),
        (r#"name: "model.custom" default_model_filename: "f""#, ["", "", "f"]),
        (r#"default_model_filename: "other.bin""#, ["", "", "other.bin"]),
        ("", ["", "", ""]),
    ] {
        let config = normalised(text);
        assert_eq!([config.backend, config.platform, config.default_model_filename], expected, "{text}");
    }
}

#[test]
fn batchers_prefer_the_largest_batch() {
    let preferred = |text: &str| match normalised(text).scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => batching.preferred_batch_size,
        Some(SchedulingChoice::SequenceBatching(batching)) => match batching.strategy_choice {
            Some(StrategyChoice::Oldest(oldest)) => oldest.preferred_batch_size,
            _ => panic!("{text}"),
        },
        _ => panic!("{text}"),
    };
    assert_eq!(preferred("max_batch_size: 8 dynamic_batching { }"), [8]);
    assert_eq!(preferred("max_batch_size: 8 sequence_batching { oldest { } }"), [8]);
    assert_eq!(preferred("max_batch_size: 8 sequence_batching { oldest { preferred_batch_size: 3 } }"), [3]);
    for nothing in ["dynamic_batching { }", "max_batch_size: -1 dynamic_batching { }"] {
        assert!(preferred(nothing).is_empty(), "{nothing}");
    }
    assert_eq!(normalised("max_batch_size: 8").scheduling_choice, None, "batching is not switched on");
}

#[test]
fn sequence_idle_limit_defaults_to_one_second() {
    for (text, expected) in [
        ("sequence_batching { }", 1_000_000),
        ("sequence_batching { direct { } }", 1_000_000),
        ("sequence_batching { max_sequence_idle_microseconds: 7 }", 7),
    ] {
        let Some(SchedulingChoice::SequenceBatching(batching)) = normalised(text).scheduling_choice else {
            panic!("{text}");
        };
        assert_eq!(batching.max_sequence_idle_microseconds, expected, "{text}");
    }
}

#[test]
fn instance_groups_get_name_kind_and_count() {
    let text = r#"
        name: "m" backend: "mine"
        instance_group [ { }, { name: "g" count: 4 }, { kind: KIND_MODEL }, { kind: KIND_GPU gpus: [ 1 ] } ]
    "#;
    let config = normalised(text);
    let groups: Vec<_> =
        config.instance_group.iter().map(|group| (group.name.as_str(), group.kind(), group.count)).collect();
    assert_eq!(
        groups,
        [("m_0", Kind::Cpu, 1), ("g", Kind::Cpu, 4), ("m_2", Kind::Model, 1), ("m_3", Kind::Gpu, 1)]
    );
}

#[test]
fn onnx_models_get_two_cpu_instances() {
    let counts = |groups: &str| -> Vec<i32> {
        let config = normalised(&format!(r#"name: "m" platform: "onnxruntime_onnx" {groups}"#));
        config.instance_group.iter().map(|group| group.count).collect()
    };
    assert_eq!(counts(""), [2]);
    assert_eq!(counts("instance_group [ { }, { count: 1 }, { kind: KIND_MODEL } ]"), [2, 1, 1]);
}

#[test]
fn invalid_values_are_left_to_validation() {
    for text in [
        r#"name: "m" backend: "mine" instance_group { count: -1 }"#,
        r#"name: "m" backend: "mine" instance_group { gpus: [ 0 ] }"#,
        r#"name: "m" backend: "onnxruntime" platform: "tensorrt_plan""#,
        r#"name: "m""#,
        r#"name: "m" platform: "ensemble""#,
        r#"name: "m" backend: "mine" max_batch_size: -1 dynamic_batching { }"#,
    ] {
        assert!(validate(&normalised(text), Stage::BeforeCompletion).is_err(), "{text}");
    }
}

#[test]
fn groups_run_on_available_gpus_unless_configured_otherwise() {
    let groups_for = |text: &str, gpus: &[i32], are_default: bool| {
        let mut config = parse_text(&format!("name: 'm' backend: 'onnxruntime' {text}")).unwrap();
        let gpus = ModelGpus { numbers: gpus.to_vec(), are_default };
        normalise_for(&mut config, &gpus);
        let once = config.clone();
        normalise_for(&mut config, &gpus);
        assert_eq!(config, once);
        let group = |group: &ModelInstanceGroup| (group.kind(), group.count, group.gpus.clone());
        config.instance_group.iter().map(group).collect::<Vec<_>>()
    };
    let groups = |text: &str, gpus: &[i32]| groups_for(text, gpus, true);
    assert_eq!(groups("", &[0, 1]), [(Kind::Gpu, 1, vec![0, 1])]);
    assert_eq!(groups("instance_group { gpus: 1 }", &[0, 1]), [(Kind::Gpu, 1, vec![1])]);
    // A group with an unknown GPU falls back to the CPU, where validation refuses its list.
    assert_eq!(groups("instance_group { gpus: [ 1, 2 ] }", &[0, 1]), [(Kind::Cpu, 2, vec![1, 2])]);
    assert_eq!(groups("instance_group { kind: KIND_GPU count: 3 }", &[0]), [(Kind::Gpu, 3, vec![0])]);
    assert_eq!(groups("instance_group { kind: KIND_CPU }", &[0]), [(Kind::Cpu, 2, vec![])]);
    assert_eq!(groups("instance_group { kind: KIND_MODEL }", &[0]), [(Kind::Model, 1, vec![])]);
    assert_eq!(groups("", &[]), [(Kind::Cpu, 2, vec![])]);
    assert_eq!(groups("instance_group { kind: KIND_GPU }", &[]), [(Kind::Gpu, 1, vec![])]);
    // A backend that uses no GPU by itself may still pass on which one it got, as models in Python do.
    let group = "instance_group { kind: KIND_GPU count: 2 }";
    assert_eq!(groups_for(group, &[0, 1], false), [(Kind::Gpu, 2, vec![0, 1])]);
    assert_eq!(groups_for("instance_group { gpus: 1 }", &[0, 1], false), [(Kind::Cpu, 2, vec![1])]);
    assert_eq!(groups_for("", &[0, 1], false), [(Kind::Cpu, 2, vec![])]);
}
