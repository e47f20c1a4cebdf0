//! Ensembles with conditions, maps and fallbacks: every tensor exists where it is read, and the models fit.

use std::collections::BTreeMap;

use super::{parse_text, validate};
use crate::{DataType, ModelConfig, ensemble_constants, validate_ensemble};

/// An ensemble with inputs `X` (FP32), `a` and `b` (BOOL), output `Y`, and steps like `model: KEY=tensor -> KEY=tensor`.
fn ensemble(steps: &[&str], rest: &str) -> ModelConfig {
    let map = |role: &str, pairs: &str| {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap();
            format!("{role} {{ key: '{key}' value: '{value}' }} ")
        };
        pairs.split_whitespace().map(pair).collect::<String>()
    };
    let step = |step: &&str| {
        let (model, maps) = step.split_once(": ").unwrap();
        let (inputs, outputs) = maps.split_once(" -> ").unwrap();
        let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
        format!("step {{ model_name: '{model}' model_version: -1 {inputs} {outputs} }} ")
    };
    let steps: String = steps.iter().map(step).collect();
    let inputs: String = ["a", "b"]
        .into_iter()
        .filter(|name| steps.contains(&format!("'{name}'")))
        .map(|name| format!("input {{ name: '{name}' data_type: TYPE_BOOL dims: 1 }} "))
        .collect();
    parse_text(&format!(
        "name: 'e' platform: 'ensemble' max_batch_size: 4 {inputs}
         input {{ name: 'X' data_type: TYPE_FP32 dims: 4 }} output {{ name: 'Y' data_type: TYPE_FP32 dims: 4 }}
         ensemble_scheduling {{ {steps} }} {rest}"
    ))
    .unwrap()
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} ")
}

#[track_caller]
fn assert_are(errors: &[crate::ValidationError], expected: &[(&str, &str)]) {
    let found: Vec<_> = errors.iter().map(|error| (error.field(), error.reason())).collect();
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for ((field, reason), (expected_field, part)) in found.iter().zip(expected) {
        assert_eq!(field, expected_field, "{found:#?}");
        assert!(reason.contains(part), "{reason}\n{part}");
    }
}

#[track_caller]
fn fails(config: &ModelConfig, field: &str, reason: &str) {
    assert_are(validate(config).unwrap_err().errors(), &[(field, reason)]);
}

const IF_A: &str = "m: I=X $if=a -> O=Y";
const UNLESS_A: &str = "m: I=X $unless=a -> O=Y";

#[test]
fn time_limits_are_durations() {
    for timeout in ["250ms", "1.5s", "2m"] {
        validate(&ensemble(&[&format!("m: I=X $timeout={timeout} -> O=Y")], "")).unwrap();
    }
    for timeout in ["X", "5", "0s", "2h"] {
        let config = ensemble(&[&format!("m: I=X $timeout={timeout} -> O=Y")], "");
        let field = "ensemble_scheduling.step[0].input_map[\"$timeout\"]";
        fails(&config, field, &format!("is '{timeout}', must be a duration up to a day, such as 250ms"));
    }
    let only = ensemble(&["m: $timeout=1s -> O=Y"], "");
    assert!(validate(&only).is_err());
}

#[test]
fn tensors_that_exist_wherever_they_are_read_are_accepted() {
    let default = parameter("$if_skipped:Y", "0");
    let other = parameter("$if_skipped:Y", "X");
    for (steps, rest) in [
        (&[IF_A, UNLESS_A][..], ""),
        (&[UNLESS_A, IF_A], ""),
        (&[IF_A], &default),
        (&[IF_A], &other),
        // A chain under one condition.
        (&["m: I=t $if=a -> O=Y", "m: I=X $if=a -> O=t", UNLESS_A], ""),
        // If, else if, else.
        (
            &[
                IF_A,
                "m: I=X $unless=a $if=b -> O=Y",
                "c: I=X $unless=a -> O=c",
                "m: I=X $unless=b $if=c -> O=Z",
            ],
            &default,
        ),
        // A condition that exists under a condition only, so that its steps inherit both.
        (&["c: I=X $if=a -> O=c", "m: I=X $if=c -> O=Y", "m: I=X $unless=c -> O=Y", UNLESS_A], ""),
        // The case in which both hold is joined from four.
        (
            &[
                "c: I=X $if=a -> O=c",
                "c: I=X $unless=a -> O=c",
                "m: I=X $if=c -> O=Y",
                "m: I=X $unless=c -> O=Y",
            ],
            "",
        ),
        (&["m: I=X -> O=Y", "m: $on_error=Y I=X -> O=Y"], ""),
        (&[IF_A, "m: $on_error=Y $if=a I=X -> O=Y", UNLESS_A], ""),
        (&["m: I=X -> O=Y", "m: $on_error=Y I=X -> O=Y"], &parameter("$on_error:Y", "X")),
        (&["m: $each:I=X -> O=Y"], ""),
    ] {
        let mut config = ensemble(steps, rest);
        config.output.retain(|output| output.name == "Y");
        if steps.iter().any(|step| step.ends_with("O=Z")) {
            config.output.push(crate::proto::ModelOutput { name: "Z".into(), ..config.output[0].clone() });
            let missing = [(
                "output[1].name",
                "output 'Z' exists only where 'a' is false and 'b' is false and 'c' is true",
            )];
            assert_are(validate(&config).unwrap_err().errors(), &missing);
            continue;
        }
        assert_eq!(validate(&config), Ok(()), "{steps:?}");
    }
}

