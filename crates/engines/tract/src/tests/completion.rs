//! Completion from a file, through the backend's traits. The rules themselves are tested where they stand.

use nereid_backend_api::{BackendSettings, DataType, ErrorCode, ModelConfig};
use nereid_model_config::proto::model_config::SchedulingChoice;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file, floats, graph, identity, node, port};
use super::server::{complete_from, config, folder, load_from};

type Tensors<'a> = Vec<(&'a str, DataType, &'a [i64])>;

fn completed(file: &[u8], config: ModelConfig) -> ModelConfig {
    let model = complete_from(&folder(file), config, BackendSettings::default()).unwrap();
    model.completed_config().expect("the configuration is completed").clone()
}

fn refusal(file: &[u8], config: ModelConfig) -> String {
    let outcome = complete_from(&folder(file), config, BackendSettings::default());
    let error = outcome.map(|_| ()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    error.message().to_owned()
}

fn inputs(config: &ModelConfig) -> Tensors<'_> {
    config
        .input
        .iter()
        .map(|it| (it.name.as_str(), it.data_type().element_type().unwrap(), it.dims.as_slice()))
        .collect()
}

fn outputs(config: &ModelConfig) -> Tensors<'_> {
    config
        .output
        .iter()
        .map(|it| (it.name.as_str(), it.data_type().element_type().unwrap(), it.dims.as_slice()))
        .collect()
}

#[test]
fn names_types_and_dimensions_come_from_the_file_in_its_order() {
    let ports = [("B", Element::Int64, [-1, 2]), ("A", Element::Bool, [-1, -1])];
    let nodes = vec![node("Identity", &["B"], &["Z"]), node("Identity", &["A"], &["Y"])];
    let inputs_of_file = ports.map(|(name, element, dims)| port(name, element, &dims));
    let outputs_of_file = vec![port("Z", Element::Int64, &[-1, 2]), port("Y", Element::Bool, &[-1, -1])];
    let file = file(graph(inputs_of_file.into(), nodes, outputs_of_file, vec![]));
    let config = completed(&file, ModelConfig::default());
    let (int, bool) = (DataType::Int64, DataType::Bool);
    assert_eq!(inputs(&config), [("B", int, [2].as_slice()), ("A", bool, &[-1])]);
    assert_eq!(outputs(&config), [("Z", int, [2].as_slice()), ("Y", bool, &[-1])]);
    assert_eq!(config.max_batch_size, 4);
    assert!(matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
}

#[test]
fn every_element_type_is_completed() {
    for (element, data_type) in [
        (Element::Uint8, DataType::Uint8),
        (Element::Uint16, DataType::Uint16),
        (Element::Uint32, DataType::Uint32),
        (Element::Uint64, DataType::Uint64),
        (Element::Int8, DataType::Int8),
        (Element::Int16, DataType::Int16),
        (Element::Int32, DataType::Int32),
        (Element::Float16, DataType::Fp16),
        (Element::Float, DataType::Fp32),
        (Element::Double, DataType::Fp64),
        (Element::String, DataType::Bytes),
    ] {
        let config = completed(&identity(element, &[2, 3]), ModelConfig::default());
        assert_eq!(inputs(&config), [("X", data_type, [2, 3].as_slice())]);
        assert_eq!((config.max_batch_size, config.scheduling_choice), (0, None));
    }
}

#[test]
fn constants_of_the_file_are_no_inputs_unless_the_configuration_lists_them() {
    let ports = vec![port("X", Element::Float, &[2]), port("W", Element::Float, &[2])];
    let nodes = vec![node("Add", &["X", "W"], &["Y"])];
    let constants = vec![floats("W", &[2], &[1.0, 2.0])];
    let file = file(graph(ports, nodes, vec![port("Y", Element::Float, &[2])], constants));
    let two = |name| (name, DataType::Fp32, [2].as_slice());
    let all = completed(&file, ModelConfig::default());
    assert_eq!((inputs(&all), outputs(&all)), (vec![two("X")], vec![two("Y")]));
    let both = completed(&file, config(0, &[two("W"), two("X")], &[]));
    assert_eq!((inputs(&both), outputs(&both)), (vec![two("W"), two("X")], vec![two("Y")]));
}

#[test]
fn the_default_batch_size_is_a_setting() {
    let file = folder(&identity(Element::Float, &[-1, 3]));
    let complete = |value: &str| {
        let settings =
            BackendSettings::from_iter([("default-max-batch-size", value), ("other", "passed over")]);
        complete_from(&file, ModelConfig::default(), settings)
    };
    let size = |value| complete(value).unwrap().completed_config().unwrap().max_batch_size;
    assert_eq!([size("16"), size("1"), size("0")], [16, 1, 0]);
    let error = complete("many").map(|_| ()).unwrap_err();
    assert!(error.message().contains("'default-max-batch-size' is 'many'"), "{error}");
}

#[test]
fn configuration_that_does_not_fit_the_file_is_refused() {
    let x = ("X", DataType::Fp32, [3].as_slice());
    let message = refusal(&identity(Element::Float, &[2, 3]), config(2, &[], &[]));
    assert!(message.contains("max_batch_size is 2, but input 'X'"), "{message}");
    // A list that is given is not completed.
    let message = refusal(&identity(Element::Float, &[-1, 3]), config(0, &[("OTHER", x.1, x.2)], &[]));
    assert!(message.contains("'OTHER' in the configuration (the model's inputs: 'X')"), "{message}");
    let mut partial = config(4, &[x], &[]);
    partial.input[0].data_type = 0;
    let message = refusal(&identity(Element::Float, &[-1, 3]), partial);
    assert!(message.contains("'X' has no data_type in the configuration (it is FP32"), "{message}");
    // Without a batch size, and with nothing to complete, the model is one without batches.
    let whole = config(0, &[x], &[("Y", DataType::Fp32, &[3])]);
    let message = refusal(&identity(Element::Float, &[-1, 3]), whole);
    assert!(message.contains("'X' has shape [3] in the configuration, but [-1,3]"), "{message}");
}

#[test]
fn a_shape_that_the_file_leaves_open_is_asked_for() {
    let mut output = port("Y", Element::Float, &[]);
    let Some(tract_onnx::pb::type_proto::Value::TensorType(tensor)) =
        &mut output.r#type.as_mut().unwrap().value
    else {
        panic!("a tensor")
    };
    tensor.shape = None;
    let nodes = vec![node("Identity", &["X"], &["Y"])];
    let file = file(graph(vec![port("X", Element::Float, &[3])], nodes, vec![output], vec![]));
    let message = refusal(&file, ModelConfig::default());
    assert!(message.contains("the rank of output 'Y'"), "{message}");
    let three = |name| (name, DataType::Fp32, [3].as_slice());
    let config = completed(&file, config(0, &[], &[three("Y")]));
    assert_eq!((inputs(&config), outputs(&config)), (vec![three("X")], vec![three("Y")]));
}

#[test]
fn nothing_is_completed_where_that_is_not_asked_for() {
    let x = ("X", DataType::Fp32, [3].as_slice());
    let whole = config(0, &[x], &[("Y", x.1, x.2)]);
    let model = load_from(&folder(&identity(Element::Float, &[3])), whole).unwrap();
    assert_eq!(model.completed_config(), None);
}
