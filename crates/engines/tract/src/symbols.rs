//! Named dimensions that several inputs share: in a request, they must have one size.

use std::collections::HashMap;

use nereid_backend_api::{Error, Result, Shape};
use tract_onnx::pb::GraphProto;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dimension;
use tract_onnx::pb::type_proto::Value as Type;

/// The names that exporters write for a dimension of any size.
const ANY: [&str; 5] = ["", "?", "-1", "None", "unk"];

/// The named dimensions of a graph's inputs, by input and axis.
pub(crate) struct Symbols {
    dims: HashMap<(String, usize), String>,
}

/// Reads the names from a graph.
pub(crate) fn of_graph(graph: &GraphProto) -> Symbols {
    let mut dims = HashMap::new();
    for input in &graph.input {
        let Some(Type::TensorType(tensor)) = input.r#type.as_ref().and_then(|it| it.value.as_ref()) else {
            continue;
        };
        for (axis, dim) in tensor.shape.iter().flat_map(|shape| &shape.dim).enumerate() {
            if let Some(Dimension::DimParam(symbol)) = &dim.value
                && !ANY.contains(&symbol.as_str())
            {
                dims.insert((input.name.clone(), axis), symbol.clone());
            }
        }
    }
    Symbols { dims }
}

impl Symbols {
    /// Checks the shapes of the inputs that have these names.
    ///
    /// # Errors
    /// `InvalidArg` for a name with two sizes.
    pub(crate) fn check<'a>(&self, names: impl Iterator<Item = &'a str>, shapes: &[Shape]) -> Result<()> {
        let mut sizes: HashMap<&str, (i64, &str)> = HashMap::new();
        for (name, shape) in names.zip(shapes) {
            for (axis, &size) in shape.iter().enumerate() {
                let Some(symbol) = self.dims.get(&(name.to_owned(), axis)) else { continue };
                let &mut (expected, other) = sizes.entry(symbol).or_insert((size, name));
                if size != expected {
                    return Err(Error::invalid_arg(format!(
                        "input '{name}' has shape {shape}, but its dimension {axis}, '{symbol}', should be {expected} as \
                         that of input '{other}'"
                    )));
                }
            }
        }
        Ok(())
    }
}
