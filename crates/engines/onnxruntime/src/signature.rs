//! The signature of a model, as ONNX Runtime reports it.

use nereid_backend_api::{DataType, Error, Result};
use nereid_graph_executor::{Dims, Port, Signature};
use ort::session::Session;
use ort::value::{TensorElementType, ValueType};

use crate::declared::DeclaredTensors;

/// Inputs that a request must have, and outputs, in the file's order.
pub(crate) fn of_session(session: &Session, declared: &DeclaredTensors) -> Result<Signature> {
    let inputs = session.inputs().iter().map(|it| port("input", it.name(), it.dtype(), declared));
    let outputs = session.outputs().iter().map(|it| port("output", it.name(), it.dtype(), declared));
    Ok(Signature { inputs: inputs.collect::<Result<_>>()?, outputs: outputs.collect::<Result<_>>()? })
}

/// Inputs that have a value in the file, which a request may override.
pub(crate) fn initializers(session: &Session, declared: &DeclaredTensors) -> Result<Vec<Port>> {
    let initializers = session.overridable_initializers();
    initializers.iter().map(|it| port("input", it.name(), it.dtype(), declared)).collect()
}

fn port(role: &str, name: &str, kind: &ValueType, declared: &DeclaredTensors) -> Result<Port> {
    let ValueType::Tensor { ty, shape, .. } = kind else {
        return Err(Error::unsupported(format!(
            "{role} '{name}' of the model is {kind}, but requests and responses carry tensors only"
        )));
    };
    let data_type = data_type(*ty).ok_or_else(|| {
        Error::unsupported(format!(
            "{role} '{name}' of the model has element type {ty}, which the protocol lacks"
        ))
    })?;
    // Without dimensions it is a scalar, or of open rank: the library does not distinguish them.
    let is_open = shape.is_empty() && declared.rank_is_open(name);
    let dims: Dims = shape.iter().map(|&dim| (dim >= 0).then_some(dim)).collect();
    Ok(Port { name: name.to_owned(), data_type, dims: (!is_open).then_some(dims) })
}

/// The element type for a type of the protocol.
pub(crate) fn element_type(data_type: DataType) -> TensorElementType {
    match data_type {
        DataType::Bool => TensorElementType::Bool,
        DataType::Uint8 => TensorElementType::Uint8,
        DataType::Uint16 => TensorElementType::Uint16,
        DataType::Uint32 => TensorElementType::Uint32,
        DataType::Uint64 => TensorElementType::Uint64,
        DataType::Int8 => TensorElementType::Int8,
        DataType::Int16 => TensorElementType::Int16,
        DataType::Int32 => TensorElementType::Int32,
        DataType::Int64 => TensorElementType::Int64,
        DataType::Fp16 => TensorElementType::Float16,
        DataType::Bf16 => TensorElementType::Bfloat16,
        DataType::Fp32 => TensorElementType::Float32,
        DataType::Fp64 => TensorElementType::Float64,
        DataType::Bytes => TensorElementType::String,
    }
}

/// The protocol's type for an element type, if it has it.
pub(crate) fn data_type(element: TensorElementType) -> Option<DataType> {
    Some(match element {
        TensorElementType::Bool => DataType::Bool,
        TensorElementType::Uint8 => DataType::Uint8,
        TensorElementType::Uint16 => DataType::Uint16,
        TensorElementType::Uint32 => DataType::Uint32,
        TensorElementType::Uint64 => DataType::Uint64,
        TensorElementType::Int8 => DataType::Int8,
        TensorElementType::Int16 => DataType::Int16,
        TensorElementType::Int32 => DataType::Int32,
        TensorElementType::Int64 => DataType::Int64,
        TensorElementType::Float16 => DataType::Fp16,
        TensorElementType::Bfloat16 => DataType::Bf16,
        TensorElementType::Float32 => DataType::Fp32,
        TensorElementType::Float64 => DataType::Fp64,
        TensorElementType::String => DataType::Bytes,
        _ => return None,
    })
}