#[test]
fn tensors_that_may_be_missing_are_refused_where_they_are_read() {
    fails(
        &ensemble(&[IF_A], ""),
        "output[0].name",
        "output 'Y' exists only where 'a' is true; let a step with the opposite condition write it, too, or give it a \
         value elsewhere: parameter '$if_skipped:Y'",
    );
    fails(
        &ensemble(&["m: I=X $if=a -> O=t", "m: I=t -> O=Y"], ""),
        "ensemble_scheduling.step[1].input_map[\"I\"]",
        "tensor 't' exists only where 'a' is true; give this step the same conditions, or the tensor a value",
    );
    fails(
        &ensemble(&["m: I=X $if=a -> O=t", "m: I=t $unless=a -> O=Y", IF_A], ""),
        "ensemble_scheduling.step[1].input_map[\"I\"]",
        "tensor 't' exists only where 'a' is true",
    );
    // A condition that exists in two cases of four.
    fails(
        &ensemble(
            &["c: I=X $if=a $unless=b -> O=c", "c: I=X $unless=a $if=b -> O=c", "m: I=X $if=c -> O=Y"],
            &parameter("$if_skipped:Y", "0"),
        ),
        "ensemble_scheduling.step[2].input_map[\"$if\"]",
        "tensor 'c' exists only where 'a' is true and 'b' is false, or 'a' is false and 'b' is true, which this step",
    );
}

#[test]
fn steps_that_write_one_tensor_have_to_exclude_each_other() {
    let reason = "tensor 'Y' is written by step 0 too; give both opposite conditions";
    for steps in [
        [IF_A, "m: I=X $if=b -> O=Y"],
        [IF_A, IF_A],
        [IF_A, "m: I=X -> O=Y"],
        ["m: I=X -> O=Y", UNLESS_A],
        ["m: I=X -> O=Y", "m: $each:I=X -> O=Y"],
    ] {
        fails(&ensemble(&steps, ""), "ensemble_scheduling.step[1].output_map", reason);
    }
    let twice = ensemble(&["m: I=X $if=a -> O=Y P=Y", UNLESS_A], "");
    fails(&twice, "ensemble_scheduling.step[0].output_map[\"P\"]", "tensor 'Y' is written by step 0 too");
    let many: Vec<_> = std::iter::repeat_n(IF_A, 65).collect();
    let errors = validate(&ensemble(&many, "")).unwrap_err();
    assert!(errors.errors()[0].reason().contains("is written by 65 steps, but at most 64"), "{errors}");
    // Not one edge for each pair of a writer and a reader.
    let all: Vec<_> = (0..5_000).map(|n| format!("m: I=t $if=a -> O=t P=p{n}")).collect();
    let all = ensemble(&all.iter().map(String::as_str).collect::<Vec<_>>(), "");
    assert!(validate(&all).is_err());
}

#[test]
fn cycles_through_conditions_fallbacks_and_values_are_found() {
    let cycle = "ensemble_scheduling.step[0]";
    let own = ensemble(&["c: I=X $if=c -> O=c P=Y"], &parameter("$if_skipped:Y", "0"));
    fails(&own, cycle, "reads its own output, so it can never run");
    let both = ensemble(&["c: I=X $if=d -> O=c", "c: I=c -> O=d P=Y"], "");
    fails(&both, cycle, "steps [0, 1] wait for each other's tensors");
    let value = ensemble(&["m: I=X $if=a -> O=t", "m: I=t -> O=Y"], &(parameter("$if_skipped:t", "Y")));
    fails(&value, "ensemble_scheduling.step[1]", "reads its own output");
    let fallback = ensemble(&["m: I=X -> O=Y", "m: I=Y $on_error=Y -> O=Y"], "");
    fails(&fallback, "ensemble_scheduling.step[1]", "reads its own output");
    let never =
        ensemble(&["c: I=X $if=a -> O=c", "m: I=X $if=c $unless=a -> O=Y"], &parameter("$if_skipped:Y", "0"));
    fails(&never, "ensemble_scheduling.step[1]", "can never run: 'a' would have to be true and false");
}

