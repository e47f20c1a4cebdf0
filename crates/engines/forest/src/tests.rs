//! Models of every kind compared with their own libraries, damaged files, and the backend as a server uses it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use nereid_backend_api::{DataType, InferRequest, RequestedOutput, Tensor};
use nereid_testkit::{Executions, Recorder, conformance};
use nereid_trees::{Forest, shap};
use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::format::Format;
use crate::precision::Rows;

mod linear;
mod precision;
mod several_targets;

/// A model, rows, and the predictions of the library that made the model.
#[derive(Deserialize)]
struct Case {
    name: String,
    file: String,
    model_type: String,
    rows: Vec<Vec<Option<f32>>>,
    expected: Vec<Vec<f64>>,
    explained: Option<Vec<Vec<f64>>>,
}

impl Case {
    fn contents(&self) -> Vec<u8> {
        fs::read(models().join(&self.file)).unwrap()
    }

    fn forest(&self) -> Forest {
        let format = Format::of_model_type(&self.model_type).unwrap();
        match format::parse(&self.contents(), format, false) {
            Ok(AnyForest::Single(forest)) => forest,
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn rows(&self) -> Vec<f32> {
        self.rows.iter().flatten().map(|value| value.unwrap_or(f32::NAN)).collect()
    }
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn cases() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let read = |name: &str| -> Vec<Case> {
            serde_json::from_slice(&fs::read(models().join(name)).unwrap()).unwrap()
        };
        let files = [
            "cases.json",
            "binary_cases.json",
            "checkpoint_cases.json",
            "leaf_cases.json",
            "real_cases.json",
        ];
        files.into_iter().flat_map(read).collect()
    });
    &CASES
}

/// The largest difference, relative to values above one.
fn difference(own: &[f32], expected: &[Vec<f64>]) -> f64 {
    let expected: Vec<f64> = expected.iter().flatten().copied().collect();
    assert_eq!(own.len(), expected.len());
    let differences = own
        .iter()
        .zip(expected)
        .map(|(&own, expected)| (f64::from(own) - expected).abs() / expected.abs().max(1.0));
    // A NaN is a difference.
    differences.fold(0.0, |largest, difference| if difference <= largest { largest } else { difference })
}

#[test]
fn results_are_those_of_the_models_own_libraries() {
    let cases = cases();
    assert_eq!(cases.len(), 180);
    for case in cases {
        let difference = difference(&case.forest().predict(&case.rows(), 1), &case.expected);
        assert!(difference <= 1e-6, "{}: {difference}", case.name);
    }
}

#[test]
fn explanations_are_those_of_the_models_own_libraries() {
    let mut explained = 0;
    for case in cases() {
        let Some(expected) = &case.explained else { continue };
        explained += 1;
        let forest = case.forest();
        let means = shap::means(&forest);
        let rows = case.rows();
        let rows = rows.chunks(forest.description().features);
        let own: Vec<f32> = rows.flat_map(|row| shap::explain::<_, f32>(&forest, &means, row)).collect();
        let difference = difference(&own, expected);
        assert!(difference <= 1e-5, "{}: {difference}", case.name);
    }
    assert!(explained >= 40, "{explained}");
}

#[test]
fn formats_are_known_by_their_contents() {
    for case in cases() {
        let seen = Format::of_contents(&case.contents());
        let expected = Format::of_model_type(&case.model_type).unwrap();
        // The old binary form need not begin with anything.
        assert!(seen == Some(expected) || expected == Format::XgboostBinary, "{}: {seen:?}", case.name);
    }
}

