//! The inputs and outputs that an ONNX file declares, known before the library loads the file.
//!
//! Needed for two reasons: the library does not distinguish a scalar from a tensor of unknown rank, and types of later
//! ONNX versions must not reach the `ort` crate, which knows a closed set.

use std::collections::BTreeMap;

use nereid_backend_api::{DataType, Error, Result};

use crate::onnx::{AttributeProto, Kind, ModelProto, NodeProto, ValueInfoProto};
use crate::short_runs::work_follows_sizes;

/// The element types that ONNX and the protocol share, by their number and name in ONNX.
const TYPES: &[(i32, &str, DataType)] = &[
    (1, "FLOAT", DataType::Fp32),
    (2, "UINT8", DataType::Uint8),
    (3, "INT8", DataType::Int8),
    (4, "UINT16", DataType::Uint16),
    (5, "INT16", DataType::Int16),
    (6, "INT32", DataType::Int32),
    (7, "INT64", DataType::Int64),
    (8, "STRING", DataType::Bytes),
    (9, "BOOL", DataType::Bool),
    (10, "FLOAT16", DataType::Fp16),
    (11, "DOUBLE", DataType::Fp64),
    (12, "UINT32", DataType::Uint32),
    (13, "UINT64", DataType::Uint64),
    (16, "BFLOAT16", DataType::Bf16),
];

/// The names of ONNX's other element types, for messages.
const OTHER_TYPES: &[(i32, &str)] = &[
    (14, "COMPLEX64"),
    (15, "COMPLEX128"),
    (17, "FLOAT8E4M3FN"),
    (18, "FLOAT8E4M3FNUZ"),
    (19, "FLOAT8E5M2"),
    (20, "FLOAT8E5M2FNUZ"),
    (21, "UINT4"),
    (22, "INT4"),
    (23, "FLOAT4E2M1"),
];

/// The operators that end the process where an input has no elements: they divide their work among threads by its dimensions. Seen
/// with ONNX Runtime 1.31.
const FATAL_ON_EMPTY: [&str; 3] = ["DynamicQuantizeLSTM", "GRU", "LSTM"];

/// Facts about a model, read before the library loads it.
#[derive(Debug, Default)]
pub(crate) struct DeclaredTensors {
    /// The inputs and outputs, by name, with whether their rank is unknown.
    open: BTreeMap<Vec<u8>, bool>,
    fatal_on_empty: Option<&'static str>,
    work_follows_sizes: bool,
}

impl DeclaredTensors {
    /// Reads the facts of a model.
    ///
    /// # Errors
    /// The model declares an input or output of a type that the protocol lacks.
    pub(crate) fn of(model: ModelProto) -> Result<Self> {
        let work_follows_sizes = work_follows_sizes(&model);
        let ModelProto { graph: Some(graph), functions } = model else {
            return Ok(Self::default());
        };
        let functions = functions.iter().map(|function| fatal_on_empty(&function.node));
        let fatal_on_empty = functions.fold(fatal_on_empty(&graph.node), Option::or);
        let inputs = graph.input.into_iter().map(|info| ("input", info));
        let outputs = graph.output.into_iter().map(|info| ("output", info));
        let mut open = BTreeMap::new();
        for (role, info) in inputs.chain(outputs) {
            let is_open = rank_is_open(role, &info)?;
            open.insert(info.name, is_open);
        }
        Ok(Self { open, fatal_on_empty, work_follows_sizes })
    }

    /// An operator of the model that ends the process where an input has no elements.
    pub(crate) fn fatal_on_empty(&self) -> Option<&'static str> {
        self.fatal_on_empty
    }

    /// See [`work_follows_sizes`]. Unknown of a model in the library's own format.
    pub(crate) fn work_follows_sizes(&self) -> bool {
        self.work_follows_sizes
    }

    /// Whether the rank of an input or output is unknown.
    pub(crate) fn rank_is_open(&self, name: &str) -> bool {
        self.open.get(name.as_bytes()).copied().unwrap_or_default()
    }
}

/// The first of these operators among nodes, and in the bodies of loops and conditions.
fn fatal_on_empty(nodes: &[NodeProto]) -> Option<&'static str> {
    nodes.iter().find_map(|node| {
        let own = FATAL_ON_EMPTY.into_iter().find(|operator| operator.as_bytes() == node.op_type);
        let mut bodies = node.attribute.iter().flat_map(AttributeProto::bodies);
        own.or_else(|| bodies.find_map(|body| fatal_on_empty(&body.node)))
    })
}

/// Whether the rank of a servable input or output is unknown.
fn rank_is_open(role: &str, info: &ValueInfoProto) -> Result<bool> {
    let name = String::from_utf8_lossy(&info.name);
    let tensor = match info.r#type.as_ref().and_then(|kind| kind.value.as_ref()) {
        Some(Kind::Tensor(tensor)) => tensor,
        other => {
            let what = match other {
                Some(kind) if is_of_zip_map(kind) => {
                    return Err(Error::unsupported(format!(
                        "{role} '{name}' of the model is a map for each row, but requests and responses carry tensors \
                         only: convert the model with options={{\"zipmap\": False}} (skl2onnx)"
                    )));
                }
                Some(Kind::Sequence(_)) => "a sequence",
                Some(Kind::Map(_)) => "a map",
                Some(Kind::Optional(_)) => "an optional value",
                Some(Kind::Sparse(_)) => "a sparse tensor",
                Some(Kind::Opaque(_)) => "of a type of its own",
                // ONNX Runtime infers the type.
                Some(Kind::Tensor(_)) | None => return Ok(true),
            };
            return Err(Error::unsupported(format!(
                "{role} '{name}' of the model is {what}, but requests and responses carry tensors only: convert it \
                 within the model"
            )));
        }
    };
    if tensor.elem_type != 0 && !TYPES.iter().any(|(number, ..)| *number == tensor.elem_type) {
        let known = OTHER_TYPES.iter().find(|(number, _)| *number == tensor.elem_type);
        let found =
            known.map_or_else(|| format!("number {}", tensor.elem_type), |(_, name)| (*name).to_owned());
        let names: Vec<_> = TYPES.iter().map(|(_, name, _)| *name).collect();
        return Err(Error::unsupported(format!(
            "{role} '{name}' of the model has element type {found}, but the protocol has only {}: cast it within the \
             model",
            names.join(", ")
        )));
    }
    Ok(tensor.shape.is_none())
}

