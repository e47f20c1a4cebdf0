//! Converts two nets to one ONNX model: inputs, then each operator in turn, then outputs.

use std::collections::{BTreeSet, HashSet};
use std::mem;

use prost::Message;

use crate::arguments::Arguments;
use crate::caffe2::{NetDef, OperatorDef};
use crate::graph::Graph;
use crate::onnx::{
    DimensionProto, DimensionValue, GraphProto, IR_VERSION, ModelProto, OPSET, OperatorSetIdProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::operators::{self, Call};
use crate::value::{Dims, Element, Value};

/// The most dimensions of a tensor. Without a limit, a few operators can create many.
const MOST_DIMENSIONS: usize = 64;

/// An input, with the properties that the caller knows.
#[derive(Clone, Debug)]
pub struct Input {
    /// The blob.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// All its dimensions; `None` if the rank is unknown.
    pub dims: Option<Dims>,
}

/// Why a model cannot be converted to ONNX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetDefError {
    /// A file is not a NetDef.
    #[error("the {net} is not a complete NetDef: {why}")]
    Damaged {
        /// Which of the two.
        net: &'static str,
        /// The decoder's message.
        why: String,
    },
    /// These operators have no equivalent in ONNX.
    #[error("these operators have no counterpart in ONNX: {}", .0.join(", "))]
    Unknown(Vec<String>),
    /// The operator is supported, but not in this form.
    #[error("operator {operator}, which computes '{blob}': {why}")]
    Refused {
        /// The operator's type.
        operator: String,
        /// The operator's first output.
        blob: String,
        /// The reason.
        why: String,
    },
    /// The input's type or dimensions are unknown.
    #[error(
        "a NetDef declares neither type nor dimensions of its input '{0}', and they do not follow from the operator that \
         reads it: list it in the configuration"
    )]
    Open(String),
    /// The net declares an output that it does not compute.
    #[error("the net's output '{0}' {1}")]
    Output(String, &'static str),
    /// The net declares no outputs.
    #[error("the net has no outputs")]
    NoOutputs,
}

/// The nets of a model.
#[derive(Clone, Debug)]
pub struct Nets {
    init: NetDef,
    net: NetDef,
}

impl Nets {
    /// Reads the net that initialises the weights, and the net that computes.
    ///
    /// # Errors
    /// One of them is not a NetDef.
    pub fn read(init: &[u8], net: &[u8]) -> Result<Self, NetDefError> {
        let decode = |name, contents: &[u8]| {
            NetDef::decode(contents)
                .map_err(|error| NetDefError::Damaged { net: name, why: error.to_string() })
        };
        Ok(Self { init: decode("net that initialises", init)?, net: decode("net", net)? })
    }

    /// Encodes the nets as an ONNX model. `given` are the inputs that the caller knows. They take precedence over
    /// values from the initialising net.
    ///
    /// # Errors
    /// The operators, arguments or inputs without an equivalent in ONNX.
    pub fn to_onnx(&self, given: &[Input]) -> Result<Vec<u8>, NetDefError> {
        self.check_operators()?;
        let mut graph = Graph::default();
        let outputs = &self.net.external_output;
        graph.reserve(outputs.iter().chain(&self.net.external_input));
        for operator in &self.init.op {
            let is_given = |output: &String| given.iter().any(|input| input.name == *output);
            if operator.output.is_empty() || !operator.output.iter().all(is_given) {
                convert(&mut graph, operator)?;
            }
        }
        let mut inputs = Vec::new();
        for name in self.external_inputs() {
            let known = given.iter().find(|input| input.name == name);
            if known.is_none() && graph.blob(name).is_some() {
                continue;
            }
            let input = known.cloned().or_else(|| self.infer_input(&graph, name));
            let Input { name, element, dims } = input.ok_or_else(|| NetDefError::Open(name.to_owned()))?;
            inputs.push(info(&name, element, dims.as_ref()));
            graph.bind(&name, Value { name: name.clone(), element, dims, ints: None });
        }
        for operator in &self.net.op {
            convert(&mut graph, operator)?;
        }
        let outputs = self.outputs(&mut graph, &inputs)?;
        Ok(model(graph, inputs, outputs).encode_to_vec())
    }

    /// All operators: those that initialise, then the net's.
    fn operators(&self) -> impl Iterator<Item = &OperatorDef> {
        self.init.op.iter().chain(&self.net.op)
    }

