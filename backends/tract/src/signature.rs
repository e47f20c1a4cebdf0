//! What an ONNX file says of itself: the names, types and dimensions of its inputs and outputs.
//!
//! Read from the file's protobuf alone. Knows nothing of the model's configuration, nor of how the graph is run.

use nereid_backend_api::{DataType, Error, Result, Shape};
use nereid_model_config::{ModelTensor, ModelTensors};
use smallvec::SmallVec;
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

/// The inputs a request must give, and the outputs the graph makes, in the file's order.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
}

/// One input or output.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    /// The element type in the engine's terms.
    pub(crate) datum_type: DatumType,
    /// `None` if the file does not even say how many dimensions there are.
    pub(crate) dims: Option<Dims>,
}

/// Dimensions, outermost first; `None` for one of any size.
pub(crate) type Dims = SmallVec<[Option<i64>; 4]>;

impl Signature {
    /// Reads it from a graph. An input with an initializer is a constant of the graph, not an input.
    pub(crate) fn of(graph: &GraphProto) -> Result<Self> {
        let is_constant = |input: &&ValueInfoProto| graph.initializer.iter().any(|it| it.name == input.name);
        let inputs = graph.input.iter().filter(|input| !is_constant(input));
        Ok(Self {
            inputs: inputs.map(|info| Port::of("input", info)).collect::<Result<_>>()?,
            outputs: graph.output.iter().map(|info| Port::of("output", info)).collect::<Result<_>>()?,
        })
    }

    /// What a configuration can be completed from.
    pub(crate) fn tensors(&self) -> ModelTensors {
        let tensor = |port: &Port| ModelTensor {
            name: port.name.clone(),
            data_type: port.data_type,
            dims: port.dims.as_ref().map(|dims| dims.iter().map(|dim| dim.unwrap_or(-1)).collect()),
        };
        let tensors = |ports: &[Port]| ports.iter().map(tensor).collect();
        ModelTensors { inputs: tensors(&self.inputs), outputs: tensors(&self.outputs) }
    }
}

impl Port {
    fn of(role: &str, info: &ValueInfoProto) -> Result<Self> {
        let name = &info.name;
        let Some(Type::TensorType(tensor)) = info.r#type.as_ref().and_then(|it| it.value.as_ref()) else {
            return Err(Error::unsupported(format!("{role} '{name}' of the model is not a tensor")));
        };
        let Some((data_type, _, datum_type)) =
            TYPES.into_iter().find(|&(_, element, _)| element as i32 == tensor.elem_type)
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
        Ok(Self { name: name.clone(), data_type, datum_type, dims })
    }

    /// Whether it is a single value without dimensions.
    pub(crate) fn is_scalar(&self) -> bool {
        self.dims.as_ref().is_some_and(|dims| dims.is_empty())
    }

    /// Whether a tensor of `shape` may stand here. In `shape`, -1 is a size that is not known yet.
    pub(crate) fn accepts(&self, shape: &[i64]) -> bool {
        self.dims.as_ref().is_none_or(|dims| {
            dims.len() == shape.len()
                && dims.iter().zip(shape).all(|(own, &dim)| dim == -1 || own.is_none_or(|own| own == dim))
        })
    }

    /// Whether all tensors of `shape` may stand here. In `shape`, -1 is any size, which the file has to leave open, too.
    pub(crate) fn accepts_all(&self, shape: &[i64]) -> bool {
        let leaves_open = |dims: &Dims| dims.iter().zip(shape).all(|(own, &dim)| dim != -1 || own.is_none());
        self.accepts(shape) && self.dims.as_ref().is_none_or(leaves_open)
    }

    /// The dimensions as a configuration would write them, or "of any rank".
    pub(crate) fn describe_dims(&self) -> String {
        self.dims.as_ref().map_or_else(
            || "of any rank".to_owned(),
            |dims| dims.iter().map(|dim| dim.unwrap_or(-1)).collect::<Shape>().to_string(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(dims: Option<&[Option<i64>]>) -> Port {
        Port {
            name: "X".into(),
            data_type: DataType::Fp32,
            datum_type: DatumType::F32,
            dims: dims.map(Dims::from_slice),
        }
    }

    #[test]
    fn a_variable_dimension_accepts_any_size_and_a_fixed_one_its_own() {
        let port = port(Some(&[None, Some(3)]));
        assert!(port.accepts(&[7, 3]) && port.accepts(&[0, -1]) && port.accepts(&[-1, 3]));
        assert!(!port.accepts(&[7, 4]) && !port.accepts(&[3]) && !port.accepts(&[1, 7, 3]));
        assert_eq!(port.describe_dims(), "[-1,3]");
    }

    #[test]
    fn only_a_variable_dimension_accepts_all_sizes() {
        let port = port(Some(&[None, Some(3)]));
        assert!(port.accepts_all(&[7, 3]) && port.accepts_all(&[-1, 3]));
        assert!(!port.accepts_all(&[7, -1]) && !port.accepts_all(&[7, 4]) && !port.accepts_all(&[3]));
    }

    #[test]
    fn without_a_declared_rank_any_shape_is_accepted() {
        let port = port(None);
        assert!(port.accepts(&[]) && port.accepts(&[1, 2, 3]) && !port.is_scalar());
        assert!(port.accepts_all(&[]) && port.accepts_all(&[-1, 2, 3]));
        assert_eq!(port.describe_dims(), "of any rank");
    }

    #[test]
    fn each_element_type_appears_once() {
        for (index, (data_type, element, datum_type)) in TYPES.iter().enumerate() {
            for (other, other_element, other_datum) in &TYPES[..index] {
                assert!(data_type != other && element != other_element && datum_type != other_datum);
            }
        }
    }
}
