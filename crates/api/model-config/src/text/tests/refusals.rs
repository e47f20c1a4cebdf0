//! Refused texts, with position and reason.

use crate::{parse_text, read_text};

/// Checks that the text is refused at this line and column for this reason.
#[track_caller]
fn refused(text: &str, line: usize, column: usize, message: &str) {
    let error = parse_text(text).expect_err(text);
    assert_eq!((error.line(), error.column(), error.message()), (line, column, message), "{text}");
    // The recovering reader finds the same problem first.
    assert_eq!(read_text(text).problems[0].error(), &error, "{text}");
}

#[test]
fn error_prints_its_position() {
    let error = parse_text("name: 'm'\n  max_batch: 1").unwrap_err();
    assert_eq!(error.to_string(), "line 2, column 3: ModelConfig has no field 'max_batch'");
}

#[test]
fn positions_count_characters() {
    refused("name: 'é😀' x: 1", 1, 12, "ModelConfig has no field 'x'");
    refused("name: 'm'\r\n\r\n\tx: 1", 3, 2, "ModelConfig has no field 'x'");
    refused("# é\nx: 1", 2, 1, "ModelConfig has no field 'x'");
}

#[test]
fn unknown_fields_suggest_the_nearest_name() {
    refused(
        "max_batch_sizes: 1",
        1,
        1,
        "ModelConfig has no field 'max_batch_sizes'; did you mean 'max_batch_size'?",
    );
    refused(
        "maxBatchSize: 1",
        1,
        1,
        "ModelConfig has no field 'maxBatchSize'; did you mean 'max_batch_size'?",
    );
    refused("Name: 'm'", 1, 1, "ModelConfig has no field 'Name'; did you mean 'name'?");
    refused("inputs [ { } ]", 1, 1, "ModelConfig has no field 'inputs'; did you mean 'input'?");
    refused(
        "input { datatype: TYPE_FP32 }",
        1,
        9,
        "ModelInput has no field 'datatype'; did you mean 'data_type'?",
    );
    refused("foo { bar: 1 }", 1, 1, "ModelConfig has no field 'foo'");
    refused("metric_tags { keys: 'a' }", 1, 15, "a map's entry has no field 'keys'; did you mean 'key'?");
    let long = "x".repeat(100_000);
    refused(&format!("{long}: 1"), 1, 1, &format!("ModelConfig has no field '{}...'", "x".repeat(40)));
}

#[test]
fn unknown_values_suggest_the_nearest_name_or_list_all() {
    refused(
        "input { data_type: TYPE_FLOAT32 }",
        1,
        20,
        "'TYPE_FLOAT32' is not a value of 'data_type'; did you mean 'TYPE_FP32'?",
    );
    refused(
        "input { data_type: FP32 }",
        1,
        20,
        "'FP32' is not a value of 'data_type'; did you mean 'TYPE_FP32'?",
    );
    refused(
        "instance_group { kind: cpu }",
        1,
        24,
        "'cpu' is not a value of 'kind'; did you mean 'KIND_CPU'?",
    );
    refused(
        "instance_group { kind: abacus }",
        1,
        24,
        "'abacus' is not a value of 'kind'; values are KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL",
    );
}

#[test]
fn repeated_fields_are_refused() {
    refused("max_batch_size: 1 max_batch_size: 1", 1, 19, "'max_batch_size' is set twice");
    refused("optimization { } optimization { }", 1, 18, "'optimization' is set twice");
    refused("dynamic_batching { } dynamic_batching { }", 1, 22, "'dynamic_batching' is set twice");
    refused("metric_tags { key: 'a' key: 'b' }", 1, 24, "'key' is set twice");
    refused("metric_tags { value: 'a' value: 'b' }", 1, 26, "'value' is set twice");
    refused(
        "dynamic_batching { }\nsequence_batching { }",
        2,
        1,
        "'sequence_batching' conflicts with 'dynamic_batching': set only one",
    );
}