#[test]
fn truncated_files_are_refused() {
    for case in cases() {
        let contents = case.contents();
        let format = Format::of_model_type(&case.model_type).unwrap();
        for part in 0..20 {
            let end = contents.len() * part / 20;
            let Ok(forest) = format::parse(&contents[..end], format, false) else { continue };
            // In these formats, sections that are not needed follow.
            assert!(matches!(format, Format::LightGbm | Format::XgboostBinary), "{} cut at {end}", case.name);
            let rows = case.rows();
            let own: Vec<f32> = forest.predict(&Rows::Single(rows.as_slice().into()), 1);
            assert!(difference(&own, &case.expected) <= 1e-6, "{} cut at {end}", case.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A damaged file is refused, or is a forest that runs.
    #[test]
    fn damaged_files_neither_panic_nor_run_for_ever(
        number in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        double in any::<bool>(),
        words in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![0_u32, 1, u32::MAX, 1 << 31, 1 << 20])), 0..3),
    ) {
        let case = &cases()[number.index(cases().len())];
        let mut contents = case.contents();
        for (place, value) in changes {
            let place = place.index(contents.len());
            contents[place] = value;
        }
        for (place, word) in words {
            let place = place.index(contents.len().saturating_sub(4));
            contents[place..place + 4].copy_from_slice(&word.to_le_bytes());
        }
        let format = Format::of_model_type(&case.model_type).unwrap();
        if let Ok(forest) = format::parse(&contents, format, double) {
            let features = forest.description().features;
            if features < 1 << 20 {
                let bytes = bytemuck::cast_slice::<f32, u8>(&vec![0.5; features * 6]).to_vec();
                let data_type = if double { DataType::Fp64 } else { DataType::Fp32 };
                let mut words = vec![0_u64; bytes.len().div_ceil(8)];
                bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(&bytes);
                let rows = forest.rows(data_type, &bytemuck::cast_slice(&words)[..bytes.len()]).unwrap();
                forest.predict::<f32>(&rows, 1);
                forest.explain::<f32>(&rows, &forest.means(), 1, 1);
            }
        }
    }
}

/// A model in a folder of its own: a file of `tests/models` under another name, and a configuration.
fn load_file(file: &str, name: &str, config: &str) -> (tempfile::TempDir, Result<Box<dyn Model>>) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("1")).unwrap();
    fs::copy(models().join(file), folder.path().join("1").join(name)).unwrap();
    let mut context = nereid_testkit::context("m", nereid_testkit::normalised("m", config));
    context.directory = folder.path().to_owned();
    context.complete = true;
    let model = ForestBackend::default().load(context);
    (folder, model)
}

fn config_of(model: &dyn Model) -> &ModelConfig {
    model.completed_config().unwrap()
}

/// The outputs for rows, by name.
fn infer(
    model: &dyn Model,
    rows: &[f32],
    shape: [i64; 2],
    outputs: &[&str],
) -> Result<Vec<(Vec<i64>, Vec<f32>)>> {
    let mut instance = model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap();
    let contents: Vec<u8> = rows.iter().flat_map(|value| value.to_le_bytes()).collect();
    let request = InferRequest {
        inputs: vec![Tensor::new("input__0", DataType::Fp32, shape, contents)],
        outputs: outputs.iter().map(|name| RequestedOutput::new(*name)).collect(),
        ..InferRequest::default()
    };
    let executions = Arc::<Executions>::default();
    let (request, recorder) = Recorder::request(request, shape[0] as usize);
    instance.execute(executions.batch(vec![request]));
    let answer = recorder.answer()?;
    let numbers = |tensor: &Tensor| {
        let contents = tensor.contiguous().unwrap();
        let words = contents.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word));
        (tensor.shape.to_vec(), words.collect())
    };
    Ok(answer.outputs.iter().map(numbers).collect())
}

const BACKEND: &str = "backend: 'fil' max_batch_size: 64\n";

fn parameters(pairs: &[(&str, &str)]) -> String {
    let parameters = pairs
        .iter()
        .map(|(key, value)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n"));
    BACKEND.to_owned() + &parameters.collect::<String>()
}

fn case(name: &str) -> &'static Case {
    cases().iter().find(|case| case.name == name).unwrap()
}

#[test]
fn model_without_inputs_and_outputs_is_completed() {
    for (file, name, options, dims) in [
        ("xgb_regression.json", "xgboost.json", &[][..], [8, 1]),
        ("xgb_regression.ubj", "xgboost.ubj", &[], [8, 1]),
        ("xgb_regression.deprecated", "xgboost.model", &[], [8, 1]),
        ("xgb_classes.json", "xgboost.json", &[], [8, 1]),
        ("xgb_classes.json", "xgboost.json", &[("predict_proba", "true")], [8, 4]),
        ("xgb_classes.json", "xgboost.json", &[("is_classifier", "false")], [8, 4]),
        ("lgb_binary.txt", "model.txt", &[("predict_proba", "true")], [8, 2]),
        ("lgb_binary.txt", "model.txt", &[("output_class", "true")], [8, 1]),
        ("sk_forest_classes.tl", "checkpoint.tl", &[("predict_proba", "true")], [8, 4]),
    ] {
        let (_folder, model) = load_file(file, name, &parameters(options));
        let model = model.unwrap();
        let config = config_of(&*model);
        let all = config.input.iter().map(|input| (&input.name, &input.dims));
        let all: Vec<_> =
            all.chain(config.output.iter().map(|output| (&output.name, &output.dims))).collect();
        let expected = [("input__0", dims[0]), ("output__0", dims[1])];
        assert_eq!(all.len(), 2);
        for ((name, own), (expected, dim)) in all.into_iter().zip(expected) {
            assert_eq!((name.as_str(), own.as_slice()), (expected, [dim].as_slice()), "{file} {options:?}");
        }
    }
}

