//! Small configurations and their JSON.

use serde_json::{Value as Json, json};

use super::*;
use crate::parse_text;

fn json_of(text: &str) -> Json {
    serde_json::from_str(&to_json(&parse_text(text).unwrap())).unwrap()
}

#[test]
fn empty_configuration_writes_plain_fields_and_no_messages() {
    let expected = json!({
        "name": "", "platform": "", "backend": "", "runtime": "", "max_batch_size": 0,
        "input": [], "output": [], "batch_input": [], "batch_output": [], "instance_group": [],
        "model_warmup": [], "default_model_filename": "", "cc_model_filenames": {}, "parameters": {},
        "metric_tags": {},
    });
    assert_eq!(json_of(""), expected);
}

#[test]
fn set_messages_write_their_defaults() {
    let config =
        json_of("response_cache { } optimization { } version_policy { all { } } dynamic_batching { }");
    assert_eq!(config["response_cache"], json!({ "enable": false }));
    let expected = json!({ "priority": "PRIORITY_DEFAULT", "gather_kernel_buffer_threshold": 0, "eager_batching": false });
    assert_eq!(config["optimization"], expected);
    assert_eq!(config["version_policy"], json!({ "all": {} }));
    let expected = json!({
        "preferred_batch_size": [], "max_queue_delay_microseconds": 0, "preserve_ordering": false,
        "priority_levels": 0, "default_priority_level": 0, "priority_queue_policy": {},
    });
    assert_eq!(config["dynamic_batching"], expected);
}

#[test]
fn field_unknown_to_triton_2_51_is_written_only_when_set() {
    let ensemble = |fields: &str| json_of(&format!("ensemble_scheduling {{ {fields} }}"));
    assert_eq!(ensemble("")["ensemble_scheduling"], json!({ "step": [] }));
    let set = ensemble("max_inflight_requests: 3");
    assert_eq!(set["ensemble_scheduling"], json!({ "step": [], "max_inflight_requests": 3 }));
}

#[test]
fn large_integers_are_numbers_and_enums_are_names() {
    let config = json_of(
        "input { data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ -1, 9223372036854775807 ] }
         dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }",
    );
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    assert_eq!(config["input"][0]["format"], "FORMAT_NCHW");
    assert_eq!(config["input"][0]["dims"], json!([-1, i64::MAX]));
    assert_eq!(config["dynamic_batching"]["max_queue_delay_microseconds"], json!(u64::MAX));
}

#[test]
fn unknown_enum_value_is_written_as_a_number() {
    let input = proto::ModelInput { data_type: 99, ..proto::ModelInput::default() };
    let text = to_json(&ModelConfig { input: vec![input], ..ModelConfig::default() });
    assert!(text.contains(r#""data_type":99"#), "{text}");
}

#[test]
fn set_oneof_member_is_written_with_its_default() {
    let config = json_of(
        "sequence_batching { state [ { initial_state { zero_data: false dims: 1 } }, { initial_state { } } ] }",
    );
    let state = &config["sequence_batching"]["state"];
    assert_eq!(
        state[0]["initial_state"],
        json!([{ "name": "", "data_type": "TYPE_INVALID", "dims": ["1"], "zero_data": false }])
    );
    assert_eq!(state[1]["initial_state"], json!([{ "name": "", "data_type": "TYPE_INVALID", "dims": [] }]));
}

/// Source: ModelConfigToJson in the reference's `model_config_utils.cc`, which omits these.
#[test]
fn listed_large_integers_are_strings() {
    let config = json_of(
        "instance_group { secondary_devices { device_id: 7 } }
         optimization { cuda { graph_spec {
            input { key: 'I' value { dim: [ 1, -2 ] } }
            graph_lower_bound { input { key: 'I' value { dim: 3 } } }
         } } }",
    );
    assert_eq!(config["instance_group"][0]["secondary_devices"][0]["device_id"], "7");
    let graph = &config["optimization"]["cuda"]["graph_spec"][0];
    assert_eq!(graph["input"]["I"]["dim"], json!(["1", "-2"]));
    assert_eq!(graph["graph_lower_bound"]["input"]["I"]["dim"], json!(["3"]));
    for name in AS_STRINGS {
        let (message, field) = name.rsplit_once('.').unwrap();
        let message = proto::descriptor().parent_pool().get_message_by_name(message).unwrap();
        assert!(matches!(message.get_field_by_name(field).unwrap().kind(), Kind::Int64), "{name}");
    }
}

#[test]
fn floats_keep_their_short_form() {
    let slots = |value: &str| {
        to_json(
            &parse_text(&format!("sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}"))
                .unwrap(),
        )
    };
    for (given, written) in
        [("0.1", "0.1"), ("0", "0.0"), ("inf", "\"Infinity\""), ("-inf", "\"-Infinity\""), ("nan", "\"NaN\"")]
    {
        let text = slots(given);
        assert!(text.contains(&format!("\"minimum_slot_utilization\":{written}}}")), "{given}: {text}");
    }
}

#[test]
fn maps_are_objects_sorted_by_key() {
    let text = to_json(
        &parse_text(
            r#"
            parameters { key: "z" value { string_value: "say \"x\"\n" } }
            parameters { key: "a" value { } }
            parameters { key: "m" value { string_value: "µ" } }
            dynamic_batching {
              priority_queue_policy { key: 10 value { timeout_action: DELAY } }
              priority_queue_policy { key: 9 value { max_queue_size: 3 } }
            }
            "#,
        )
        .unwrap(),
    );
    let parameters = r#""parameters":{"a":{"string_value":""},"m":{"string_value":"µ"},"z":{"string_value":"say \"x\"\n"}}"#;
    assert!(text.contains(parameters), "{text}");
    let policies = concat!(
        r#""priority_queue_policy":{"#,
        r#""9":{"timeout_action":"REJECT","default_timeout_microseconds":0,"allow_timeout_override":false,"max_queue_size":3},"#,
        r#""10":{"timeout_action":"DELAY","default_timeout_microseconds":0,"allow_timeout_override":false,"max_queue_size":0}}"#,
    );
    assert!(text.contains(policies), "{text}");
}

#[test]
fn non_finite_doubles_are_written_as_names() {
    let config = json_of(
        r#"model_metrics { metric_control {
            metric_identifier { family: "f" } histogram_options { buckets: [ -5, 0.1, inf, nan ] }
        } }"#,
    );
    let control = &config["model_metrics"]["metric_control"][0];
    assert_eq!(control["histogram_options"]["buckets"], json!([-5.0, 0.1, "Infinity", "NaN"]));
}

#[test]
fn schema_has_only_writable_kinds() {
    let mut messages = vec![proto::descriptor()];
    let mut seen = Vec::new();
    while let Some(message) = messages.pop() {
        if seen.contains(&message) {
            continue;
        }
        for field in message.fields() {
            let kind = field.kind();
            assert!(!matches!(kind, Kind::Bytes), "{}", field.full_name());
            if field.is_map() {
                let key = kind.as_message().unwrap().map_entry_key_field().kind();
                assert!(matches!(key, Kind::String | Kind::Uint64), "{}", field.full_name());
            }
            messages.extend(kind.as_message().cloned());
        }
        seen.push(message);
    }
    assert!(seen.len() > 30);
}
