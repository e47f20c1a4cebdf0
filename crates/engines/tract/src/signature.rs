//! The signature in an ONNX file: the names, types and dimensions of inputs and outputs.
//!
//! Read from the file's protobuf alone. Knows nothing of the model's configuration, nor of how the graph is run.

use nereid_backend_api::{DataType, Error, Result};
use nereid_graph_executor::{Port, Signature};
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dimension;
use tract_onnx::pb::type_proto::Value as Type;
use tract_onnx::pb::{GraphProto, ValueInfoProto};
use tract_onnx::prelude::DatumType;

/// The element types the engine has, each by its names here, in ONNX and in the engine.
const TYPES: [(DataType, Element, DatumType); 13] = [
    (DataType::Bool, Element::Bool, DatumType::Bool),
    (DataType::Uint8, Element::Uint8, DatumType::U8),
    (DataType::Uint16, Element::Uint16, DatumType::U16),
    (DataType::Uint32, Element::Uint32, DatumType::U32),
    (DataType::Uint64, Element::Uint64, DatumType::U64),
    (DataType::Int8, Element::Int8, DatumType::I8),
    (DataType::Int16, Element::Int16, DatumType::I16),
    (DataType::Int32, Element::Int32, DatumType::I32),
    (DataType::Int64, Element::Int64, DatumType::I64),
    (DataType::Fp16, Element::Float16, DatumType::F16),
    (DataType::Fp32, Element::Float, DatumType::F32),
    (DataType::Fp64, Element::Double, DatumType::F64),
    (DataType::Bytes, Element::String, DatumType::String),
];

/// Reads the signature of a graph. An input with an initializer is a constant of the graph, not an input.
pub(crate) fn of_graph(graph: &GraphProto) -> Result<Signature> {
    let is_constant = |input: &&ValueInfoProto| graph.initializer.iter().any(|it| it.name == input.name);
    let inputs = graph.input.iter().filter(|input| !is_constant(input));
    Ok(Signature {
        inputs: inputs.map(|info| port("input", info)).collect::<Result<_>>()?,
        outputs: graph.output.iter().map(|info| port("output", info)).collect::<Result<_>>()?,
    })
}

/// The engine's name for a type. Signatures have none but those that the engine has.
pub(crate) fn datum_type(data_type: DataType) -> DatumType {
    TYPES
        .iter()
        .find(|(known, ..)| *known == data_type)
        .map_or(DatumType::F32, |&(.., datum_type)| datum_type)
}

fn port(role: &str, info: &ValueInfoProto) -> Result<Port> {
    let name = &info.name;
    let Some(Type::TensorType(tensor)) = info.r#type.as_ref().and_then(|it| it.value.as_ref()) else {
        return Err(Error::unsupported(format!(
            "{role} '{name}' of the model is not a tensor; skl2onnx writes tensors with options={{\"zipmap\": False}}"
        )));
    };
    let Some((data_type, ..)) = TYPES.into_iter().find(|&(_, element, _)| element as i32 == tensor.elem_type)
    else {
        let element = Element::try_from(tensor.elem_type)
            .map_or_else(|_| tensor.elem_type.to_string(), |known| known.as_str_name().to_owned());
        let known: Vec<_> = TYPES.iter().map(|(_, element, _)| element.as_str_name()).collect();
        return Err(Error::unsupported(format!(
            "{role} '{name}' of the model has element type {element}, but the embedded engine has only {}",
            known.join(", ")
        )));
    };
    let dims = tensor.shape.as_ref().map(|shape| {
        let size = |dim: &Option<Dimension>| match dim {
            Some(Dimension::DimValue(size)) if *size >= 0 => Some(*size),
            _ => None,
        };
        shape.dim.iter().map(|dim| size(&dim.value)).collect()
    });
    Ok(Port { name: name.clone(), data_type, dims })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_type_appears_once() {
        for (index, (data_type, element, datum_type)) in TYPES.iter().enumerate() {
            for (other, other_element, other_datum) in &TYPES[..index] {
                assert!(data_type != other && element != other_element && datum_type != other_datum);
            }
        }
    }
}