#[test]
fn long_chains_of_conditions_are_checked_quickly_or_refused() {
    let mut steps = vec!["c: I=X -> O=c0".to_owned()];
    steps.extend((0..59).map(|n| format!("c: I=X $if=c{n} -> O=c{}", n + 1)));
    let last = |n: usize| format!("m: I=X $if=c{n} -> O=Y");
    let default = parameter("$if_skipped:Y", "0");
    let build = |steps: &[String]| ensemble(&steps.iter().map(String::as_str).collect::<Vec<_>>(), &default);
    let good: Vec<_> = steps.iter().cloned().chain([last(59)]).collect();
    assert_eq!(validate(&build(&good)), Ok(()));
    let bad: Vec<_> = steps.into_iter().chain(["c: I=X $if=c59 -> O=c60".to_owned(), last(60)]).collect();
    fails(&build(&bad), "ensemble_scheduling.step[61]", "depends on 61 conditions, but 60 are supported");
    let wide =
        (0..5_000).flat_map(|n| [format!("m: I=X $if=a -> O=t{n}"), format!("m: I=X $unless=a -> O=t{n}")]);
    let reads = (0..5_000).map(|n| format!("I{n}=t{n}")).collect::<Vec<_>>().join(" ");
    let wide: Vec<_> = wide.chain([format!("m: {reads} -> O=Y")]).collect();
    let wide = ensemble(&wide.iter().map(String::as_str).collect::<Vec<_>>(), "");
    assert_eq!(validate(&wide), Ok(()));
}

#[test]
fn fallbacks_replace_a_step_completely() {
    for (steps, rest, field, reason) in [
        (
            &["m: I=X -> O=Y", "m: I=X $on_error=Z -> O=Y"][..],
            "",
            "ensemble_scheduling.step[1].input_map[\"$on_error\"]",
            "no step without '$on_error' writes tensor 'Z'",
        ),
        (
            &[IF_A, UNLESS_A, "m: I=X $on_error=Y -> O=Y"],
            "",
            "ensemble_scheduling.step[2].input_map[\"$on_error\"]",
            "the steps [0, 1] write tensor 'Y' under other conditions; repeat the conditions of the step that may fail",
        ),
        (
            &["m: I=X -> O=Y", "m: I=X $on_error=Y -> O=Y P=t", "m: I=t -> O=u"],
            "",
            "ensemble_scheduling.step[1].output_map[\"P\"]",
            "step 0, which this step replaces if it fails, does not write tensor 't'",
        ),
        (
            &["m: I=X -> O=t P=u", "m: I=X $on_error=t -> O=t", "m: I=t J=u -> O=Y"],
            "",
            "ensemble_scheduling.step[0].output_map[\"P\"]",
            "tensor 'u' has no value if the step fails, unlike other outputs of the step",
        ),
        (
            &["m: I=X -> O=t P=u", "m: I=t J=u -> O=Y"],
            &parameter("$on_error:t", "0"),
            "ensemble_scheduling.step[0].output_map[\"P\"]",
            "set the parameter '$on_error:u'",
        ),
        (
            &["m: I=X -> O=Y"],
            &(parameter("$on_error:Y", "0") + "response_cache { enable: true }"),
            "response_cache",
            "would keep answers without step 0, which may fail; remove 'response_cache'",
        ),
    ] {
        let mut config = ensemble(steps, rest);
        if steps.iter().any(|step| step.ends_with("O=u")) {
            config.output.push(crate::proto::ModelOutput { name: "u".into(), ..config.output[0].clone() });
        }
        fails(&config, field, reason);
    }
}

