//! The ONNX graph under construction: nodes, constants and unique names.

use std::collections::{HashMap, HashSet};

use crate::onnx::{AttributeProto, NodeProto, TensorProto};
use crate::value::{Dims, Element, Value};

/// The graph so far.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) constants: Vec<TensorProto>,
    /// The current value of each blob: an operator may overwrite one.
    blobs: HashMap<String, Value>,
    /// The prefix of names of new tensors.
    blob: String,
    count: usize,
    /// The names of inputs and outputs.
    reserved: HashSet<String>,
}

impl Graph {
    /// Reserves names.
    pub(crate) fn reserve<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        self.reserved.extend(names.cloned());
    }

    /// Names tensors created from now on after a blob.
    pub(crate) fn begin(&mut self, blob: &str) {
        blob.clone_into(&mut self.blob);
    }

    pub(crate) fn blob(&self, name: &str) -> Option<&Value> {
        self.blobs.get(name)
    }

    pub(crate) fn bind(&mut self, name: &str, value: Value) {
        self.blobs.insert(name.to_owned(), value);
    }

    fn fresh(&mut self) -> String {
        loop {
            self.count += 1;
            let name = format!("{}/{}", self.blob, self.count);
            if !self.reserved.contains(&name) {
                return name;
            }
        }
    }

    /// Adds a node with one output.
    pub(crate) fn node(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: Vec<AttributeProto>,
        element: Element,
        dims: Option<Dims>,
    ) -> Value {
        let mut outputs = self.nodes(operator, inputs, attributes, vec![(element, dims)]);
        outputs.swap_remove(0)
    }

    /// Adds a node with several outputs, each with its type and dimensions.
    pub(crate) fn nodes(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: Vec<AttributeProto>,
        outputs: Vec<(Element, Option<Dims>)>,
    ) -> Vec<Value> {
        let outputs = outputs.into_iter().map(|(element, dims)| {
            let name = self.fresh();
            Value { name, element, dims, ints: None }
        });
        let outputs: Vec<_> = outputs.collect();
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|value| value.name.clone()).collect(),
            output: outputs.iter().map(|value| value.name.clone()).collect(),
            name: outputs.first().map_or_else(String::new, |value| value.name.clone()),
            op_type: operator.to_owned(),
            attribute: attributes,
        });
        outputs
    }

    /// Adds a node whose output has the type and dimensions of its first input.
    pub(crate) fn like(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: Vec<AttributeProto>,
    ) -> Value {
        let (element, dims) =
            inputs.first().map_or((Element::Float, None), |first| (first.element, first.dims.clone()));
        self.node(operator, inputs, attributes, element, dims)
    }

    /// Renames a value to the model's name for it.
    pub(crate) fn rename(&mut self, value: &Value, name: &str) {
        self.nodes.push(NodeProto {
            input: vec![value.name.clone()],
            output: vec![name.to_owned()],
            name: name.to_owned(),
            op_type: "Identity".to_owned(),
            attribute: Vec::new(),
        });
    }

    /// Adds a constant. `raw` has its elements in little-endian order.
    pub(crate) fn constant(&mut self, element: Element, dims: &[i64], raw: Vec<u8>) -> Value {
        let name = self.fresh();
        let ints = (element == Element::Int64 && dims.len() <= 1).then(|| int64s(&raw));
        self.constants.push(TensorProto {
            dims: dims.to_vec(),
            data_type: element as i32,
            name: name.clone(),
            raw_data: Some(raw),
            ..TensorProto::default()
        });
        Value { name, element, dims: Some(dims.iter().copied().map(Some).collect()), ints }
    }

    /// Adds a constant of strings.
    pub(crate) fn strings(&mut self, dims: &[i64], strings: Vec<Vec<u8>>) -> Value {
        let mut value = self.constant(Element::String, dims, Vec::new());
        value.ints = None;
        if let Some(constant) = self.constants.last_mut() {
            constant.raw_data = None;
            constant.string_data = strings;
        }
        value
    }

    /// A list of integers.
    pub(crate) fn ints(&mut self, values: &[i64]) -> Value {
        let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(Element::Int64, &[values.len() as i64], raw)
    }

    /// A number of a type: a float or an integer.
    pub(crate) fn scalar(&mut self, element: Element, number: f32) -> Value {
        let raw = match element {
            Element::Double => f64::from(number).to_le_bytes().to_vec(),
            Element::Int32 => (number as i32).to_le_bytes().to_vec(),
            Element::Int64 => (number as i64).to_le_bytes().to_vec(),
            _ => number.to_le_bytes().to_vec(),
        };
        let element = if matches!(element, Element::Double | Element::Int32 | Element::Int64) {
            element
        } else {
            Element::Float
        };
        let mut value = self.constant(element, &[], raw);
        value.ints = None;
        value
    }

    /// The dimensions of a value, as a list that the graph computes at run time.
    pub(crate) fn shape_of(&mut self, value: &Value) -> Value {
        let dims = vec![value.rank().map(|rank| rank as i64)];
        self.node("Shape", &[value], Vec::new(), Element::Int64, Some(dims))
    }

    /// Transposes a value.
    pub(crate) fn transpose(&mut self, value: &Value, order: &[usize]) -> Value {
        let dims = order.iter().map(|&axis| value.dim(axis)).collect();
        let order: Vec<_> = order.iter().map(|&axis| axis as i64).collect();
        let attributes = vec![AttributeProto::ints("perm", &order)];
        self.node("Transpose", &[value], attributes, value.element, Some(dims))
    }

    /// Reshapes a value. `shape` is a list of integers: 0 keeps a dimension, -1 is inferred.
    pub(crate) fn reshape(&mut self, value: &Value, shape: &Value, dims: Option<Dims>) -> Value {
        self.node("Reshape", &[value, shape], Vec::new(), value.element, dims)
    }

    /// Casts a value.
    pub(crate) fn cast(&mut self, value: &Value, element: Element) -> Value {
        let ints = value.ints.clone();
        let attributes = vec![AttributeProto::int("to", element as i64)];
        let cast = self.node("Cast", &[value], attributes, element, value.dims.clone());
        Value { ints, ..cast }
    }
}

fn int64s(raw: &[u8]) -> Vec<i64> {
    raw.chunks_exact(8).filter_map(|bytes| Some(i64::from_le_bytes(bytes.try_into().ok()?))).collect()
}