#[test]
fn classes_and_probabilities_are_results_of_classifiers() {
    let best = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as f32;
    for (name, file, as_name) in [
        ("xgb_classes_json", "xgb_classes.json", "xgboost.json"),
        ("lgb_one_vs_all", "lgb_one_vs_all.txt", "model.txt"),
        ("sk_forest_binary", "sk_forest_binary.tl", "checkpoint.tl"),
        ("xgb_logistic_ubj", "xgb_logistic.ubj", "xgboost.ubj"),
    ] {
        let case = case(name);
        let shape = [case.rows.len() as i64, 8];
        let run = |options: &[(&str, &str)]| {
            let (_folder, model) = load_file(file, as_name, &parameters(options));
            infer(&*model.unwrap(), &case.rows(), shape, &["output__0"]).unwrap().remove(0)
        };
        let (dims, classes) = run(&[]);
        assert_eq!(dims, [shape[0], 1]);
        let (dims, probabilities) = run(&[("predict_proba", "true")]);
        let is_binary = case.expected[0].len() == 1;
        assert_eq!(dims, [shape[0], if is_binary { 2 } else { case.expected[0].len() as i64 }]);
        let both = |row: &Vec<f64>| if is_binary { vec![1.0 - row[0], row[0]] } else { row.clone() };
        let expected: Vec<Vec<f64>> = case.expected.iter().map(both).collect();
        assert!(difference(&probabilities, &expected) <= 1e-6, "{name}");
        assert_eq!(classes, expected.iter().map(|row| best(row)).collect::<Vec<_>>(), "{name}");
        if is_binary {
            let (_, strict) = run(&[("threshold", "0.9")]);
            let expected: Vec<f32> =
                case.expected.iter().map(|row| f32::from(u8::from(row[0] > 0.9))).collect();
            assert_eq!(strict, expected, "{name}");
            assert_ne!(strict, classes, "{name}");
        }
    }
}

#[test]
fn explanations_are_an_output_of_their_own() {
    for (name, file, as_name, outputs, dims) in [
        ("xgb_logistic_json", "xgb_logistic.json", "xgboost.json", 1, "9"),
        ("lgb_classes", "lgb_classes.txt", "model.txt", 4, "4, 9"),
        ("lgb_classes", "lgb_classes.txt", "model.txt", 4, "36"),
    ] {
        let case = case(name);
        let config = format!(
            "{} input {{ name: 'input__0' data_type: TYPE_FP32 dims: 8 }}
             output {{ name: 'output__0' data_type: TYPE_FP32 dims: {outputs} }}
             output {{ name: 'treeshap_output' data_type: TYPE_FP32 dims: [ {dims} ] }}",
            parameters(&[("predict_proba", "true")])
        );
        let (_folder, model) = load_file(file, as_name, &config);
        let model = model.unwrap();
        let rows = case.rows.len() as i64;
        let all = infer(&*model, &case.rows(), [rows, 8], &["treeshap_output"]).unwrap();
        let [(shape, values)] = all.as_slice() else { panic!("{all:?}") };
        let dims = dims.split(", ").map(|dim| dim.parse::<i64>().unwrap());
        assert_eq!(*shape, [rows].into_iter().chain(dims).collect::<Vec<_>>());
        assert!(difference(values, case.explained.as_ref().unwrap()) <= 1e-5);
        assert_eq!(infer(&*model, &case.rows(), [rows, 8], &[]).unwrap().len(), 2);
    }
}

