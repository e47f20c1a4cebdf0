//! Equivalent spellings.

use prost_reflect::DynamicMessage;

use super::{SAMPLES, parsed, with_colons};
use crate::proto::{ModelConfig, ModelParameter, descriptor};

/// Checks that all texts are equivalent.
#[track_caller]
fn same(texts: &[&str]) -> ModelConfig {
    let first = parsed(texts[0]);
    for text in &texts[1..] {
        assert_eq!(parsed(text), first, "{text}");
    }
    first
}

#[test]
fn empty_text_is_an_empty_configuration() {
    for text in ["", " \t\r\n", "# nothing", "# nothing\n\n", "\u{feff}", "\u{b}\u{c}"] {
        assert_eq!(parsed(text), ModelConfig::default(), "{text:?}");
    }
}

#[test]
fn messages_parse_with_and_without_colon_in_both_brackets() {
    let config = same(&[
        "optimization { graph { level: 3 } }",
        "optimization: { graph: { level: 3 } }",
        "optimization < graph < level: 3 > >",
        "optimization: < graph { level: 3 } >",
        "optimization{graph{level:3}}",
    ]);
    assert_eq!(config.optimization.unwrap().graph.unwrap().level, 3);
}

#[test]
fn repeated_messages_parse_as_lists_and_one_by_one() {
    let config = same(&[
        "input [ { name: 'A' }, { name: 'B' }, { name: 'C' } ]",
        "input: [ { name: 'A' }, < name: 'B' >, { name: 'C' } ]",
        "input { name: 'A' } input { name: 'B' } input { name: 'C' }",
        "input [ { name: 'A' } ] input: { name: 'B' } input: [ { name: 'C' } ]",
        "input [] input [ { name: 'A' }, { name: 'B' }, { name: 'C' } ] input: [ ]",
    ]);
    assert_eq!(config.input.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["A", "B", "C"]);
}

#[test]
fn repeated_values_parse_as_lists_and_one_by_one() {
    let config = same(&[
        "input { dims: [ 1, 2, -1 ] }",
        "input { dims: 1 dims: 2 dims: -1 }",
        "input { dims: [1] dims: [ ] dims: [2,-1] }",
    ]);
    assert_eq!(config.input[0].dims, [1, 2, -1]);
}

#[test]
fn maps_parse_as_entries_and_as_lists() {
    let config = same(&[
        "parameters { key: 'a' value { string_value: '1' } } parameters { key: 'b' value { string_value: '2' } }",
        "parameters { key: 'b' value: { string_value: '2' } } parameters: { value { string_value: '1' } key: 'a' }",
        "parameters [ { key: 'a' value: { string_value: '1' } }, { key: 'b' value: { string_value: '2' } } ]",
        "parameters: [ { key: 'a' value: { string_value: '1' } } ] parameters [ { key: 'b' value { string_value: '2' } } ]",
    ]);
    assert_eq!(config.parameters.len(), 2);
    assert_eq!(config.parameters["b"], ModelParameter { string_value: "2".to_owned() });
}

#[test]
fn later_map_entry_replaces_an_earlier_one() {
    let config = same(&[
        "metric_tags { key: 'a' value: '1' } metric_tags { key: 'a' value: '2' } metric_tags { }",
        "metric_tags { key: '' value: '' } metric_tags { key: 'a' value: '2' }",
    ]);
    assert_eq!(config.metric_tags["a"], "2");
    assert_eq!(config.metric_tags[""], "");
}

#[test]
fn fields_may_be_separated() {
    same(&[
        "name: 'm' max_batch_size: 4 optimization { priority: PRIORITY_MAX eager_batching: true }",
        "name: 'm', max_batch_size: 4, optimization { priority: PRIORITY_MAX, eager_batching: true, },",
        "name: 'm'; max_batch_size: 4; optimization { priority: PRIORITY_MAX; eager_batching: true; };",
        "name:'m'max_batch_size:4;optimization{priority:PRIORITY_MAX eager_batching:true}",
        "# one\nname # two\n: # three\n'm' # four\r\nmax_batch_size: 4\n#\noptimization { # }\npriority: 1 eager_batching: t}",
    ]);
}

