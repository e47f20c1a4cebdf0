//! Refusals at load, and their messages.

use nereid_backend_api::{DataType, ErrorCode, InstanceContext, InstanceKind};
use nereid_model_config::proto::{ModelParameter, ModelTensorReshape};
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{add, file, floats, graph, identity, node, port, with_graph};
use super::server::{config, folder, load_from, refusal, serve};
use super::{fp32, fp32_output};

const X: (&str, DataType, &[i64]) = ("X", DataType::Fp32, &[3]);
const Y: (&str, DataType, &[i64]) = ("Y", DataType::Fp32, &[3]);

#[test]
fn a_missing_file_is_not_found() {
    let folder = tempfile::TempDir::new().unwrap();
    let error = load_from(&folder, config(0, &[X], &[Y])).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.message().contains("model 'm'") && error.message().contains("1/model.onnx"), "{error}");
}

#[test]
fn the_configuration_may_name_another_file_or_a_folder() {
    let folder = folder(b"not used");
    let file = identity(Element::Float, &[3]);
    std::fs::write(folder.path().join("1/other.onnx"), &file).unwrap();
    std::fs::create_dir(folder.path().join("1/inside")).unwrap();
    std::fs::write(folder.path().join("1/inside/model.onnx"), &file).unwrap();
    for name in ["other.onnx", "inside"] {
        let mut config = config(0, &[X], &[Y]);
        config.default_model_filename = name.into();
        load_from(&folder, config).map(|_| ()).unwrap();
    }
}

#[test]
fn foreign_or_truncated_file_is_refused() {
    let whole = identity(Element::Float, &[3]);
    for contents in [b"just some text".as_slice(), b"", &whole[..whole.len() / 2], &whole[..whole.len() - 1]]
    {
        let message = refusal(contents, config(0, &[X], &[Y]));
        assert!(message.contains("is not a complete ONNX file"), "{message}");
    }
}

#[test]
fn unsupported_operators_are_all_named_also_those_in_bodies() {
    let body = graph(vec![], vec![node("Inner", &[], &["B"])], vec![port("B", Element::Float, &[3])], vec![]);
    let mut custom = node("Add", &["X", "X"], &["C"]);
    custom.domain = "com.example".into();
    let nodes = vec![
        node("Outer", &["X"], &["A"]),
        with_graph(node("If", &["A"], &["Y"]), "then_branch", body),
        custom,
    ];
    let file = file(graph(
        vec![port("X", Element::Float, &[3])],
        nodes,
        vec![port("Y", Element::Float, &[3])],
        vec![],
    ));
    let error = load_from(&folder(&file), config(0, &[X], &[Y])).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unsupported);
    let refused = "does not serve: Inner, Outer, com.example.Add; install ONNX Runtime";
    assert!(error.message().contains(refused), "{error}");
}

#[test]
fn a_graph_that_makes_the_engine_panic_is_refused() {
    // An output that no node makes.
    let file = file(graph(
        vec![port("X", Element::Float, &[3])],
        vec![],
        vec![port("Y", Element::Float, &[3])],
        vec![],
    ));
    let message = refusal(&file, config(0, &[X], &[Y]));
    assert!(message.contains("cannot load") && message.contains("panicked"), "{message}");
}

#[test]
fn a_graph_that_cannot_run_is_refused_when_its_shapes_are_known() {
    let inputs = vec![port("X", Element::Float, &[2, 3])];
    let nodes = vec![node("MatMul", &["X", "X"], &["Y"])];
    let file = file(graph(inputs, nodes, vec![port("Y", Element::Float, &[2, 2])], vec![]));
    let dims = [("X", DataType::Fp32, [2, 3].as_slice())];
    let message = refusal(&file, config(0, &dims, &[("Y", DataType::Fp32, &[2, 2])]));
    assert!(message.contains("cannot run it on inputs X [2,3]"), "{message}");
}

#[test]
fn an_element_type_that_the_engine_lacks_is_refused_with_those_it_has() {
    let message =
        refusal(&identity(Element::Bfloat16, &[3]), config(0, &[("X", DataType::Bf16, &[3])], &[Y]));
    assert!(message.contains("input 'X'") && message.contains("BFLOAT16"), "{message}");
    assert!(message.contains("BOOL, UINT8,") && message.contains("FLOAT16"), "{message}");
}

#[test]
fn names_that_the_model_lacks_are_refused_with_those_it_has() {
    let file = add(&[3]);
    let message = refusal(&file, config(0, &[X, Y, ("W", DataType::Fp32, &[3])], &[]));
    assert!(message.ends_with("unknown input 'W' in the configuration (the model's inputs: 'X', 'Y')"));
    let message = refusal(&file, config(0, &[X, Y], &[("W", DataType::Fp32, &[3])]));
    assert!(message.ends_with("unknown output 'W' in the configuration (the model's outputs: 'Z')"));
}

#[test]
fn a_configuration_without_outputs_is_served_without_outputs() {
    let mut served = serve(&add(&[3]), config(0, &[X, Y], &[]));
    let values = [1.0, 2.0, 3.0];
    let response = served.infer(vec![fp32("X", &[3], &values), fp32("Y", &[3], &values)]).unwrap();
    assert!(response.outputs.is_empty());
}