    fn check_operators(&self) -> Result<(), NetDefError> {
        let unknown = self.operators().filter(|operator| operators::find(&operator.r#type).is_none());
        let unknown: BTreeSet<_> = unknown.map(|operator| operator.r#type.clone()).collect();
        if unknown.is_empty() { Ok(()) } else { Err(NetDefError::Unknown(unknown.into_iter().collect())) }
    }

    /// The blobs that the net reads before it writes them: declared ones first, in the net's order.
    fn external_inputs(&self) -> Vec<&str> {
        let mut made = HashSet::new();
        let mut read = HashSet::new();
        let mut order = Vec::new();
        for operator in &self.net.op {
            for input in &operator.input {
                if !made.contains(input.as_str()) && read.insert(input.as_str()) {
                    order.push(input.as_str());
                }
            }
            made.extend(operator.output.iter().map(String::as_str));
        }
        let declared = |name: &&str| {
            let place = self.net.external_input.iter().position(|input| input == name);
            place.unwrap_or(usize::MAX)
        };
        order.sort_by_key(declared);
        order
    }

    /// Infers an input from the weights of the operator that reads it.
    fn infer_input(&self, graph: &Graph, name: &str) -> Option<Input> {
        let reads = |operator: &&OperatorDef| operator.input.first().is_some_and(|first| first == name);
        let reader = self.net.op.iter().find(reads)?;
        let weights = graph.blob(reader.input.get(1)?)?;
        let dims = operators::input_dims(&reader.r#type, &Arguments::of(&reader.arg), weights)?;
        Some(Input { name: name.to_owned(), element: weights.element, dims: Some(dims) })
    }

    /// Renames the outputs to the net's names.
    fn outputs(
        &self,
        graph: &mut Graph,
        inputs: &[ValueInfoProto],
    ) -> Result<Vec<ValueInfoProto>, NetDefError> {
        let mut outputs: Vec<ValueInfoProto> = Vec::new();
        for name in &self.net.external_output {
            if outputs.iter().any(|output| output.name == *name) {
                continue;
            }
            let value = graph.blob(name).cloned();
            let refused = |why| NetDefError::Output(name.clone(), why);
            let value = value.ok_or_else(|| refused("is not computed by any operator"))?;
            if inputs.iter().any(|input| input.name == *name) {
                return Err(refused("has the name of an input"));
            }
            graph.rename(&value, name);
            // Declares only the rank: a size that an engine infers differently would be an error.
            let dims = value.rank().map(|rank| vec![None; rank]);
            outputs.push(info(name, value.element, dims.as_ref()));
        }
        if outputs.is_empty() { Err(NetDefError::NoOutputs) } else { Ok(outputs) }
    }
}

fn convert(graph: &mut Graph, operator: &OperatorDef) -> Result<(), NetDefError> {
    let blob = operator.output.first().map_or("", String::as_str);
    let refused =
        |why: String| NetDefError::Refused { operator: operator.r#type.clone(), blob: blob.to_owned(), why };
    let convert = operators::find(&operator.r#type)
        .ok_or_else(|| NetDefError::Unknown(vec![operator.r#type.clone()]))?;
    let inputs = operator.input.iter().map(|name| {
        graph.blob(name).cloned().ok_or_else(|| refused(format!("no operator computes its input '{name}'")))
    });
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    graph.begin(blob);
    let mut call = Call {
        graph,
        kind: &operator.r#type,
        arguments: Arguments::of(&operator.arg),
        inputs,
        outputs: operator.output.len(),
    };
    let outputs = convert(&mut call).map_err(refused)?;
    if let Some(unknown) = call.arguments.unknown() {
        return Err(refused(format!("argument '{unknown}' has no counterpart in ONNX")));
    }
    let graph = call.graph;
    if outputs.iter().any(|value| value.rank().is_some_and(|rank| rank > MOST_DIMENSIONS)) {
        return Err(refused(format!("a tensor with more than {MOST_DIMENSIONS} dimensions")));
    }
    for (name, value) in operator.output.iter().zip(outputs) {
        graph.bind(name, value);
    }
    Ok(())
}

fn info(name: &str, element: Element, dims: Option<&Dims>) -> ValueInfoProto {
    let dim = |dim: &Option<i64>| DimensionProto { value: dim.map(DimensionValue::Size) };
    let shape = dims.map(|dims| TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: element as i32, shape });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

fn model(mut graph: Graph, input: Vec<ValueInfoProto>, output: Vec<ValueInfoProto>) -> ModelProto {
    let nodes = mem::take(&mut graph.nodes);
    let used: HashSet<&str> = nodes.iter().flat_map(|node| &node.input).map(String::as_str).collect();
    let initializer = graph.constants.into_iter().filter(|constant| used.contains(constant.name.as_str()));
    let initializer = initializer.collect();
    let graph = GraphProto { node: nodes, name: "netdef".to_owned(), initializer, input, output };
    ModelProto {
        ir_version: IR_VERSION,
        producer_name: "nereid".to_owned(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
    }
}

#[cfg(test)]
mod tests;
