//! Ensembles: their graphs, and how they fit their models. The rules of the graph follow
//! ValidateEnsembleSchedulingConfig and BuildEnsembleGraph in the reference's `model_config_utils.cc`; the rules of
//! the models follow ValidateEnsembleConfig and ValidateTensorMapping in `ensemble_utils.cc`.

use std::collections::BTreeMap;

use super::{parse_text, validate};
use crate::{ModelConfig, validate_ensemble};

fn ensemble(rest: &str) -> ModelConfig {
    parse_text(&format!("name: 'e' platform: 'ensemble' max_batch_size: 4 {rest}")).unwrap()
}

const ENDS: &str =
    "input { name: 'X' data_type: TYPE_FP32 dims: 4 } output { name: 'Y' data_type: TYPE_FP32 dims: 4 }";

/// A step from its model and its two maps, written as `KEY=tensor`.
fn step(model: &str, inputs: &[&str], outputs: &[&str]) -> String {
    let map = |field: &str, pairs: &[&str]| -> String {
        let entry = |pair: &&str| {
            let (key, tensor) = pair.split_once('=').unwrap();
            format!("{field} {{ key: '{key}' value: '{tensor}' }} ")
        };
        pairs.iter().map(entry).collect()
    };
    let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
    format!("step {{ model_name: '{model}' model_version: -1 {inputs} {outputs} }} ")
}

fn with_steps(steps: &[String]) -> ModelConfig {
    ensemble(&format!("{ENDS} ensemble_scheduling {{ {} }}", steps.concat()))
}

