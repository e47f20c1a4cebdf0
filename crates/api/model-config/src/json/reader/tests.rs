//! Texts that the reader accepts, and its errors for others, compared with Triton 2.51.

use super::from_json;
use crate::{parse_text, to_json};

/// Accepted JSON, and the same configuration as text.
const TAKEN: &[(&str, &str)] = &[
    ("{}", ""),
    (" {\n\"max_batch_size\" : 4 }\t", "max_batch_size: 4"),
    (r#"{"maxBatchSize": 4}"#, "max_batch_size: 4"),
    (r#"{"max_batch_size": "4"}"#, "max_batch_size: 4"),
    (r#"{"max_batch_size": 4.0}"#, "max_batch_size: 4"),
    (r#"{"max_batch_size": 0.4e1}"#, "max_batch_size: 4"),
    (r#"{"max_batch_size": -0}"#, ""),
    (r#"{"max_batch_size": null, "input": null}"#, ""),
    (r#"{"max_batch_size": 1, "max_batch_size": 2, "maxBatchSize": 3}"#, "max_batch_size: 3"),
    (r#"{"input": [{"name": "I"}, null, {"name": "J"}]}"#, "input { name: 'I' } input { name: 'J' }"),
    (r#"{"input": {"name": "I", "dims": 4}}"#, "input { name: 'I' dims: 4 }"),
    (
        r#"{"input": [{"dims": ["4", 5, -1, 1e3, 9007199254740993, "-9223372036854775808"]}]}"#,
        "input { dims: [ 4, 5, -1, 1000, 9007199254740993, -9223372036854775808 ] }",
    ),
    (
        r#"{"input": [{"data_type": "TYPE_FP32"}, {"dataType": "type_fp32"}, {"data_type": "TYPE-FP32"},
            {"data_type": 11}, {"data_type": "11"}, {"data_type": 11.0}]}"#,
        "input { data_type: TYPE_FP32 } input { data_type: TYPE_FP32 } input { data_type: TYPE_FP32 }
         input { data_type: TYPE_FP32 } input { data_type: TYPE_FP32 } input { data_type: TYPE_FP32 }",
    ),
    (r#"{"input": [{"data_type": 99}]}"#, "input { data_type: 99 }"),
    (
        r#"{"parameters": {"a": {"string_value": "b"}, "c": {"stringValue": "d"}, "e": null}}"#,
        "parameters { key: 'a' value { string_value: 'b' } } parameters { key: 'c' value { string_value: 'd' } }
         parameters { key: 'e' value { } }",
    ),
    (r#"{"metric_tags": {"a": "b", "c": null}}"#, "metric_tags { key: 'a' value: 'b' } metric_tags { key: 'c' value: '' }"),
    (
        r#"{"dynamic_batching": {"priority_queue_policy": {"18446744073709551615": {"timeout_action": "delay"}},
            "max_queue_delay_microseconds": 18446744073709551615}}"#,
        "dynamic_batching { priority_queue_policy { key: 18446744073709551615 value { timeout_action: DELAY } }
            max_queue_delay_microseconds: 18446744073709551615 }",
    ),
    (r#"{"dynamic_batching": null, "sequence_batching": {}}"#, "sequence_batching { }"),
    (
        r#"{"sequence_batching": {"direct": {"minimum_slot_utilization": "0.5"}}}"#,
        "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
    ),
    (
        r#"{"sequence_batching": {"direct": {"minimum_slot_utilization": "-Infinity"}}}"#,
        "sequence_batching { direct { minimum_slot_utilization: -inf } }",
    ),
    (
        r#"{"sequence_batching": {"direct": {"minimum_slot_utilization": 1}}}"#,
        "sequence_batching { direct { minimum_slot_utilization: 1 } }",
    ),
    (r#"{"response_cache": {"enable": true}}"#, "response_cache { enable: true }"),
    (r#"{"response_cache": {"enable": "true"}}"#, "response_cache { enable: true }"),
    (r#"{"version_policy": {"all": {}}}"#, "version_policy { all { } }"),
    (r"{'backend': 'mine'}", "backend: 'mine'"),
    (r#"{backend: "mine", }"#, "backend: 'mine'"),
    (r#"{"input": [{"dims": [1, 2,],},],}"#, "input { dims: [ 1, 2 ] }"),
    (r#"{"backend": "\u006dine \"\\\/\b\f\n\r\t\v\' \ud83d\ude00 µ"}"#, r#"backend: "mine \"\\/\b\f\n\r\t\v' 😀 µ""#),
    (r#"{"optimization": {"graph": {"level": 1}}, "optimization": {"eager_batching": true}}"#,
        "optimization { graph { level: 1 } eager_batching: true }"),
    (r#"{"model_metrics": {"metric_control": [{"histogram_options": {"buckets": [1, 2.5, "1e3"]}}]}}"#,
        "model_metrics { metric_control { histogram_options { buckets: [ 1, 2.5, 1000 ] } } }"),
];

#[test]
fn json_accepted_by_triton_is_accepted() {
    for (json, text) in TAKEN {
        let config = from_json(json).unwrap_or_else(|error| panic!("{json}\n{error}"));
        assert_eq!(config, parse_text(text).unwrap(), "{json}");
    }
}

/// Refused JSON, and the error.
const REFUSED: &[(&str, &str)] = &[
    ("", "line 1, column 1: expected an object: '{', found the end of the text"),
    ("[]", "line 1, column 1: expected an object: '{', found '['"),
    ("null", "line 1, column 1: expected an object: '{', found 'null'"),
    ("\u{feff}{}", "line 1, column 1: '\\u{feff}' is not valid JSON here"),
    ("{\n  \"backend\": \"b\" // c\n}", "line 2, column 18: '/' is not valid JSON here"),
    ("{} {}", "line 1, column 4: expected the end of the configuration, found '{'"),
    ("{\"name\" \"m\"}", "line 1, column 9: expected ':', found \"m\""),
    ("{\"name\": \"m\" \"backend\": \"b\"}", "line 1, column 14: expected ',' or '}', found \"backend\""),
    ("{,}", "line 1, column 2: expected a field's name or '}', found ','"),
    ("{true: 1}", "line 1, column 2: expected a field's name or '}', found 'true'"),
    (
        "{\"max_batch_sise\": 1}",
        "line 1, column 2: ModelConfig has no field 'max_batch_sise'; did you mean 'max_batch_size'?",
    ),
    (
        "{\"input\": [{}, {\"nmae\": 1}]}",
        "line 1, column 17: field 'input[1]': ModelInput has no field 'nmae'; did you mean 'name'?",
    ),
    ("{\"[x]\": 1}", "line 1, column 2: ModelConfig has no field '[x]'"),
    (
        "{\"input\": [{\"data_type\": \"TYPE_FLOAT\"}]}",
        "line 1, column 26: field 'input[0].data_type': \"TYPE_FLOAT\" is not a value of DataType; did you mean \
         'TYPE_FP32'?",
    ),
    (
        "{\"input\": [{\"data_type\": \"\"}]}",
        "line 1, column 26: field 'input[0].data_type': \"\" is not a value of DataType",
    ),
    (
        "{\"input\": [{\"data_type\": true}]}",
        "line 1, column 26: field 'input[0].data_type': expected an enum value's name, found 'true'",
    ),
    (
        "{\"max_batch_size\": 4.5}",
        "line 1, column 20: field 'max_batch_size': expected a 32-bit integer, found '4.5'",
    ),
    (
        "{\"max_batch_size\": \"4.0\"}",
        "line 1, column 20: field 'max_batch_size': expected a 32-bit integer, found \"4.0\"",
    ),
    (
        "{\"max_batch_size\": \" 4\"}",
        "line 1, column 20: field 'max_batch_size': expected a 32-bit integer, found \" 4\"",
    ),
    (
        "{\"max_batch_size\": \"\"}",
        "line 1, column 20: field 'max_batch_size': expected a 32-bit integer, found \"\"",
    ),
    (
        "{\"max_batch_size\": 99999999999}",
        "line 1, column 20: field 'max_batch_size': expected a 32-bit integer, found '99999999999'",
    ),
    (
        "{\"max_batch_size\": 007}",
        "line 1, column 20: field 'max_batch_size': expected a 32-bit integer, found '007'",
    ),
    (
        "{\"max_batch_size\": true}",
        "line 1, column 20: field 'max_batch_size': expected a 32-bit integer, found 'true'",
    ),
    (
        "{\"version_policy\": {\"latest\": {\"num_versions\": -1}}}",
        "line 1, column 48: field 'version_policy.latest.num_versions': expected an unsigned \
         32-bit integer, found '-1'",
    ),
    (
        "{\"input\": [{\"dims\": [1, 9223372036854775808]}]}",
        "line 1, column 25: field 'input[0].dims[1]': expected a 64-bit integer, found \
         '9223372036854775808'",
    ),
    (
        "{\"input\": [{\"dims\": [[1]]}]}",
        "line 1, column 22: field 'input[0].dims[0]': expected a 64-bit integer, found '['",
    ),
    (
        "{\"input\": [{\"dims\": [1 2]}]}",
        "line 1, column 24: field 'input[0].dims': expected ',' or ']', found '2'",
    ),
    ("{\"input\": \"x\"}", "line 1, column 11: field 'input': expected an object: '{', found \"x\""),
    ("{\"backend\": 5}", "line 1, column 13: field 'backend': expected a string, found '5'"),
    (
        "{\"response_cache\": {\"enable\": 1}}",
        "line 1, column 31: field 'response_cache.enable': expected true or false, found '1'",
    ),
    (
        "{\"response_cache\": {\"enable\": \"True\"}}",
        "line 1, column 31: field 'response_cache.enable': expected true or false, found \"True\"",
    ),
    (
        "{\"metric_tags\": {\"a\": 1}}",
        "line 1, column 23: field 'metric_tags[\"a\"]': expected a string, found '1'",
    ),
    ("{\"parameters\": []}", "line 1, column 16: field 'parameters': expected an object: '{', found '['"),
    (
        "{\"parameters\": {\"a\": {}, \"a\": {}}}",
        "line 1, column 26: field 'parameters[\"a\"]': the key is set twice",
    ),
    (
        "{\"dynamic_batching\": {\"priority_queue_policy\": {\"x\": {}}}}",
        "line 1, column 49: field 'dynamic_batching.priority_queue_policy[\"x\"]': expected a \
         non-negative integer key",
    ),
    (
        "{\"dynamic_batching\": {}, \"sequence_batching\": {}}",
        "line 1, column 26: field 'sequence_batching': 'sequence_batching' conflicts with 'dynamic_batching': set only \
         one",
    ),
    (
        "{\"dynamic_batching\": {}, \"dynamicBatching\": {}}",
        "line 1, column 26: field 'dynamic_batching': 'dynamic_batching' is set twice",
    ),
    (
        "{\"sequence_batching\": {\"direct\": {\"minimum_slot_utilization\": 1e39}}}",
        "line 1, column 63: field 'sequence_batching.direct.minimum_slot_utilization': expected a number, found '1e39'",
    ),
    (
        "{\"sequence_batching\": {\"direct\": {\"minimum_slot_utilization\": \"nan\"}}}",
        "line 1, column 63: field 'sequence_batching.direct.minimum_slot_utilization': expected a number, found \
         \"nan\"",
    ),
    ("{\"name\": \"m", "line 1, column 10: field 'name': the string is not closed"),
    ("{\"name\": \"m\\", "line 1, column 12: field 'name': the string ends inside an escape sequence"),
    ("{\"name\": \"\\u12x4\"}", "line 1, column 11: field 'name': '\\u' needs four hexadecimal digits"),
    ("{\"name\": \"\\u12", "line 1, column 11: field 'name': '\\u' needs four hexadecimal digits"),
    ("{\"name\": \"\\ud800\"}", "line 1, column 11: field 'name': unpaired surrogate"),
    ("{\"name\": \"\\ud800\\u0041\"}", "line 1, column 11: field 'name': unpaired surrogate"),
];

#[test]
fn json_refused_by_triton_is_refused_with_position_and_reason() {
    for (json, expected) in REFUSED {
        let error = from_json(json).expect_err(json);
        assert_eq!(error.to_string(), *expected, "{json}");
    }
}

#[test]
fn error_exposes_its_parts() {
    let error = from_json("{\n \"input\": [{\"name\": 1}]}").unwrap_err();
    assert_eq!((error.line(), error.column()), (2, 21));
    assert_eq!(error.field(), "input[0].name");
    assert_eq!(error.message(), "expected a string, found '1'");
}

#[test]
fn written_json_is_read_back() {
    for text in [
        include_str!("../../text/tests/image.pbtxt"),
        include_str!("../../text/tests/ensemble.pbtxt"),
        include_str!("../../text/tests/sequence.pbtxt"),
        "",
    ] {
        let config = parse_text(text).unwrap();
        assert_eq!(from_json(&to_json(&config)).as_ref(), Ok(&config), "{text}");
    }
}

#[test]
fn deep_and_long_texts_are_handled() {
    for text in [
        "[".repeat(1_000_000),
        "{".repeat(1_000_000),
        "{\"input\":".repeat(1_000_000),
        format!("{{\"input\":[{}", "[".repeat(1_000_000)),
        format!("{{\"{}\": 1}}", "x".repeat(1_000_000)),
        format!("{{\"metric_tags\": {{\"{}\": 1}}}}", "x".repeat(1_000_000)),
        format!("{{\"max_batch_size\": {}}}", "9".repeat(1_000_000)),
        format!("{{\"max_batch_size\": 1e{}}}", "9".repeat(1_000_000)),
    ] {
        let error = from_json(&text).unwrap_err();
        assert!(error.to_string().len() < 500, "{error}");
    }
}

/// Every prefix of a valid text, and every text with one changed byte, is either read or refused.
#[test]
fn reader_never_panics() {
    let text = to_json(&parse_text(include_str!("../../text/tests/sequence.pbtxt")).unwrap());
    for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
        assert!(from_json(&text[..end]).is_err());
    }
    for index in 0..text.len() {
        for byte in [b'"', b'{', b']', b'\\', b'0', b',', b'u'] {
            let mut changed = text.clone().into_bytes();
            changed[index] = byte;
            if let Ok(changed) = String::from_utf8(changed) {
                let _ = from_json(&changed);
            }
        }
    }
}