#[test]
fn strings_parse_with_both_quotes_and_many_parts() {
    let config = same(&[
        "name: \"it's # a {name}\"",
        "name: 'it\\'s # a {name}'",
        "name: 'it' \"'s # a\"\n # comment\n ' {name}'",
    ]);
    assert_eq!(config.name, "it's # a {name}");
}

#[test]
fn string_escapes_are_resolved() {
    let config = parsed(
        r#"name: "\a\b\f\n\r\t\v\?\\\'\"|\0\41\101|\x9\x4aB|\u0041\U0001F600|\ud83d\ude00|\303\251é""#,
    );
    assert_eq!(config.name, "\u{7}\u{8}\u{c}\n\r\t\u{b}?\\'\"|\0!A|\tJB|A😀|😀|éé");
    // The bytes of one character may be split across the parts.
    assert_eq!(parsed(r#"name: "\303" "\251""#).name, "é");
}

#[test]
fn integers_are_decimal_hexadecimal_or_octal() {
    let config =
        same(&["max_batch_size: 26", "max_batch_size: 0x1a", "max_batch_size: 0X1A", "max_batch_size: 032"]);
    assert_eq!(config.max_batch_size, 26);
    let config = same(&[
        "input { dims: [ -9223372036854775808, 9223372036854775807, -16, 0 ] }",
        "input { dims: [ - 0x8000000000000000, 0x7fffffffffffffff, -020, -0 ] }",
    ]);
    assert_eq!(config.input[0].dims, [i64::MIN, i64::MAX, -16, 0]);
}

#[test]
fn floats_are_decimal_with_or_without_a_point() {
    let text = "model_metrics { metric_control { histogram_options { buckets: [ 1, 1., .5, 1.5e3, 2E-1, 3f, -4.5F, 0, \
                inf, -Infinity, nan, 123456789012345678901234567890 ] } } }";
    let config = parsed(text);
    let options = config.model_metrics.unwrap().metric_control.remove(0).metric_options.unwrap();
    let crate::proto::model_metrics::metric_control::MetricOptions::HistogramOptions(options) = options;
    let (nan, rest): (Vec<f64>, Vec<f64>) = options.buckets.iter().partition(|value| value.is_nan());
    assert_eq!(nan.len(), 1);
    let infinity = f64::INFINITY;
    assert_eq!(
        rest,
        [1.0, 1.0, 0.5, 1500.0, 0.2, 3.0, -4.5, 0.0, infinity, -infinity, 123456789012345678901234567890.0]
    );
}

#[test]
fn booleans_have_several_names() {
    for (value, texts) in
        [(true, ["true", "True", "t", "1", "0x1"]), (false, ["false", "False", "f", "0", "00"])]
    {
        for text in texts {
            let config = parsed(&format!("response_cache {{ enable: {text} }}"));
            assert_eq!(config.response_cache.unwrap().enable, value, "{text}");
        }
    }
}

#[test]
fn enums_parse_by_name_and_by_number() {
    let config =
        same(&["input { data_type: TYPE_FP32 }", "input { data_type: 11 }", "input { data_type: 0xb }"]);
    assert_eq!(config.input[0].data_type(), crate::proto::DataType::TypeFp32);
    // Unnamed numbers are left to validation.
    assert_eq!(parsed("input { data_type: -7 }").input[0].data_type, -7);
}

#[test]
fn field_set_to_its_default_may_be_set_again() {
    assert_eq!(parsed("max_batch_size: 0 max_batch_size: 2").max_batch_size, 2);
}

/// The general reader requires a colon before lists, so the samples are rewritten for it.
#[test]
fn general_reader_agrees_on_the_samples() {
    for sample in SAMPLES {
        let general = DynamicMessage::parse_text_format(descriptor(), &with_colons(sample)).unwrap();
        assert_eq!(parsed(sample), general.transcode_to::<ModelConfig>().unwrap());
    }
}