#[test]
fn values_of_wrong_type_are_refused() {
    let integer = "expected a 32-bit integer for 'max_batch_size', found";
    refused("max_batch_size: 'x'", 1, 17, &format!("{integer} the string 'x'"));
    refused("max_batch_size: 1.0", 1, 17, &format!("{integer} '1.0'"));
    refused("max_batch_size: +1", 1, 17, "unexpected character '+'");
    refused("max_batch_size: true", 1, 17, &format!("{integer} 'true'"));
    refused("max_batch_size: { }", 1, 17, &format!("{integer} '{{'"));
    refused("max_batch_size: [ 1 ]", 1, 17, &format!("{integer} '['"));
    refused("max_batch_size: --1", 1, 18, &format!("{integer} '-'"));
    refused("max_batch_size:", 1, 16, &format!("{integer} the end of the text"));
    refused("name: m", 1, 7, "expected a string in quotes for 'name', found 'm'");
    refused("name: 1", 1, 7, "expected a string in quotes for 'name', found '1'");
    let name = |name: &str| format!("expected the name of a value for 'data_type', found the string {name}");
    refused("input { data_type: 'TYPE_FP32' }", 1, 20, &name("'TYPE_FP32'"));
    refused("optimization: 1", 1, 15, "expected '{' to open 'optimization', found '1'");
    refused("optimization [ { } ]", 1, 14, "expected '{' to open 'optimization', found '['");
    for text in ["TRUE", "2", "0x2", "'true'", "yes", "-1", "99999999999999999999999"] {
        let found = if text.starts_with('\'') { "the string 'true'".to_owned() } else { format!("'{text}'") };
        let found = if text == "-1" { "'-'".to_owned() } else { found };
        let message = format!("expected true or false for 'enable', found {found}");
        refused(&format!("response_cache {{ enable: {text} }}"), 1, 26, &message);
    }
    for text in ["0x1", "01", "many", "'1'"] {
        let found = if text == "'1'" { "the string '1'".to_owned() } else { format!("'{text}'") };
        let message = format!("expected a decimal number for 'minimum_slot_utilization', found {found}");
        let text = format!("sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}");
        refused(&text, 1, 56, &message);
    }
}

#[test]
fn integers_out_of_range_are_refused() {
    let at_17 = |number: &str, message: &str| refused(&format!("max_batch_size: {number}"), 1, 17, message);
    for number in ["2147483648", "0x80000000", "-2147483649", "99999999999999999999999"] {
        at_17(number, &format!("{number} is out of range for 'max_batch_size', a 32-bit integer"));
    }
    refused(
        "input { dims: 9223372036854775808 }",
        1,
        15,
        "9223372036854775808 is out of range for 'dims', a 64-bit integer",
    );
    refused(
        "model_warmup { batch_size: -1 }",
        1,
        28,
        "-1 is out of range for 'batch_size', an unsigned 32-bit integer",
    );
    refused(
        "dynamic_batching { priority_levels: 18446744073709551616 }",
        1,
        37,
        "18446744073709551616 is out of range for 'priority_levels', an unsigned 64-bit integer",
    );
    refused(
        "input { data_type: 4294967296 }",
        1,
        20,
        "4294967296 is out of range for 'data_type', a 32-bit integer",
    );
}

#[test]
fn malformed_numbers_are_refused() {
    let at_17 = |number: &str, message: &str| refused(&format!("max_batch_size: {number}"), 1, 17, message);
    at_17("08", "a number with a leading 0 is octal and cannot contain 8 or 9");
    at_17("0x", "'0x' must be followed by hexadecimal digits");
    at_17("1e", "'e' must be followed by an exponent");
    at_17("1e+", "'e' must be followed by an exponent");
    at_17("1name: 'm'", "a number must be followed by white space or punctuation");
    at_17("0x1g", "a number must be followed by white space or punctuation");
    at_17("1.2.3", "a number cannot have a decimal point here");
    at_17("01.5", "a number cannot have a decimal point here");
}