#[test]
fn one_row_needs_no_batch_dimension() {
    let case = case("xgb_regression_json");
    let row = &case.rows()[..8];
    for (input, output, shape) in [("8", "1", vec![8]), ("-1, 8", "-1, 1", vec![1, 8])] {
        let config = format!(
            "backend: 'fil' input {{ name: 'input__0' data_type: TYPE_FP32 dims: [ {input} ] }}
             output {{ name: 'output__0' data_type: TYPE_FP32 dims: [ {output} ] }}"
        );
        let (_folder, model) = load_file("xgb_regression.json", "xgboost.json", &config);
        let model = model.unwrap();
        let mut instance = model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap();
        let contents: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        let request = InferRequest {
            inputs: vec![Tensor::new("input__0", DataType::Fp32, shape.as_slice(), contents)],
            ..InferRequest::default()
        };
        let (request, recorder) = Recorder::request(request, 1);
        instance.execute(Arc::<Executions>::default().batch(vec![request]));
        let answer = recorder.answer().unwrap();
        assert_eq!(answer.outputs[0].shape.len(), shape.len());
        let result: [u8; 4] = answer.outputs[0].contiguous().unwrap().as_ref().try_into().unwrap();
        assert!(difference(&[f32::from_le_bytes(result)], &case.expected[..1]) <= 1e-6);
    }
}

#[test]
fn wrong_configurations_are_refused() {
    let tensors = |input: &str, output: &str| {
        format!(
            "{BACKEND} input {{ name: 'input__0' data_type: TYPE_FP32 dims: [ {input} ] }}
             output {{ name: 'output__0' data_type: TYPE_FP32 dims: [ {output} ] }}"
        )
    };
    let explained = |dims: &str| {
        tensors("8", "1")
            + &format!("output {{ name: 'treeshap_output' data_type: TYPE_FP32 dims: [ {dims} ] }}")
    };
    let classes = parameters(&[("predict_proba", "true")]) + &tensors("8", "3").replace(BACKEND, "");
    for (file, config, expected) in [
        ("xgb_regression.json", tensors("7", "1"), "the model has 8 features"),
        ("xgb_regression.json", tensors("8", "2"), "the model has 1 results"),
        ("xgb_classes.json", classes, "the model has 4 results"),
        ("xgb_regression.json", tensors("8", "1").replace("output__0", "y"), "output__0"),
        ("xgb_regression.json", explained("8"), "the model has 9 values"),
        (
            "xgb_regression.json",
            parameters(&[("model_type", "lightgbm")]),
            "looks like model_type 'xgboost_json'",
        ),
        ("xgb_regression.json", parameters(&[("threshold", "x")]), "threshold"),
        ("lgb_binary.txt", BACKEND.to_owned(), "XGBoost in JSON"),
    ] {
        let name = if config.contains("lightgbm") { "model.txt" } else { "xgboost.json" };
        let config =
            if file.ends_with("txt") { parameters(&[("model_type", "xgboost_json")]) } else { config };
        let error = load_file(file, name, &config).1.err().unwrap_or_else(|| panic!("{config}"));
        assert!(error.message().contains(expected), "{expected}: {error}");
    }
    let error = load_file("xgb_regression.json", "other.json", BACKEND).1.err().unwrap();
    assert!(
        error.message().contains("xgboost.json, xgboost.ubj, xgboost.model, model.txt, checkpoint.tl"),
        "{error}"
    );
}

#[test]
fn backend_conforms() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("1")).unwrap();
    fs::copy(models().join("xgb_regression.json"), folder.path().join("1/xgboost.json")).unwrap();
    let context = |text: &str| {
        let mut context = nereid_testkit::context("m", nereid_testkit::normalised("m", text));
        context.directory = folder.path().to_owned();
        context
    };
    let config = format!(
        "{BACKEND} input {{ name: 'input__0' data_type: TYPE_FP32 dims: 8 }}
         output {{ name: 'output__0' data_type: TYPE_FP32 dims: 1 }}"
    );
    conformance::backend(conformance::Subject {
        backend: Arc::new(ForestBackend::default()),
        model: context(&config),
        request: |number| InferRequest {
            inputs: vec![Tensor::new("input__0", DataType::Fp32, [1, 8], row(number))],
            ..InferRequest::default()
        },
        outputs: |number| {
            let forest = case("xgb_regression_json").forest();
            let values: Vec<f32> =
                row(number).as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
            let result = forest.predict::<f32>(&values, 1)[0].to_le_bytes().to_vec();
            vec![Tensor::new("output__0", DataType::Fp32, [1, 1], result)]
        },
        max_batch: 64,
        reports_executions: true,
        refused: vec![(context(&config.replace("dims: 8", "dims: 9")), "the model has 8 features")],
        faulty: None,
    });
}

/// A row that depends on a number, as bytes.
fn row(number: u8) -> Vec<u8> {
    (0..8).flat_map(|feature| (f32::from(number) / 40.0 - feature as f32 / 3.0).to_le_bytes()).collect()
}
