//! The signature of a graph: the names, types and dimensions of its inputs and outputs.
//!
//! Knows nothing of the model's configuration, nor of the file that declares the graph.

use nereid_backend_api::{DataType, Shape};
use nereid_model_config::{ModelTensor, ModelTensors};
use smallvec::SmallVec;

/// The inputs and outputs of a graph, in its order.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The inputs that a run must have, and those that the configuration lists although the model has a value for them.
    pub inputs: Vec<Port>,
    /// The outputs that a run can compute.
    pub outputs: Vec<Port>,
}

/// One input or output.
#[derive(Clone, Debug)]
pub struct Port {
    /// The port's name in the graph.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// The dimensions; `None` if the rank is open.
    pub dims: Option<Dims>,
}

/// Dimensions, outermost first; `None` for one of any size.
pub type Dims = SmallVec<[Option<i64>; 4]>;

impl Signature {
    /// The signature in the form from which a configuration is completed.
    pub fn tensors(&self) -> ModelTensors {
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
    /// Whether the port is a single value without dimensions.
    pub fn is_scalar(&self) -> bool {
        self.dims.as_ref().is_some_and(|dims| dims.is_empty())
    }

    /// Whether a tensor of `shape` fits. In `shape`, -1 is a size that is not known yet.
    pub fn accepts(&self, shape: &[i64]) -> bool {
        self.dims.as_ref().is_none_or(|dims| {
            dims.len() == shape.len()
                && dims.iter().zip(shape).all(|(own, &dim)| dim == -1 || own.is_none_or(|own| own == dim))
        })
    }

    /// Whether all tensors of `shape` fit. In `shape`, -1 is any size, which the graph must leave open too.
    pub fn accepts_all(&self, shape: &[i64]) -> bool {
        let leaves_open = |dims: &Dims| dims.iter().zip(shape).all(|(own, &dim)| dim != -1 || own.is_none());
        self.accepts(shape) && self.dims.as_ref().is_none_or(leaves_open)
    }

    /// The dimensions as a configuration would write them, or "of any rank".
    pub fn describe_dims(&self) -> String {
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
        Port { name: "X".into(), data_type: DataType::Fp32, dims: dims.map(Dims::from_slice) }
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
}