/// Whether this is the type of the operator ZipMap, which converters of classifiers add: a sequence of maps.
fn is_of_zip_map(kind: &Kind) -> bool {
    let Kind::Sequence(sequence) = kind else { return false };
    matches!(sequence.element.as_ref().and_then(|kind| kind.value.as_ref()), Some(Kind::Map(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::{Anything, FunctionProto, GraphProto, SequenceType, TensorType, TypeProto};

    fn file(name: &str, kind: Option<Kind>) -> ModelProto {
        let info = ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: kind }) };
        let graph = GraphProto { input: vec![info], ..GraphProto::default() };
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn operators_that_end_the_process_are_found_at_any_depth() {
        let node = |operator: &str| NodeProto { op_type: operator.into(), ..NodeProto::default() };
        let graph = |nodes: Vec<NodeProto>| GraphProto { node: nodes, ..GraphProto::default() };
        let around = |body: GraphProto, is_listed: bool| {
            let attribute = match is_listed {
                true => AttributeProto { graphs: vec![body], ..AttributeProto::default() },
                false => AttributeProto { g: Some(body), ..AttributeProto::default() },
            };
            NodeProto { attribute: vec![attribute], ..node("Loop") }
        };
        let found = |graph, functions| {
            let model = ModelProto { graph: Some(graph), functions };
            DeclaredTensors::of(model).unwrap().fatal_on_empty()
        };
        assert_eq!(found(graph(vec![node("Relu"), node("RNN")]), Vec::new()), None);
        for operator in FATAL_ON_EMPTY {
            let nodes = vec![node("Relu"), node(operator)];
            assert_eq!(found(graph(nodes.clone()), Vec::new()), Some(operator));
            for is_listed in [false, true] {
                let inner = graph(vec![around(graph(nodes.clone()), is_listed)]);
                assert_eq!(
                    found(graph(vec![node("Add"), around(inner, is_listed)]), Vec::new()),
                    Some(operator)
                );
            }
            let function = FunctionProto { node: nodes };
            assert_eq!(found(graph(vec![node("Own")]), vec![function]), Some(operator));
        }
    }

    fn tensor(elem_type: i32, shape: Option<Anything>) -> Option<Kind> {
        Some(Kind::Tensor(TensorType { elem_type, shape }))
    }

    fn sequence(element: Option<Kind>) -> Kind {
        let element = element.map(|kind| TypeProto { value: Some(kind) });
        Kind::Sequence(Box::new(SequenceType { element }))
    }

    #[test]
    fn an_open_rank_differs_from_a_scalar() {
        assert!(DeclaredTensors::of(file("X", tensor(1, None))).unwrap().rank_is_open("X"));
        assert!(!DeclaredTensors::of(file("X", tensor(1, Some(Anything {})))).unwrap().rank_is_open("X"));
        assert!(!DeclaredTensors::of(file("X", tensor(1, None))).unwrap().rank_is_open("Y"));
    }

    #[test]
    fn value_of_another_kind_is_refused_as_a_tensor() {
        for (kind, reported) in [
            (sequence(None), "input 'X' of the model is a sequence"),
            (sequence(tensor(1, None)), "input 'X' of the model is a sequence"),
            (sequence(Some(sequence(Some(Kind::Map(Anything {}))))), "input 'X' of the model is a sequence"),
            (Kind::Map(Anything {}), "input 'X' of the model is a map"),
            (Kind::Optional(Anything {}), "input 'X' of the model is an optional value"),
            (Kind::Sparse(Anything {}), "input 'X' of the model is a sparse tensor"),
            (Kind::Opaque(Anything {}), "input 'X' of the model is of a type of its own"),
        ] {
            let error = DeclaredTensors::of(file("X", Some(kind))).unwrap_err();
            assert!(error.message().starts_with(reported), "{error}");
        }
    }

    #[test]
    fn maps_of_a_classifier_are_refused_with_the_option_of_its_converter() {
        let error = DeclaredTensors::of(file("Y", Some(sequence(Some(Kind::Map(Anything {})))))).unwrap_err();
        assert!(error.message().contains("'Y' of the model is a map for each row"), "{error}");
        assert!(error.message().contains("options={\"zipmap\": False}"), "{error}");
    }

    #[test]
    fn element_types_outside_the_protocol_are_refused_known_or_not() {
        for (number, reported) in
            [(14, "COMPLEX64"), (20, "FLOAT8E5M2FNUZ"), (23, "FLOAT4E2M1"), (99, "number 99")]
        {
            let error = DeclaredTensors::of(file("X", tensor(number, None))).unwrap_err();
            assert!(error.message().contains(&format!("element type {reported}, but")), "{error}");
        }
        for (number, ..) in TYPES {
            DeclaredTensors::of(file("X", tensor(*number, None))).unwrap();
        }
    }
}
