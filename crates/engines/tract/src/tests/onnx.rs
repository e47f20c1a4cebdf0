//! Makes small ONNX files.

use prost::Message;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::tensor_shape_proto::Dimension;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Size;
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, type_proto,
};

/// An input or output; a dimension of -1 is variable, and has a name of its own.
pub(crate) fn port(name: &str, element: Element, dims: &[i64]) -> ValueInfoProto {
    let dim = |(index, &size): (usize, &i64)| {
        let size = if size < 0 { Size::DimParam(format!("{name}_{index}")) } else { Size::DimValue(size) };
        Dimension { value: Some(size), ..Default::default() }
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().enumerate().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: element as i32, shape };
    let r#type = Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() });
    ValueInfoProto { name: name.into(), r#type, ..Default::default() }
}

pub(crate) fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto {
        op_type: op_type.into(),
        name: format!("make_{}", outputs.join("_")),
        input: names(inputs),
        output: names(outputs),
        ..Default::default()
    }
}

pub(crate) fn with_ints(mut node: NodeProto, name: &str, ints: &[i64]) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: name.into(),
        r#type: AttributeType::Ints as i32,
        ints: ints.to_vec(),
        ..Default::default()
    });
    node
}

pub(crate) fn with_int(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    let r#type = AttributeType::Int as i32;
    node.attribute.push(AttributeProto { name: name.into(), r#type, i: value, ..Default::default() });
    node
}

pub(crate) fn with_text(mut node: NodeProto, name: &str, value: &str) -> NodeProto {
    let r#type = AttributeType::String as i32;
    node.attribute.push(AttributeProto { name: name.into(), r#type, s: value.into(), ..Default::default() });
    node
}

pub(crate) fn with_graph(mut node: NodeProto, name: &str, graph: GraphProto) -> NodeProto {
    let r#type = AttributeType::Graph as i32;
    node.attribute.push(AttributeProto { name: name.into(), r#type, g: Some(graph), ..Default::default() });
    node
}

pub(crate) fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: Element::Float as i32,
        float_data: values.to_vec(),
        ..Default::default()
    }
}

pub(crate) fn ints(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: Element::Int64 as i32,
        int64_data: values.to_vec(),
        ..Default::default()
    }
}

pub(crate) fn graph(
    inputs: Vec<ValueInfoProto>,
    nodes: Vec<NodeProto>,
    outputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
) -> GraphProto {
    GraphProto {
        name: "graph".into(),
        input: inputs,
        node: nodes,
        output: outputs,
        initializer: initializers,
        ..Default::default()
    }
}

/// The bytes of a file that holds `graph`.
pub(crate) fn file(graph: GraphProto) -> Vec<u8> {
    file_of_version(graph, 17)
}

/// The bytes of a file that holds `graph`, with operators of this version of the operator set.
pub(crate) fn file_of_version(graph: GraphProto, version: i64) -> Vec<u8> {
    let model = ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version }],
        graph: Some(graph),
        ..Default::default()
    };
    model.encode_to_vec()
}

/// Y = X, of that element type.
pub(crate) fn identity(element: Element, dims: &[i64]) -> Vec<u8> {
    let nodes = vec![node("Identity", &["X"], &["Y"])];
    file(graph(vec![port("X", element, dims)], nodes, vec![port("Y", element, dims)], vec![]))
}

/// Z = X + Y, in FP32.
pub(crate) fn add(dims: &[i64]) -> Vec<u8> {
    let inputs = vec![port("X", Element::Float, dims), port("Y", Element::Float, dims)];
    let nodes = vec![node("Add", &["X", "Y"], &["Z"])];
    file(graph(inputs, nodes, vec![port("Z", Element::Float, dims)], vec![]))
}
