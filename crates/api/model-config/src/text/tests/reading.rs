//! Recovery after errors, and the positions of fields.

use crate::{Place, parse_text, read_text};

/// All problems of the text, as `line:column field: message`.
#[track_caller]
fn problems(text: &str, expected: &[&str]) {
    let reading = read_text(text);
    let found: Vec<_> = reading
        .problems
        .iter()
        .map(|problem| {
            format!("{} {}: {}", problem.error().place(), problem.field(), problem.error().message())
        })
        .collect();
    assert_eq!(found, expected, "{text}");
    assert_eq!(parse_text(text).is_ok(), found.is_empty());
}

#[test]
fn all_problems_are_found_in_one_reading() {
    problems(
        "nmae: 'm'
max_batch_size: 'x'
input [
  { name: 'A' data_type: TYPE_FLOAT32 dims: [ 1, 'x', 3 ] },
  { name: 7 colour { deep < er: [ { } ] > } shape: [ 1 ] dims: [ 99999999999999999999 ] }
]
max_batch_size: 1
max_batch_size: 2
instance_group { kind: abacus count: -'x' }
optimization: 1
",
        &[
            "1:1 nmae: ModelConfig has no field 'nmae'; did you mean 'name'?",
            "2:17 max_batch_size: expected a 32-bit integer for 'max_batch_size', found the string 'x'",
            "4:26 input[0].data_type: 'TYPE_FLOAT32' is not a value of 'data_type'; did you mean 'TYPE_FP32'?",
            "4:50 input[0].dims[1]: expected a 64-bit integer for 'dims', found the string 'x'",
            "5:11 input[1].name: expected a string in quotes for 'name', found '7'",
            "5:13 input[1].colour: ModelInput has no field 'colour'",
            "5:45 input[1].shape: ModelInput has no field 'shape'",
            "5:66 input[1].dims[0]: 99999999999999999999 is out of range for 'dims', a 64-bit integer",
            "8:1 max_batch_size: 'max_batch_size' is set twice",
            "9:24 instance_group[0].kind: 'abacus' is not a value of 'kind'; values are KIND_AUTO, KIND_GPU, \
             KIND_CPU, KIND_MODEL",
            "9:39 instance_group[0].count: expected a 32-bit integer for 'count', found the string 'x'",
            "10:15 optimization: expected '{' to open 'optimization', found '1'",
        ],
    );
}

#[test]
fn valid_fields_are_read_despite_errors() {
    let reading = read_text("nmae: 'x' input { dims: [ 1, 'x', 3 ] } name: 'm' name: 'n' backend: 'b'");
    assert!(reading.complete);
    assert_eq!(reading.config.name, "m");
    assert_eq!(reading.config.backend, "b");
    assert_eq!(reading.config.input[0].dims, [1, 0, 3]);
}

#[test]
fn syntax_error_ends_the_reading() {
    for (text, expected) in [
        ("nmae: 1 input { name 'a' } mane: 1", "1:22 input[0].name: expected ':' after 'name', found ''a''"),
        ("nmae: 1 } mane: 1", "1:9 : expected a field name, found '}'"),
        ("nmae: 1 input { nested: { ] } mane: 1", "1:27 "),
        ("nmae: 1 name: 'x", "1:15 "),
        ("nmae: 1 max_batch_size: }", "1:25 max_batch_size: "),
        ("nmae: 1 input { dims: [ 1, ] } mane: 1", "1:28 input[0].dims[1]: "),
    ] {
        let reading = read_text(text);
        assert!(!reading.complete, "{text}");
        let last = reading.problems.last().unwrap();
        let shown = format!("{} {}: {}", last.error().place(), last.field(), last.error().message());
        let expected = expected.replace("''a''", "the string 'a'");
        assert!(shown.starts_with(&expected), "{text}: {shown}");
        assert_eq!(reading.problems[0].field(), "nmae", "{text}");
        assert!(!reading.problems.iter().any(|problem| problem.field() == "mane"), "{text}");
    }
}

#[test]
fn unknown_fields_may_have_any_value() {
    for value in [
        ": 1",
        ": -1",
        ": - inf",
        ": 1.5e3f",
        ": 'a' \"b\"",
        ": TYPE",
        ": [ ]",
        ": [ 1, 'a', { b: 1 } ]",
        " { }",
        ": < a { b: [ ] } >",
        " [ { a: 1 }, { b < > } ]",
    ] {
        let text = format!("foo{value}; name: 'm'");
        let reading = read_text(&text);
        assert!(reading.complete && reading.problems.len() == 1, "{text}: {:?}", reading.problems);
        assert_eq!(reading.config.name, "m", "{text}");
    }
    problems(
        "foo 1",
        &["1:1 foo: ModelConfig has no field 'foo'", "1:5 : expected ':' after 'foo', found '1'"],
    );
    problems("foo: }", &["1:1 foo: ModelConfig has no field 'foo'", "1:6 : expected a value, found '}'"]);
    problems(
        "foo { [ } ]",
        &["1:1 foo: ModelConfig has no field 'foo'", "1:9 : expected ']' to close '[', found '}'"],
    );
    problems("foo { [ ", &["1:1 foo: ModelConfig has no field 'foo'", "1:7 : '[' is not closed"]);
}