#[test]
fn unbalanced_brackets_are_refused() {
    refused("input { name: 'A'", 1, 7, "'{' of 'input' is not closed");
    refused("input {\n  reshape < shape: 1\n", 2, 11, "'<' of 'reshape' is not closed");
    refused("input { name: 'A' } }", 1, 21, "expected a field name, found '}'");
    refused("input { name: 'A' >", 1, 19, "expected a field name or '}' in 'input', found '>'");
    refused("input < name: 'A' }", 1, 19, "expected a field name or '>' in 'input', found '}'");
    refused("input [ { }", 1, 12, "expected ',' or ']' in the list of 'input', found the end of the text");
    refused("input [", 1, 8, "expected '{' to open 'input', found the end of the text");
    refused("input {{ }", 1, 8, "expected a field name or '}' in 'input', found '{'");
}

#[test]
fn lists_without_single_commas_are_refused() {
    refused("input [ { }, ]", 1, 14, "expected '{' to open 'input', found ']'");
    refused("input { dims: [ 1, ] }", 1, 20, "expected a 64-bit integer for 'dims', found ']'");
    refused("input { dims: [ 1 2 ] }", 1, 19, "expected ',' or ']' in the list of 'dims', found '2'");
    refused("input { dims: [ 1; 2 ] }", 1, 18, "expected ',' or ']' in the list of 'dims', found ';'");
    refused("input { dims: [ [ 1 ] ] }", 1, 17, "expected a 64-bit integer for 'dims', found '['");
    refused("name: 'm',, backend: 'b'", 1, 11, "expected a field name, found ','");
    refused(", name: 'm'", 1, 1, "expected a field name, found ','");
}

#[test]
fn values_without_colon_are_refused() {
    refused("max_batch_size 1", 1, 16, "expected ':' after 'max_batch_size', found '1'");
    refused("input { dims [ 1 ] }", 1, 14, "expected ':' after 'dims', found '['");
    refused("name", 1, 5, "expected ':' after 'name', found the end of the text");
}

#[test]
fn strings_across_lines_are_refused() {
    refused("name: 'm", 1, 7, "the string does not end");
    refused("name: 'm\nn'", 1, 7, "the string is not closed on its line");
    refused("name: 'm\\\nn'", 1, 7, "the string is not closed on its line");
    refused("name: 'm\\", 1, 7, "the string does not end");
    refused("name: 'm\\'", 1, 7, "the string does not end");
    refused("name: 'm\"", 1, 7, "the string does not end");
    refused("name: 'a\\\0b'", 1, 9, "a string cannot contain a NUL character");
    refused("name: 'a\0b'", 1, 9, "a string cannot contain a NUL character");
}

#[test]
fn malformed_escapes_are_refused() {
    refused(r"name: 'a\q'", 1, 9, "unknown escape sequence");
    refused(r"name: 'a\é'", 1, 9, "unknown escape sequence");
    refused(r"name: '\x'", 1, 8, r"'\x' must be followed by hexadecimal digits");
    refused(r"name: '\400'", 1, 8, r"an octal escape goes up to \377");
    refused(r"name: '\u12'", 1, 8, r"'\u' must be followed by 4 hexadecimal digits");
    refused(r"name: '\U0001f60'", 1, 8, r"'\U' must be followed by 8 hexadecimal digits");
    refused(r"name: '\U00110000'", 1, 8, "the escape sequence is not a Unicode character");
    refused(r"name: '\ud83d'", 1, 8, "the escape sequence is not a Unicode character");
    refused(r"name: '\ud83dA'", 1, 8, "the escape sequence is not a Unicode character");
    refused(r"name: '\xff'", 1, 7, "the string for 'name' is not valid UTF-8");
}

#[test]
fn other_syntaxes_are_refused() {
    refused("// comment", 1, 1, "expected a field name, found '/'");
    refused("{ \"name\": \"m\" }", 1, 1, "expected a field name, found '{'");
    refused("'name': 'm'", 1, 1, "expected a field name, found the string 'name'");
    refused("4: 1", 1, 1, "expected a field name, found '4'");
    refused("[foo.bar]: 1", 1, 1, "expected a field name, found '['");
    refused("name: 'm' é", 1, 11, "unexpected character 'é'");
    refused("name = 'm'", 1, 6, "unexpected character '='");
    refused("name: 'm' \0", 1, 11, "unexpected character '\\0'");
}