#[test]
fn a_configuration_without_inputs_is_refused_with_all_that_the_model_needs() {
    let message = refusal(&add(&[3]), config(0, &[], &[]));
    assert!(message.contains("inputs 'X' (FP32 [3]), 'Y' (FP32 [3]), but"), "{message}");
    assert!(message.contains("no field 'input'"), "{message}");
}

#[test]
fn an_input_that_the_configuration_forgets_is_refused() {
    let message = refusal(&add(&[3]), config(0, &[X], &[]));
    assert!(message.contains("the model needs the input 'Y' (FP32 [3])"), "{message}");
}

#[test]
fn an_input_with_a_value_in_the_file_need_not_be_listed_but_may_be() {
    let inputs = || vec![port("X", Element::Float, &[2]), port("W", Element::Float, &[2])];
    let make = || {
        let output = vec![port("Y", Element::Float, &[2])];
        file(graph(
            inputs(),
            vec![node("Add", &["X", "W"], &["Y"])],
            output,
            vec![floats("W", &[2], &[1.0, 2.0])],
        ))
    };
    let two = |name| (name, DataType::Fp32, [2].as_slice());
    let mut constant = serve(&make(), config(0, &[two("X")], &[two("Y")]));
    let response = constant.infer(vec![fp32("X", &[2], &[10.0, 10.0])]).unwrap();
    assert_eq!(fp32_output(&response).1, [11.0, 12.0]);

    let mut given = serve(&make(), config(0, &[two("X"), two("W")], &[two("Y")]));
    let inputs = vec![fp32("X", &[2], &[10.0, 10.0]), fp32("W", &[2], &[5.0, 6.0])];
    assert_eq!(fp32_output(&given.infer(inputs).unwrap()).1, [15.0, 16.0]);
}

#[test]
fn another_type_is_refused() {
    let message = refusal(&identity(Element::Float, &[3]), config(0, &[("X", DataType::Int32, &[3])], &[Y]));
    assert!(message.ends_with("input 'X' is INT32 in the configuration, but FP32 in the model"), "{message}");
    let message = refusal(&identity(Element::Float, &[3]), config(0, &[X], &[("Y", DataType::Fp16, &[3])]));
    assert!(message.ends_with("output 'Y' is FP16 in the configuration, but FP32 in the model"), "{message}");
}

#[test]
fn a_variable_dimension_of_the_model_may_be_fixed_but_not_the_other_way_round() {
    let fits = |max_batch_size, model: &[i64], dims: &[i64]| {
        let config = config(max_batch_size, &[("X", DataType::Fp32, dims)], &[("Y", DataType::Fp32, dims)]);
        load_from(&folder(&identity(Element::Float, model)), config).map(|_| ()).map_err(|it| it.to_string())
    };
    fits(0, &[2, 3], &[2, 3]).unwrap();
    fits(0, &[2, -1], &[2, 7]).unwrap();
    fits(8, &[-1, 3], &[3]).unwrap();
    fits(8, &[-1, -1], &[5]).unwrap();
    fits(0, &[], &[1]).unwrap();
    assert!(fits(0, &[2, 3], &[-1, 3]).is_err() && fits(8, &[-1, 3], &[-1]).is_err());
    let message = fits(0, &[2, 3], &[2, 4]).unwrap_err();
    assert!(message.ends_with("input 'X' has shape [2,4] in the configuration, but [2,3] in the model"));
    let message = fits(8, &[-1, 3], &[2, 3]).unwrap_err();
    assert!(message.ends_with(
        "input 'X' has shape [-1,2,3] with the batch dimension in the configuration, but [-1,3] in the model"
    ));
    let message = fits(8, &[2, 3], &[3]).unwrap_err();
    assert!(message.contains("the first dimension of input 'X' must be variable"), "{message}");
    assert!(fits(0, &[], &[2]).is_err() && fits(8, &[], &[1]).is_err());
}

#[test]
fn the_model_sees_the_reshaped_shape() {
    let mut config = config(8, &[("X", DataType::Fp32, &[1])], &[("Y", DataType::Fp32, &[1])]);
    config.input[0].reshape = Some(ModelTensorReshape { shape: vec![] });
    config.output[0].reshape = Some(ModelTensorReshape { shape: vec![] });
    load_from(&folder(&identity(Element::Float, &[-1])), config.clone()).map(|_| ()).unwrap();
    let message = refusal(&identity(Element::Float, &[-1, 1]), config);
    assert!(message.contains("[-1] with the batch dimension"), "{message}");
}

#[test]
fn a_plan_cache_size_that_is_no_number_over_zero_is_refused() {
    for value in ["0", "many", "-1", ""] {
        let mut config = config(0, &[X], &[Y]);
        config.parameters.insert("plan_cache_size".into(), ModelParameter { string_value: value.into() });
        let message = refusal(&identity(Element::Float, &[3]), config);
        assert!(message.contains(&format!("parameter 'plan_cache_size' is '{value}'")), "{message}");
    }
}

#[test]
fn an_instance_on_a_gpu_is_refused() {
    let model = load_from(&folder(&identity(Element::Float, &[3])), config(0, &[X], &[Y])).unwrap();
    let context = InstanceContext::new("m_0", InstanceKind::Gpu(0));
    let error = model.create_instance(context).map(|_| ()).unwrap_err();
    assert!(error.message().contains("GPU device 0"), "{error}");
}