#[test]
fn problems_in_maps_are_reported_by_key() {
    problems(
        r#"parameters { key: "a.\"b" value { string_value: 1 } } parameters [ { value { foo: 1 } key: "b" } ]
dynamic_batching { priority_queue_policy { key: 9 value { timeout_action: NO } } }
metric_tags { keys: 'a' }"#,
        &[
            r#"1:49 parameters["a.\"b"].string_value: expected a string in quotes for 'string_value', found '1'"#,
            "1:78 parameters.foo: ModelParameter has no field 'foo'",
            "2:75 dynamic_batching.priority_queue_policy[9].timeout_action: 'NO' is not a value of \
             'timeout_action'; values are REJECT, DELAY",
            "3:15 metric_tags.keys: a map's entry has no field 'keys'; did you mean 'key'?",
        ],
    );
}

#[test]
fn too_many_problems_end_the_reading() {
    let reading = read_text(&"a: 1 ".repeat(100_000));
    assert_eq!(reading.problems.len(), 1000);
    assert!(!reading.complete);
    assert_eq!(reading.problems[999].error().message(), "reading stops after 999 earlier problems");
}

#[test]
fn nearest_name_is_exposed() {
    let reading = read_text("nmae: 'm' input { data_type: FP32 } foo: 1 instance_group { kind: abacus }");
    let nearest: Vec<_> = reading.problems.iter().map(|problem| problem.error().nearest()).collect();
    assert_eq!(nearest, [Some("name"), Some("TYPE_FP32"), None, None]);
}

#[test]
fn textual_problem_explains_consequent_errors() {
    let reading = read_text("input { data_tipe: TYPE_FP32 } input { dims: [ 1, x ] } input { nmae: 1 }");
    for path in ["input[0].data_type", "input[1].dims[1]", "input[1].dims", "input[2].name"] {
        assert!(reading.explains(path), "{path}");
    }
    for path in
        ["input[0].dims", "input[1].dims[0]", "input[1].data_type", "input[0]x", "name", "input[10].dims"]
    {
        assert!(!reading.explains(path), "{path}");
    }
    assert!(!read_text("} name").explains("name"));
}

/// Checks that the field at `path` is at `line` and `column`.
#[track_caller]
fn check_position(text: &str, path: &str, line: usize, column: usize) {
    assert_eq!(read_text(text).places.find(path), Some(Place { line, column }), "{path}");
}

const PLACED: &str = r#"name: "m"
input [
  { name: "A", dims: [ 1,
      -2 ] },
  { name: "B" }
]
input { dims: 3 dims: [ 4, 5 ] reshape { shape: [ ] } }
sequence_batching { control_input [ { control [ { kind: CONTROL_SEQUENCE_START }, {
  kind: CONTROL_SEQUENCE_END } ] } ] }
parameters { key: "a.b" value { string_value: "x" } }
parameters [ { key: "c" }, { value { string_value: "empty" } } ]
parameters { key: "a.b" value { string_value: "y" } }
dynamic_batching { priority_queue_policy { value { max_queue_size: 1 } key: 10 } }
model_warmup { inputs { key: "in" value { dims: [ 1, 2 ] } } }
ensemble_scheduling { step { input_map { key: "x" value: "y" } } }
"#;

#[test]
fn fields_are_at_their_names_and_elements_at_their_values() {
    check_position(PLACED, "name", 1, 1);
    check_position(PLACED, "input", 2, 1);
    check_position(PLACED, "input[0]", 3, 3);
    check_position(PLACED, "input[0].name", 3, 5);
    check_position(PLACED, "input[0].dims", 3, 16);
    check_position(PLACED, "input[0].dims[0]", 3, 24);
    check_position(PLACED, "input[0].dims[1]", 4, 7);
    check_position(PLACED, "input[1].name", 5, 5);
    check_position(PLACED, "input[2]", 7, 1);
    check_position(PLACED, "input[2].dims", 7, 9);
    check_position(PLACED, "input[2].dims[0]", 7, 9);
    check_position(PLACED, "input[2].dims[2]", 7, 28);
    check_position(PLACED, "input[2].reshape.shape", 7, 42);
    check_position(PLACED, "sequence_batching.control_input[0].control[1].kind", 9, 3);
}

#[test]
fn map_entries_are_found_by_key() {
    check_position(PLACED, r#"parameters["c"]"#, 11, 14);
    check_position(PLACED, r#"parameters[""].string_value"#, 11, 38);
    check_position(PLACED, r#"parameters["a.b"]"#, 12, 25);
    check_position(PLACED, r#"parameters["a.b"].string_value"#, 12, 33);
    check_position(PLACED, "dynamic_batching.priority_queue_policy[10].max_queue_size", 13, 52);
    check_position(PLACED, r#"model_warmup[0].inputs["in"].dims[1]"#, 14, 54);
    check_position(PLACED, r#"ensemble_scheduling.step[0].input_map["x"]"#, 15, 30);
}

#[test]
fn missing_field_is_at_its_nearest_enclosing_field() {
    check_position(PLACED, "input[1].data_type", 5, 3);
    check_position(PLACED, "input[0].dims[7]", 3, 16);
    check_position(PLACED, "input[9].name", 2, 1);
    check_position(PLACED, r#"parameters["nope"].string_value"#, 10, 1);
    check_position(PLACED, r#"parameters["c"].string_value"#, 11, 14);
    check_position(PLACED, "input[0].nonsense", 3, 3);
    check_position(PLACED, "input[0].name.deeper", 3, 5);
    for path in ["backend", "nonsense", "", "[0]", ".name"] {
        assert_eq!(read_text(PLACED).places.find(path), None, "{path}");
    }
    assert_eq!(read_text("").places.find("name"), None);
}

#[test]
fn repeated_field_is_at_its_first_occurrence() {
    check_position("name: 'm'\nname: 'n'", "name", 1, 1);
    check_position("optimization { }\noptimization { graph { } }", "optimization.graph", 1, 1);
}