#[test]
fn values_of_tensors_have_to_exist() {
    let none = "parameters[\"$if_skipped:Y\"]";
    for (steps, key, value, field, reason) in [
        (
            &[IF_A][..],
            "$if_skipped:Y",
            "x",
            none,
            "there is no tensor 'x' (a constant string is written as \"\\\"x\\\"\")",
        ),
        (&[IF_A], "$if_skipped:Y", "Y", none, "the value of tensor 'Y' may be another tensor in turn"),
        (&["m: I=X -> O=Y"], "$if_skipped:Y", "0", none, "has no condition, so it is never skipped"),
        (
            &[IF_A, UNLESS_A],
            "$if_skiped:Y",
            "0",
            "parameters[\"$if_skiped:Y\"]",
            "is unknown (available: $if_skipped:",
        ),
        (
            &[IF_A, UNLESS_A],
            "$on_error:y",
            "0",
            "parameters[\"$on_error:y\"]",
            "no step writes tensor 'y'; did you mean 'Y'?",
        ),
        (
            &[IF_A, UNLESS_A],
            "$each_max_elements",
            "-1",
            "parameters[\"$each_max_elements\"]",
            "must be a positive number",
        ),
    ] {
        fails(&ensemble(steps, &parameter(key, value)), field, reason);
    }
    let missing = ensemble(&["m: I=X $if=a -> O=t", IF_A], &parameter("$if_skipped:Y", "t"));
    fails(&missing, none, "tensor 't' may be missing itself");
}

#[test]
fn inputs_that_may_be_missing_or_are_overwritten_are_refused() {
    let optional = |steps: &[&str], input: usize| {
        let mut config = ensemble(steps, "");
        config.input[input].optional = true;
        config
    };
    let reason = "of the ensemble is optional, so it may be missing";
    let field = |key: &str| format!("ensemble_scheduling.step[0].input_map[{key:?}]");
    let errors = validate(&optional(&[IF_A, UNLESS_A], 0)).unwrap_err();
    assert_are(
        errors.errors(),
        &[(&field("$if"), reason), (&field("$unless").replace("[0]", "[1]"), reason)],
    );
    fails(&optional(&["m: $each:I=X -> O=Y"], 0), &field("$each:I"), reason);
    let overwritten = ensemble(&["m: I=X $if=a -> O=X P=Y", UNLESS_A], "");
    fails(&overwritten, "ensemble_scheduling.step[0].output_map[\"O\"]", "writes the ensemble's input 'X'");
    let empty = ensemble(&["m: $if=a -> O=Y", UNLESS_A], "");
    fails(&empty, "ensemble_scheduling.step[0].input_map", "has directives only");
}

/// The models of these ensembles.
fn models() -> Vec<ModelConfig> {
    let io =
        "input { name: 'I' data_type: TYPE_FP32 dims: 4 } output { name: 'O' data_type: TYPE_FP32 dims: 4 }";
    [
        format!("name: 'm' max_batch_size: 8 {io}"),
        format!("name: 'stream' max_batch_size: 8 model_transaction_policy {{ decoupled: true }} {io}"),
        format!("name: 'sequence' max_batch_size: 8 sequence_batching {{ }} {io}"),
        format!("name: 'plain' {}", io.replace("dims: 4", "dims: [ -1, 4 ]")),
        "name: 'c' max_batch_size: 8 input { name: 'I' data_type: TYPE_FP32 dims: 4 }
         output { name: 'O' data_type: TYPE_BOOL dims: 1 } output { name: 'Q' data_type: TYPE_BOOL dims: 2 }"
            .to_owned(),
        "name: 'list' max_batch_size: 8 input { name: 'I' data_type: TYPE_FP32 dims: 4 }
         output { name: 'O' data_type: TYPE_FP32 dims: [ -1, 4 ] } output { name: 'N' data_type: TYPE_INT32 dims: -1 }"
            .to_owned(),
        "name: 'number' max_batch_size: 8 input { name: 'I' data_type: TYPE_INT32 dims: 1 }
         output { name: 'O' data_type: TYPE_STRING dims: 1 }"
            .to_owned(),
        "name: 'sum' max_batch_size: 8 input { name: 'I' data_type: TYPE_FP32 dims: [ -1, 4 ] }
         output { name: 'O' data_type: TYPE_FP32 dims: 4 }"
            .to_owned(),
        "name: 'texts' max_batch_size: 8 input { name: 'I' data_type: TYPE_STRING dims: [ -1, 1 ] }
         output { name: 'O' data_type: TYPE_FP32 dims: 4 }"
            .to_owned(),
    ]
    .into_iter()
    .map(|text| parse_text(&text).unwrap())
    .collect()
}

#[track_caller]
fn fit(config: &ModelConfig) -> Result<bool, Vec<crate::ValidationError>> {
    assert_eq!(validate(config), Ok(()));
    let models = models();
    let by_name: BTreeMap<&str, &ModelConfig> =
        models.iter().chain([config]).map(|model| (model.name.as_str(), model)).collect();
    validate_ensemble(config, &by_name).map_err(|errors| errors.errors().to_vec())
}