#[track_caller]
fn fails(config: &ModelConfig, expected: &[(&str, &str)]) {
    let errors = validate(config).unwrap_err();
    assert_are(errors.errors(), expected);
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

#[test]
fn ensemble_requires_steps_and_refuses_model_settings() {
    let whole = |text: &str| parse_text(text).unwrap();
    fails(&whole("name: 'e' platform: 'ensemble'"), &[("ensemble_scheduling", "is required for platform")]);
    let good = format!("{ENDS} ensemble_scheduling {{ {} }}", step("a", &["I=X"], &["O=Y"]));
    assert_eq!(validate(&ensemble(&good)), Ok(()));
    for (more, field, reason) in [
        ("backend: 'b'", "backend", "an ensemble has no backend"),
        ("instance_group { }", "instance_group", "an ensemble has no instances of its own"),
        ("optimization { }", "optimization", "does not apply to an ensemble"),
        ("model_warmup { }", "model_warmup", "an ensemble cannot be warmed up"),
    ] {
        fails(&ensemble(&format!("{good} {more}")), &[(field, reason)]);
    }
    let elsewhere = whole(&format!("name: 'e' backend: 'b' max_batch_size: 4 {good}"));
    fails(&elsewhere, &[("platform", "must be 'ensemble' if ensemble_scheduling is set")]);
    fails(&ensemble("ensemble_scheduling { }"), &[("ensemble_scheduling.step", "is required")]);
}

#[test]
fn step_requires_a_model_and_both_maps() {
    fails(
        &with_steps(&[step("", &["I=X"], &[]), step("a", &[], &["O=Y"])]),
        &[
            ("ensemble_scheduling.step[0].model_name", "is required"),
            ("ensemble_scheduling.step[0].output_map", "is required"),
            ("ensemble_scheduling.step[1].input_map", "is required"),
        ],
    );
    let mut config = with_steps(&[step("a", &["I=X"], &["O=Y"])]);
    if let Some(crate::proto::model_config::SchedulingChoice::EnsembleScheduling(ensemble)) =
        &mut config.scheduling_choice
    {
        ensemble.step[0].model_version = -2;
    }
    fails(&config, &[("ensemble_scheduling.step[0].model_version", "or -1 for the latest")]);
}

#[test]
fn unconnected_tensors_are_refused() {
    fails(
        &with_steps(&[step("a", &["I=X"], &["O=image"]), step("a", &["I=imgae"], &["O=Y"])]),
        &[
            (
                "ensemble_scheduling.step[0].output_map[\"O\"]",
                "no step reads tensor 'image', and it is not an output of \
                the ensemble; did you mean 'imgae'?",
            ),
            (
                "ensemble_scheduling.step[1].input_map[\"I\"]",
                "no step writes tensor 'imgae', and it is not an input of \
                the ensemble; did you mean 'image'?",
            ),
        ],
    );
    fails(
        &with_steps(&[step("a", &["I=Q"], &["O=R"])]),
        &[
            ("ensemble_scheduling.step[0].input_map[\"I\"]", "no step writes tensor 'Q'"),
            ("ensemble_scheduling.step[0].output_map[\"O\"]", "no step reads tensor 'R'"),
            ("input[0].name", "no step reads input 'X'"),
            ("output[0].name", "no step writes output 'Y'"),
        ],
    );
}

#[test]
fn tensor_with_two_writers_is_refused() {
    fails(
        &with_steps(&[step("a", &["I=X"], &["O=Y"]), step("b", &["I=X"], &["O=Y", "P=Y"])]),
        &[
            ("ensemble_scheduling.step[1].output_map[\"O\"]", "tensor 'Y' is written by step 0 too"),
            ("ensemble_scheduling.step[1].output_map[\"P\"]", "tensor 'Y' is written by step 0 too"),
        ],
    );
}

#[test]
fn cyclic_steps_are_reported_without_their_dependents() {
    let steps = [
        step("a", &["I=X"], &["O=first"]),
        step("a", &["I=b", "J=first"], &["O=a"]),
        step("a", &["I=a"], &["O=b", "P=behind"]),
        step("a", &["I=behind"], &["O=Y"]),
    ];
    let reason = "steps [1, 2] wait for each other's tensors, so they can never run";
    fails(&with_steps(&steps), &[("ensemble_scheduling.step[1]", reason)]);
    let own = [step("a", &["I=X", "J=loop"], &["O=loop", "P=Y"])];
    fails(&with_steps(&own), &[("ensemble_scheduling.step[0]", "reads its own output, so it can never run")]);
}

/// As in the reference: the request's tensor is available from the start.
#[test]
fn step_may_overwrite_an_input() {
    let config =
        "input { name: 'X' data_type: TYPE_FP32 dims: 4 } output { name: 'X' data_type: TYPE_FP32 dims: 4 }";
    let steps = step("a", &["I=X"], &["O=X"]);
    assert_eq!(validate(&ensemble(&format!("{config} ensemble_scheduling {{ {steps} }}"))), Ok(()));
}

#[test]
fn long_chains_and_wide_steps_are_checked_quickly() {
    let mut steps = vec![step("a", &["I=X"], &["O=t0"])];
    steps.extend((0..20_000).map(|n| step("a", &[&format!("I=t{n}")], &[&format!("O=t{}", n + 1)])));
    steps.push(step("a", &["I=t20000"], &["O=Y"]));
    assert_eq!(validate(&with_steps(&steps)), Ok(()));
    let names: Vec<String> = (0..2_000).map(|n| format!("K{n}=w{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let wide = [step("a", &["I=X"], &names), step("a", &names, &["O=Y"])];
    assert_eq!(validate(&with_steps(&wide)), Ok(()));
}

/// The models used in these ensembles, and the ensemble itself.
fn models() -> Vec<ModelConfig> {
    [
        "name: 'plain' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 4 }
            output { name: 'OUT' data_type: TYPE_FP32 dims: 4 }",
        "name: 'small' max_batch_size: 2 input { name: 'IN' data_type: TYPE_FP32 dims: 4 }
            output { name: 'OUT' data_type: TYPE_FP32 dims: 4 }",
        "name: 'unbatched' input { name: 'IN' data_type: TYPE_FP32 dims: [ -1, 4 ] }
            output { name: 'OUT' data_type: TYPE_FP32 dims: [ -1, 4 ] }",
        "name: 'any' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: -1 }
            output { name: 'OUT' data_type: TYPE_FP32 dims: -1 }",
        "name: 'ints' max_batch_size: 8 input { name: 'IN' data_type: TYPE_INT32 dims: 5 }
            output { name: 'OUT' data_type: TYPE_FP32 dims: [ 2, 2 ] }",
        "name: 'two' max_batch_size: 8 input [ { name: 'IN' data_type: TYPE_FP32 dims: 4 },
            { name: 'MASK' data_type: TYPE_FP32 dims: 4 }, { name: 'HINT' data_type: TYPE_FP32 dims: 4 optional: true } ]
            output { name: 'OUT' data_type: TYPE_FP32 dims: 4 }",
        "name: 'stream' max_batch_size: 8 model_transaction_policy { decoupled: true }
            input { name: 'IN' data_type: TYPE_FP32 dims: 4 } output { name: 'OUT' data_type: TYPE_FP32 dims: 4 }",
        "name: 'back' platform: 'ensemble' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 4 }
            output { name: 'OUT' data_type: TYPE_FP32 dims: 4 } ensemble_scheduling { step { model_name: 'e' } }",
        "name: 'behind_back' platform: 'ensemble' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 4 }
            output { name: 'OUT' data_type: TYPE_FP32 dims: 4 }
            ensemble_scheduling { step { model_name: 'back' } step { model_name: 'behind_back' } }",
    ]
    .into_iter()
    .map(|text| parse_text(text).unwrap())
    .collect()
}

/// `Ok` contains whether the ensemble is decoupled.
fn fit(config: &ModelConfig) -> Result<bool, Vec<crate::ValidationError>> {
    let models = models();
    let by_name: BTreeMap<&str, &ModelConfig> =
        models.iter().chain([config]).map(|model| (model.name.as_str(), model)).collect();
    validate_ensemble(config, &by_name).map_err(|errors| errors.errors().to_vec())
}

#[track_caller]
fn does_not_fit(config: &ModelConfig, expected: &[(&str, &str)]) {
    assert_are(&fit(config).unwrap_err(), expected);
}

#[test]
fn matching_models_form_an_ensemble() {
    for steps in [
        vec![step("plain", &["IN=X"], &["OUT=Y"])],
        vec![step("unbatched", &["IN=X"], &["OUT=Y"])],
        vec![step("any", &["IN=X"], &["OUT=t"]), step("plain", &["IN=t"], &["OUT=Y"])],
        vec![step("two", &["IN=X", "MASK=X"], &["OUT=Y"])],
    ] {
        let config = with_steps(&steps);
        assert_eq!(validate(&config), Ok(()));
        assert_eq!(fit(&config), Ok(false), "{steps:?}");
    }
    let reshaped = ensemble(&format!(
        "input {{ name: 'X' data_type: TYPE_FP32 dims: [ 2, 2 ] reshape {{ shape: 4 }} }}
         output {{ name: 'Y' data_type: TYPE_FP32 dims: [ 4, 1 ] reshape {{ shape: 4 }} }}
         ensemble_scheduling {{ {} }}",
        step("plain", &["IN=X"], &["OUT=Y"])
    ));
    assert_eq!(fit(&reshaped), Ok(false));
    // Not an ensemble at all.
    assert_eq!(fit(&models()[0]), Ok(false));
    assert_eq!(fit(&models()[6]), Ok(true));
}

#[test]
fn unknown_and_missing_tensors_in_maps_are_refused() {
    does_not_fit(
        &with_steps(&[
            step("plani", &["IN=X"], &["OUT=a"]),
            step("plain", &["IM=X"], &["OTU=b"]),
            step("two", &["IN=a", "MASKS=b"], &["OUT=Y"]),
        ]),
        &[
            ("ensemble_scheduling.step[0].model_name", "model 'plani' does not exist; did you mean 'plain'?"),
            (
                "ensemble_scheduling.step[1].input_map[\"IM\"]",
                "model 'plain' has no input 'IM'; did you mean 'IN'?",
            ),
            ("ensemble_scheduling.step[1].output_map[\"OTU\"]", "has no output 'OTU'; did you mean 'OUT'?"),
            (
                "ensemble_scheduling.step[1].input_map",
                "missing input 'IN' of model 'plain'; is it misspelled as 'IM'?",
            ),
            (
                "ensemble_scheduling.step[2].input_map[\"MASKS\"]",
                "has no input 'MASKS'; did you mean 'MASK'?",
            ),
            ("ensemble_scheduling.step[2].input_map", "missing input 'MASK' of model 'two'"),
        ],
    );
}

#[test]
fn conflicting_types_and_shapes_are_refused() {
    does_not_fit(
        &with_steps(&[step("ints", &["IN=X"], &["OUT=Y"])]),
        &[
            (
                "ensemble_scheduling.step[0].input_map[\"IN\"]",
                "tensor 'X' is TYPE_FP32 in 'e' and TYPE_INT32 in 'ints'",
            ),
            (
                "ensemble_scheduling.step[0].output_map[\"OUT\"]",
                "tensor 'Y' has the shape [-1, 4] in 'e' and [-1, 2, 2] in 'ints'",
            ),
        ],
    );
}

#[test]
fn model_with_smaller_batches_than_the_ensemble_is_refused() {
    let reason = "is 4, but model 'small' accepts at most 2";
    does_not_fit(&with_steps(&[step("small", &["IN=X"], &["OUT=Y"])]), &[("max_batch_size", reason)]);
}

#[test]
fn recursive_ensembles_are_refused() {
    let field = "ensemble_scheduling.step[0].model_name";
    for model in ["back", "behind_back"] {
        does_not_fit(
            &with_steps(&[step(model, &["IN=X"], &["OUT=Y"])]),
            &[(field, "ensemble 'back' has 'e' as a step in turn")],
        );
    }
    let itself = with_steps(&[step("e", &["X=X"], &["Y=Y"])]);
    assert_eq!(validate(&itself), Ok(()));
    does_not_fit(&itself, &[(field, "an ensemble cannot be a step of itself")]);
}

#[test]
fn decoupled_model_makes_the_ensemble_decoupled() {
    let chain = [step("stream", &["IN=X"], &["OUT=a"]), step("plain", &["IN=a"], &["OUT=Y"])];
    assert_eq!(fit(&with_steps(&chain)), Ok(true));
}

#[test]
fn joining_answers_of_a_decoupled_model_is_refused() {
    let joined = "joins the answers of a decoupled model with other tensors";
    does_not_fit(
        &with_steps(&[step("stream", &["IN=X"], &["OUT=a"]), step("two", &["IN=a", "MASK=X"], &["OUT=Y"])]),
        &[("ensemble_scheduling.step[1].input_map", joined)],
    );
    does_not_fit(
        &with_steps(&[
            step("stream", &["IN=X"], &["OUT=a"]),
            step("stream", &["IN=X"], &["OUT=b"]),
            step("two", &["IN=a", "MASK=b"], &["OUT=Y"]),
        ]),
        &[("ensemble_scheduling.step[2].input_map", joined)],
    );
    let outputs = ensemble(&format!(
        "{ENDS} output {{ name: 'Z' data_type: TYPE_FP32 dims: 4 }} ensemble_scheduling {{ {} {} }}",
        step("stream", &["IN=X"], &["OUT=Y"]),
        step("plain", &["IN=X"], &["OUT=Z"])
    ));
    does_not_fit(&outputs, &[("output", "some outputs come from a decoupled model and others do not")]);
}
