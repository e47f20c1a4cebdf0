//! Tensors in double precision.

use super::*;

/// A model, rows, and predictions, as the bits of numbers in double precision.
#[derive(Deserialize)]
struct DoubleCase {
    file: String,
    model_type: String,
    rows: Vec<Vec<u64>>,
    expected: Vec<Vec<u64>>,
}

fn double_cases() -> Vec<DoubleCase> {
    serde_json::from_slice(&fs::read(models().join("double_cases.json")).unwrap()).unwrap()
}

fn numbers(bits: &[Vec<u64>]) -> Vec<f64> {
    bits.iter().flatten().map(|&bits| f64::from_bits(bits)).collect()
}

/// The configuration of a model with these types, which predicts numbers.
fn config(model_type: &str, input: &str, output: &str, outputs: usize) -> String {
    format!(
        "{} default_model_filename: 'model'
         input {{ name: 'input__0' data_type: {input} dims: 8 }}
         output {{ name: 'output__0' data_type: {output} dims: {outputs} }}",
        parameters(&[("model_type", model_type), ("predict_proba", "true")])
    )
}

/// The values of all outputs for rows, which the model takes in this type.
fn outputs(model: &dyn Model, data_type: DataType, rows: &[f64]) -> Vec<Vec<f64>> {
    let mut instance = model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap();
    let contents: Vec<u8> = match data_type {
        DataType::Fp64 => rows.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => rows.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect(),
    };
    let count = rows.len() / 8;
    let inputs = vec![Tensor::new("input__0", data_type, [count as i64, 8], contents)];
    let (request, recorder) = Recorder::request(InferRequest { inputs, ..InferRequest::default() }, count);
    instance.execute(Arc::<Executions>::default().batch(vec![request]));
    let values = |tensor: &Tensor| {
        let contents = tensor.contiguous().unwrap();
        match tensor.data_type {
            DataType::Fp64 => contents.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect(),
            _ => contents.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word).into()).collect(),
        }
    };
    recorder.answer().unwrap().outputs.iter().map(values).collect()
}

fn largest_difference(own: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(own.len(), expected.len());
    let differences = own.iter().zip(expected).map(|(own, expected)| (own - expected).abs());
    differences.fold(0.0, |largest, difference| if difference <= largest { largest } else { difference })
}

/// The predictions of a case by a model that takes features in this type.
fn predicted(case: &DoubleCase, data_type: DataType) -> Vec<f64> {
    // XGBoost's model is a binary classifier: the output has both probabilities.
    let is_binary = case.model_type == "xgboost_json";
    let width = if is_binary { 2 } else { case.expected[0].len() };
    let input = format!("TYPE_{data_type}");
    let (_folder, model) =
        load_file(&case.file, "model", &config(&case.model_type, &input, "TYPE_FP64", width));
    let model = model.unwrap();
    let rows = numbers(&case.rows);
    // As many rows as fit into a batch.
    let batches = rows.chunks(64 * 8);
    let all = batches.flat_map(|rows| outputs(&*model, data_type, rows).remove(0));
    if is_binary { all.skip(1).step_by(2).collect() } else { all.collect() }
}

#[test]
fn features_in_double_precision_are_compared_as_the_libraries_do() {
    let cases = double_cases();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let expected = numbers(&case.expected);
        // XGBoost rounds features.
        let rounds = case.model_type == "xgboost_json";
        let difference = largest_difference(&predicted(&case, DataType::Fp64), &expected);
        let most = match case.file.as_str() {
            "xgb_logistic.json" => 1e-6,
            // Treelite rounds the numbers within its softmax.
            "sk_boosting_classes.tl" => 1e-7,
            _ => 1e-14,
        };
        assert!(difference <= most, "{}: {difference}", case.file);
        // Some rows lose their way if they are rounded before.
        let difference = largest_difference(&predicted(&case, DataType::Fp32), &expected);
        assert_eq!(difference <= 1e-6, rounds, "{}: {difference}", case.file);
    }
}

#[test]
fn inputs_and_outputs_have_types_of_their_own() {
    let explained = |types: [&str; 3]| {
        let [input, output, explanation] = types.map(|name| format!("TYPE_{name}"));
        config("lightgbm", &input, &output, 1)
            + &format!("output {{ name: 'treeshap_output' data_type: {explanation} dims: 9 }}")
    };
    let case = case("lgb_regression");
    let rows: Vec<f64> = case.rows().into_iter().map(f64::from).collect();
    for input in ["FP32", "FP64"] {
        for output in ["FP32", "FP64"] {
            for explanation in ["FP32", "FP64"] {
                let (_folder, model) =
                    load_file("lgb_regression.txt", "model", &explained([input, output, explanation]));
                let data_type = if input == "FP64" { DataType::Fp64 } else { DataType::Fp32 };
                let own = outputs(&*model.unwrap(), data_type, &rows);
                for (own, expected) in own.iter().zip([&case.expected, case.explained.as_ref().unwrap()]) {
                    let expected: Vec<f64> = expected.iter().flatten().copied().collect();
                    assert!(largest_difference(own, &expected) <= 1e-5, "{input} {output} {explanation}");
                }
            }
        }
    }
    for (types, name) in [
        (["INT32", "FP32", "FP32"], "input__0"),
        (["FP16", "FP32", "FP32"], "input__0"),
        (["FP64", "INT64", "FP32"], "output__0"),
        (["FP64", "FP64", "BOOL"], "treeshap_output"),
    ] {
        let error = load_file("lgb_regression.txt", "model", &explained(types)).1.err().unwrap();
        assert!(error.message().contains(name), "{error}");
        assert!(error.message().contains("TYPE_FP32 or TYPE_FP64"), "{error}");
    }
}

#[test]
fn output_that_is_left_out_has_the_type_of_the_input() {
    for (data_type, expected) in [("TYPE_FP32", DataType::Fp32), ("TYPE_FP64", DataType::Fp64)] {
        let config = format!("{BACKEND} input {{ name: 'input__0' data_type: {data_type} dims: 8 }}");
        let (_folder, model) = load_file("lgb_regression.txt", "model.txt", &config);
        let model = model.unwrap();
        let output = &config_of(&*model).output[0];
        assert_eq!((output.name.as_str(), output.data_type().element_type()), ("output__0", Some(expected)));
    }
}