#[test]
fn matching_models_form_a_conditional_ensemble() {
    let list = "list: I=X -> O=crops";
    for steps in [
        &[IF_A, UNLESS_A][..],
        &[list, "m: $each:I=crops -> O=made", "sum: I=made -> O=Y"],
        // The order of the steps does not matter.
        &["sum: I=made -> O=Y", "m: $each:I=crops -> O=made", list],
        &["list: I=X -> N=numbers", "number: $each:I=numbers -> O=made", "texts: I=made -> O=Y"],
        &["number: $each:I=numbers -> O=made", "list: I=X -> N=numbers", "texts: I=made -> O=Y"],
        &["c: I=X -> O=c", "plain: I=X $if=c -> O=Y", "m: I=X $unless=c -> O=Y"],
    ] {
        assert_eq!(fit(&ensemble(steps, "")), Ok(false), "{steps:?}");
    }
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let step = |index: usize, rest: &str| format!("ensemble_scheduling.step[{index}].{rest}");
    let default = parameter("$if_skipped:Y", "0");
    for (steps, rest, field, reason) in [
        (
            &["stream: I=X $if=a -> O=Y", UNLESS_A][..],
            "",
            step(0, "model_name"),
            "model 'stream' is decoupled",
        ),
        (
            &["list: I=X -> O=t", "sequence: $each:I=t -> O=u", "sum: I=u -> O=Y"],
            "",
            step(1, "model_name"),
            "model 'sequence' has sequence_batching, so the step cannot be mapped",
        ),
        (
            &["m: I=X $if=X -> O=Y"],
            &default,
            step(0, "input_map[\"$if\"]"),
            "tensor 'X' is TYPE_FP32 in 'e', but a condition is TYPE_BOOL",
        ),
        (
            &["c: I=X -> Q=c", "m: I=X $unless=c -> O=Y"],
            &default,
            step(1, "input_map[\"$unless\"]"),
            "tensor 'c' has the shape [-1, 2] in 'c', but a condition is one value",
        ),
        (
            &["m: $each:I=X -> O=t", "sum: I=t -> O=Y"],
            "",
            step(0, "input_map[\"$each:I\"]"),
            "tensor 'X' has the shape [-1, 4] in 'e' and [-1, -1, 4] in 'm'",
        ),
        (
            &["m: I=X $iff=a -> O=Y"],
            "",
            step(0, "input_map[\"$iff\"]"),
            "model 'm' has no input '$iff'; did you mean '$if'?",
        ),
        (&["m: I=X $each:I=X $if=a -> O=Y"], &default, step(0, "input_map[\"I\"]"), "is mapped twice"),
        (
            &[IF_A],
            &parameter("$if_skipped:Y", "[1, 2]"),
            "parameters[\"$if_skipped:Y\"]".into(),
            "has the shape [2], but the tensor",
        ),
        (
            &[IF_A],
            &parameter("$if_skipped:Y", "a"),
            "parameters[\"$if_skipped:Y\"]".into(),
            "'a' is TYPE_BOOL with the shape [-1, 1]",
        ),
        (
            &["plain: I=X $if=a -> O=t", "m: I=t -> O=Y"],
            &parameter("$if_skipped:t", "[[0, 0, 0, 0]]"),
            "parameters[\"$if_skipped:t\"]".into(),
            "tensor 't' has no batch dimension in 'plain', unlike the ensemble",
        ),
    ] {
        let errors = fit(&ensemble(steps, rest)).unwrap_err();
        assert!(
            errors.iter().any(|error| error.field() == field && error.reason().contains(reason)),
            "{steps:?}: {errors:#?}"
        );
    }
}

#[test]
fn constants_have_the_form_of_their_tensors() {
    let text = parameter("$if_skipped:made", "[]") + &parameter("$on_error:Y", "0.5");
    let config =
        ensemble(&["list: I=X -> O=crops", "m: $each:I=crops $if=a -> O=made", "sum: I=made -> O=Y"], &text);
    assert_eq!(fit(&config), Ok(false));
    let models = models();
    let by_name = models.iter().map(|model| (model.name.as_str(), model)).collect();
    let constants = ensemble_constants(&config, &by_name);
    let (data_type, made) = &constants.if_skipped["made"];
    assert_eq!((*data_type, &made.shape[..], made.contents.len()), (DataType::Fp32, &[0, 4][..], 0));
    let (_, failed) = &constants.on_error["Y"];
    assert_eq!((&failed.shape[..], &failed.contents[..4]), (&[4][..], &0.5_f32.to_le_bytes()[..]));
}
