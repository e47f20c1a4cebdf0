//! Directives, parameters and constants are read as documented.

use tensor_types::DataType;

use super::*;
use crate::parse_text;

fn config(rest: &str) -> ModelConfig {
    parse_text(&format!("name: 'e' platform: 'ensemble' {rest}")).unwrap()
}

fn step(maps: &str) -> String {
    format!(
        "ensemble_scheduling {{ step {{ model_name: 'm' {maps} output_map {{ key: 'O' value: 't' }} }} }}"
    )
}

#[test]
fn ensembles_without_directives_have_no_rules() {
    let plain = config(&step("input_map { key: 'I' value: 'x' }"));
    assert_eq!(EnsembleRules::of(&plain), Ok(None));
    let other =
        parse_text("name: 'm' parameters { key: '$if_skipped:t' value { string_value: '0' } }").unwrap();
    assert_eq!(EnsembleRules::of(&other), Ok(None));
}

#[test]
fn directives_are_not_inputs_of_the_model() {
    let text = "input_map { key: '$each:I' value: 'crops' } input_map { key: 'J' value: 'x' }
                input_map { key: '$if' value: 'a' } input_map { key: '$unless' value: 'b' }
                input_map { key: '$on_error' value: 't' } input_map { key: '$iff' value: 'c' }
                input_map { key: '$timeout' value: '250ms' }";
    let config = config(&step(text));
    let rules = EnsembleRules::of(&config).unwrap().unwrap();
    let [step] = &rules.steps[..] else { panic!("one step") };
    assert_eq!((step.run_if, step.unless, step.on_error), (Some("a"), Some("b"), Some("t")));
    assert_eq!(step.time_limit(), Some(Duration::from_millis(250)));
    let inputs: Vec<_> = step.inputs.iter().map(|input| (input.name, input.tensor, input.each)).collect();
    // Other names with a dollar sign are the model's.
    assert_eq!(inputs, [("I", "crops", true), ("$iff", "c", false), ("J", "x", false)]);
    assert!(step.is_mapped());
    assert_eq!((rules.max_elements, rules.max_in_flight), (DEFAULT_MAX_ELEMENTS, DEFAULT_MAX_IN_FLIGHT));
}

#[test]
fn parameters_are_read_and_invalid_ones_are_named() {
    let parameter = |key: &str, value: &str| {
        format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} ")
    };
    let plain = step("input_map { key: 'I' value: 'x' }");
    let good = config(&format!(
        "{plain} {} {} {} {} {}",
        parameter("$if_skipped:t", "[0, 1]"),
        parameter("$if_skipped:u", "other"),
        parameter("$on_error:t", "\"none\""),
        parameter("$each_max_elements", "7"),
        parameter("mine", "x"),
    ));
    let rules = EnsembleRules::of(&good).unwrap().unwrap();
    assert_eq!(rules.if_skipped["t"], Filler::Json(serde_json::json!([0, 1])));
    assert_eq!(rules.if_skipped["u"].tensor(), Some("other"));
    assert_eq!(rules.on_error["t"], Filler::Json(serde_json::json!("none")));
    assert_eq!(rules.max_elements, 7);
    for (key, value, reason) in [
        ("$each_max_elements", "0", "is '0', must be a positive number"),
        ("$each_max_in_flight", "many", "is 'many', must be a positive number"),
        ("$if_skiped:t", "0", "is unknown (available: $if_skipped:, $on_error:"),
    ] {
        let config = config(&format!("{plain} {}", parameter(key, value)));
        let invalid = EnsembleRules::of(&config).unwrap_err();
        assert!(invalid[0].key == key && invalid[0].reason.starts_with(reason), "{invalid:?}");
    }
}

#[test]
fn durations_have_a_unit_and_limits() {
    for (text, micros) in [
        ("1us", 1),
        ("250ms", 250_000),
        ("0.5ms", 500),
        ("2s", 2_000_000),
        ("1.5m", 90_000_000),
        ("1440m", 86_400_000_000),
    ] {
        assert_eq!(parse_duration(text), Some(Duration::from_micros(micros)), "{text}");
    }
    for text in [
        "",
        "5",
        "s",
        "0s",
        "0.1us",
        "-1s",
        "+1s",
        "1e3s",
        "1h",
        "2 s",
        " 2s",
        "2s ",
        "1.2.3s",
        "infs",
        "nans",
        "1441m",
        "1S",
        "µs",
        "1µs",
        "99999999999999999999999999m",
    ] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}

#[track_caller]
fn constant(json: &str, data_type: DataType, dims: &[i64]) -> Result<(Vec<i64>, Vec<u8>), String> {
    let constant = Constant::new(&serde_json::from_str(json).unwrap(), data_type, dims)?;
    Ok((constant.shape, constant.contents))
}

#[test]
fn constants_have_the_type_and_dimensions_of_their_tensor() {
    use DataType::*;
    assert_eq!(constant("7", Int16, &[2]), Ok((vec![2], vec![7, 0, 7, 0])));
    assert_eq!(constant("[[1], [2]]", Uint8, &[-1, 1]), Ok((vec![2, 1], vec![1, 2])));
    assert_eq!(constant("[]", Fp32, &[-1, 3, -1]), Ok((vec![0, 3, 0], vec![])));
    assert_eq!(constant("[true]", Bool, &[1]), Ok((vec![1], vec![1])));
    assert_eq!(constant("[\"ab\"]", Bytes, &[-1]), Ok((vec![1], b"\x02\0\0\0ab".to_vec())));
    assert_eq!(constant("0.5", Fp64, &[1]), Ok((vec![1], 0.5_f64.to_le_bytes().to_vec())));
    assert_eq!(constant("0", Fp16, &[2]), Ok((vec![2], vec![0; 4])));
    assert_eq!(constant("18446744073709551615", Uint64, &[1]), Ok((vec![1], vec![255; 8])));
    assert_eq!(constant("5", Int8, &[0]), Ok((vec![0], vec![])));
}

#[test]
fn constants_that_do_not_fit_are_refused() {
    use DataType::*;
    for (json, data_type, dims, reason) in [
        ("256", Uint8, &[1_i64][..], "has the element 256, which is not UINT8"),
        ("1.5", Int32, &[1], "has the element 1.5, which is not INT32"),
        ("1e39", Fp32, &[1], "which is not FP32"),
        ("1", Bytes, &[1], "which is not BYTES"),
        ("\"x\"", Int8, &[0], "which is not INT8"),
        ("1", Fp16, &[1], "the only constant of FP16 is 0"),
        ("1", Int8, &[-1], "variable dimensions [-1]; write a list"),
        ("1", Int8, &[1 << 40], "at most 1048576 elements"),
        ("1", Int8, &[1 << 40, 1 << 40], "at most 1048576 elements"),
        ("[1, 2]", Int8, &[3], "has the shape [2], but the tensor has the dimensions [3]"),
        ("[[1, 2], [3]]", Int8, &[2, 2], "has lists of different lengths, 2 and 1"),
        ("[[1], 2]", Int8, &[2, 1], "nested more deeply"),
        ("[1, [2]]", Int8, &[2], "nested more deeply"),
    ] {
        let error = constant(json, data_type, dims).unwrap_err();
        assert!(error.contains(reason), "{json}: {error}");
    }
}
