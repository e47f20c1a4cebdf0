//! The operators that are served, each with the attributes that are.
//!
//! An operator is here if ONNX's own conformance cases for it pass, with the attributes and attribute values that they
//! cover. `tests/end_to_end/frameworks/test_onnx_conformance.py` runs these cases. Everything else is refused while a model loads:
//! the engine knows more operators, but some of them compute wrong values, and others trust the file.

use std::collections::{BTreeSet, HashSet};

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

/// The opsets that are served. In older ones, some of these operators have another meaning; in newer ones, they may.
const OPSETS: std::ops::RangeInclusive<i64> = 6..=28;
const ML_OPSETS: std::ops::RangeInclusive<i64> = 1..=5;
const ML: &str = "ai.onnx.ml";
const RUNTIME: &str = "com.microsoft";

/// The attributes of recurrent operators. The engine ignores all others, and runs `reverse` forwards.
const RECURRENT: &str =
    "hidden_size direction=forward|bidirectional layout=0|1 input_forget=0 linear_before_reset=0|1";
const POOL: &str =
    "auto_pad=NOTSET|VALID|SAME_UPPER|SAME_LOWER ceil_mode=0|1 dilations kernel_shape pads strides";
const CONV: &str = "auto_pad=NOTSET|VALID|SAME_UPPER|SAME_LOWER dilations group kernel_shape pads strides";
const REDUCE: &str = "axes keepdims=0|1 noop_with_empty_axes=0|1";

/// Operators of ONNX's own domain, each with its attributes: `name` with any value, or `name=value|value`.
const OPERATORS: &[(&str, &[&str])] = &[
    ("Abs", &[]),
    ("Acos", &[]),
    ("Acosh", &[]),
    ("Add", &[]),
    ("And", &[]),
    ("ArgMax", &["axis keepdims=0|1 select_last_index=0|1"]),
    ("ArgMin", &["axis keepdims=0|1 select_last_index=0|1"]),
    ("Asin", &[]),
    ("Asinh", &[]),
    ("Atan", &[]),
    ("Atanh", &[]),
    ("AveragePool", &[POOL, "count_include_pad=0|1"]),
    ("BatchNormalization", &["epsilon is_test=1 momentum spatial=1 training_mode=0"]),
    ("BitwiseAnd", &[]),
    ("BitwiseNot", &[]),
    ("BitwiseOr", &[]),
    ("BitwiseXor", &[]),
    // To BOOL and to the numbers that the protocol has.
    ("Cast", &["to=1|2|3|4|5|6|7|9|10|11|12|13 saturate"]),
    ("CastLike", &["saturate"]),
    ("Ceil", &[]),
    ("Clip", &["max min"]),
    ("Concat", &["axis"]),
    ("Constant", &["value value_float value_floats value_int value_ints"]),
    ("ConstantOfShape", &["value"]),
    ("Conv", &[CONV]),
    ("ConvInteger", &[CONV]),
    ("ConvTranspose", &[CONV, "output_padding output_shape"]),
    ("Cos", &[]),
    ("Cosh", &[]),
    ("CumSum", &["exclusive=0|1 reverse=0|1"]),
    ("DFT", &["axis inverse=0|1 onesided=0|1"]),
    ("DepthToSpace", &["blocksize mode=DCR|CRD"]),
    ("DequantizeLinear", &["axis"]),
    ("Div", &[]),
    ("Dropout", &["ratio seed"]),
    ("DynamicQuantizeLinear", &[]),
    ("Einsum", &["equation"]),
    ("Elu", &["alpha"]),
    ("Equal", &[]),
    ("Erf", &[]),
    ("Exp", &[]),
    ("Expand", &[]),
    ("EyeLike", &["dtype k"]),
    ("Flatten", &["axis"]),
    ("Floor", &[]),
    ("GRU", &[RECURRENT]),
    ("Gather", &["axis"]),
    ("GatherElements", &["axis"]),
    ("GatherND", &["batch_dims"]),
    ("Gelu", &["approximate=none|tanh"]),
    ("Gemm", &["alpha beta broadcast=1 transA=0|1 transB=0|1"]),
    ("GlobalAveragePool", &[]),
    ("GlobalMaxPool", &[]),
    ("Greater", &[]),
    ("GreaterOrEqual", &[]),
    ("GridSample", &["align_corners=0|1 mode=cubic|linear|nearest padding_mode=border|reflection|zeros"]),
    ("GroupNormalization", &["epsilon num_groups"]),
    ("HardSigmoid", &["alpha beta"]),
    ("HardSwish", &[]),
    ("Hardmax", &["axis"]),
    ("Identity", &[]),
    ("If", &["else_branch then_branch"]),
    ("InstanceNormalization", &["epsilon"]),
    ("IsInf", &["detect_negative=0|1 detect_positive=0|1"]),
    ("IsNaN", &[]),
    ("LRN", &["alpha beta bias size"]),
    ("LSTM", &[RECURRENT]),
    ("LayerNormalization", &["axis epsilon stash_type=1"]),
    ("LeakyRelu", &["alpha"]),
    ("Less", &[]),
    ("LessOrEqual", &[]),
    ("Log", &[]),
    ("LogSoftmax", &["axis"]),
    ("LpNormalization", &["axis p=1|2"]),
    ("MatMul", &[]),
    ("MatMulInteger", &[]),
    ("Max", &[]),
    ("MaxPool", &[POOL, "storage_order=0|1"]),
    ("Mean", &[]),
    ("MeanVarianceNormalization", &[]),
    ("Min", &[]),
    ("Mish", &[]),
    ("Mod", &["fmod=0|1"]),
    ("Mul", &[]),
    ("Neg", &[]),
    ("NonMaxSuppression", &["center_point_box=0|1"]),
    ("NonZero", &[]),
    ("Not", &[]),
    ("OneHot", &["axis"]),
    ("Or", &[]),
    ("PRelu", &[]),
    ("Pad", &["mode=constant|edge|reflect pads value"]),
    ("Pow", &[]),
    ("QLinearConv", &[CONV]),
    ("QLinearMatMul", &[]),
    ("QuantizeLinear", &["axis saturate"]),
    ("RMSNormalization", &["axis epsilon stash_type=1"]),
    ("RNN", &[RECURRENT]),
    ("Range", &[]),
    ("Reciprocal", &[]),
    ("ReduceL1", &[REDUCE]),
    ("ReduceL2", &[REDUCE]),
    ("ReduceLogSum", &[REDUCE]),
    ("ReduceLogSumExp", &[REDUCE]),
    ("ReduceMax", &[REDUCE]),
    ("ReduceMean", &[REDUCE]),
    ("ReduceMin", &[REDUCE]),
    ("ReduceProd", &[REDUCE]),
    ("ReduceSum", &[REDUCE]),
    ("ReduceSumSquare", &[REDUCE]),
    ("Relu", &[]),
    ("Reshape", &["allowzero=0|1"]),
    (
        "Resize",
        &[
            "antialias=0|1 axes cubic_coeff_a exclude_outside=0|1 extrapolation_value mode=cubic|linear|nearest",
            "keep_aspect_ratio_policy=stretch|not_larger|not_smaller",
            "nearest_mode=ceil|floor|round_prefer_ceil|round_prefer_floor",
            "coordinate_transformation_mode=align_corners|asymmetric|half_pixel|half_pixel_symmetric",
            "coordinate_transformation_mode=pytorch_half_pixel|tf_crop_and_resize",
        ],
    ),
    ("RotaryEmbedding", &["interleaved=0|1 num_heads rotary_embedding_dim"]),
    ("Round", &[]),
    ("STFT", &["onesided=0|1"]),
    ("Scatter", &["axis"]),
    ("ScatterElements", &["axis reduction=none|add|max|min|mul"]),
    ("ScatterND", &["reduction=none|add|max|min|mul"]),
    ("Selu", &["alpha gamma"]),
    ("Shape", &["end start"]),
    ("Shrink", &["bias lambd"]),
    ("Sigmoid", &[]),
    ("Sign", &[]),
    ("Sin", &[]),
    ("Sinh", &[]),
    ("Size", &[]),
    ("Slice", &["axes ends starts"]),
    ("Softmax", &["axis"]),
    ("Softplus", &[]),
    ("Softsign", &[]),
    ("SpaceToDepth", &["blocksize mode=DCR"]),
    ("Split", &["axis num_outputs split"]),
    ("Sqrt", &[]),
    ("Squeeze", &["axes"]),
    ("Sub", &[]),
    ("Sum", &[]),
    ("Swish", &["alpha=1"]),
    ("Tan", &[]),
    ("Tanh", &[]),
    ("ThresholdedRelu", &["alpha"]),
    ("Tile", &[]),
    ("TopK", &["axis k largest=0|1 sorted=1"]),
    ("Transpose", &["perm"]),
    ("Trilu", &["upper=0|1"]),
    ("Unsqueeze", &["axes"]),
    ("Where", &[]),
    ("Xor", &[]),
];

/// Operators of ONNX Runtime's own domain.
const RUNTIME_OPERATORS: &[(&str, &[&str])] =
    &[("DynamicQuantizeLSTM", &["direction=forward|reverse|bidirectional hidden_size input_forget=0"])];

/// Operators of the domain for classical machine learning.
const ML_OPERATORS: &[(&str, &[&str])] = &[
    ("ArrayFeatureExtractor", &[]),
    ("Binarizer", &["threshold"]),
    ("Imputer", &["imputed_value_floats imputed_value_int64s replaced_value_float replaced_value_int64"]),
    (
        "LabelEncoder",
        &[
            "classes_strings default_float default_int64 default_string default_tensor",
            "keys_floats keys_int64s keys_strings keys_tensor values_floats values_int64s values_strings values_tensor",
        ],
    ),
    (
        "LinearClassifier",
        &["classlabels_ints classlabels_strings coefficients intercepts multi_class post_transform"],
    ),
    ("LinearRegressor", &["coefficients intercepts post_transform targets"]),
    ("Normalizer", &["norm=L1|L2|MAX"]),
    ("OneHotEncoder", &["cats_int64s cats_strings zeros"]),
    ("Scaler", &["offset scale"]),
    (
        "TreeEnsemble",
        &[
            "aggregate_function=0|1 leaf_targetids leaf_weights membership_values n_targets post_transform tree_roots",
            "nodes_falseleafs nodes_falsenodeids nodes_featureids nodes_hitrates nodes_missing_value_tracks_true",
            "nodes_modes nodes_splits nodes_trueleafs nodes_truenodeids",
        ],
    ),
    (
        "TreeEnsembleClassifier",
        &[
            TREES,
            "class_ids class_nodeids class_treeids class_weights class_weights_as_tensor classlabels_int64s",
            "classlabels_strings",
        ],
    ),
    (
        "TreeEnsembleRegressor",
        &[
            TREES,
            "aggregate_function=AVERAGE|SUM n_targets target_ids target_nodeids target_treeids target_weights",
            "target_weights_as_tensor",
        ],
    ),
];

/// The attributes of trees and of what becomes of their sums.
const TREES: &str = "base_values base_values_as_tensor nodes_falsenodeids nodes_featureids nodes_hitrates \
                     nodes_hitrates_as_tensor nodes_missing_value_tracks_true nodes_modes nodes_nodeids nodes_treeids \
                     nodes_truenodeids nodes_values nodes_values_as_tensor post_transform";

/// The operators and opsets of a model that are not served, in words, sorted.
pub(crate) fn unsupported(model: &ModelProto, graph: &GraphProto) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for opset in &model.opset_import {
        let served = match opset.domain.as_str() {
            "" | "ai.onnx" => OPSETS,
            ML => ML_OPSETS,
            _ => continue,
        };
        if !served.contains(&opset.version) {
            found.insert(format!("opset {} of {}", opset.version, display_domain(&opset.domain)));
        }
    }
    collect(graph, &mut found);
    // Its meaning changed: ONNX Runtime's masks of older versions are empty.
    let is_old = |opset: &OperatorSetIdProto| {
        matches!(opset.domain.as_str(), "" | "ai.onnx") && opset.version < DROPOUT_MASKS
    };
    if model.opset_import.iter().any(is_old) && has_dropout_mask(graph) {
        found.insert(format!("the mask of a Dropout before opset {DROPOUT_MASKS}"));
    }
    found
}

/// The opset from which on the mask of a Dropout that drops nothing is true.
const DROPOUT_MASKS: i64 = 12;

/// Whether something reads the mask of a Dropout, also in the bodies of conditions.
fn has_dropout_mask(graph: &GraphProto) -> bool {
    let masks =
        graph.node.iter().filter(|node| node.op_type == "Dropout").filter_map(|node| node.output.get(1));
    let mut masks = masks.filter(|name| !name.is_empty());
    let mut read = HashSet::new();
    add_read(graph, &mut read);
    masks.any(|mask| read.contains(mask.as_str())) || bodies(graph).any(has_dropout_mask)
}

/// Adds the names that are read in a graph and in the bodies of its nodes.
fn add_read<'a>(graph: &'a GraphProto, read: &mut HashSet<&'a str>) {
    read.extend(graph.node.iter().flat_map(|node| &node.input).map(String::as_str));
    read.extend(graph.output.iter().map(|output| output.name.as_str()));
    bodies(graph).for_each(|body| add_read(body, read));
}

/// The bodies of the nodes of a graph.
pub(crate) fn bodies(graph: &GraphProto) -> impl Iterator<Item = &GraphProto> {
    graph.node.iter().flat_map(|node| &node.attribute).flat_map(|it| it.g.iter().chain(&it.graphs))
}

/// Adds the operators that are not served, also those in the bodies of loops and conditions.
fn collect(graph: &GraphProto, found: &mut BTreeSet<String>) {
    found.extend(graph.node.iter().filter_map(refusal));
    bodies(graph).for_each(|body| collect(body, found));
}

fn refusal(node: &NodeProto) -> Option<String> {
    let (operators, name) = match node.domain.as_str() {
        "" | "ai.onnx" => (OPERATORS, node.op_type.clone()),
        ML => (ML_OPERATORS, format!("{ML}.{}", node.op_type)),
        RUNTIME => (RUNTIME_OPERATORS, format!("{RUNTIME}.{}", node.op_type)),
        domain => return Some(format!("{domain}.{}", node.op_type)),
    };
    let Ok(at) = operators.binary_search_by_key(&node.op_type.as_str(), |&(name, _)| name) else {
        return Some(name);
    };
    let (_, served) = operators[at];
    let refused = node.attribute.iter().find(|attribute| !is_served(attribute, served))?;
    Some(match text(refused) {
        Some(value) => format!("{name} with {}={value}", refused.name),
        None => format!("{name} with {}", refused.name),
    })
}

fn is_served(attribute: &AttributeProto, served: &[&str]) -> bool {
    let mut terms = served.iter().flat_map(|terms| terms.split_whitespace());
    terms.any(|term| match term.split_once('=') {
        None => term == attribute.name,
        Some((name, values)) => {
            name == attribute.name
                && text(attribute).is_some_and(|value| values.split('|').any(|it| it == value))
        }
    })
}

/// The value of an attribute that is a number or a text.
fn text(attribute: &AttributeProto) -> Option<String> {
    match AttributeType::try_from(attribute.r#type).ok()? {
        AttributeType::Int => Some(attribute.i.to_string()),
        AttributeType::Float => Some(attribute.f.to_string()),
        AttributeType::String => Some(String::from_utf8_lossy(&attribute.s).into_owned()),
        _ => None,
    }
}

fn display_domain(domain: &str) -> &str {
    if domain.is_empty() { "ai.onnx" } else { domain }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::onnx::{node, with_int};

    #[test]
    fn the_tables_are_sorted() {
        for table in [OPERATORS, ML_OPERATORS, RUNTIME_OPERATORS] {
            assert!(table.is_sorted_by(|(one, _), (other, _)| one < other));
        }
    }

    #[test]
    fn unlisted_operator_is_refused_by_name() {
        let with_text = |op, name: &str, value: &str| {
            let mut node = node(op, &["X"], &["Y"]);
            let r#type = AttributeType::String as i32;
            node.attribute.push(AttributeProto {
                name: name.into(),
                r#type,
                s: value.into(),
                ..Default::default()
            });
            node
        };
        let in_domain = |domain: &str, op| NodeProto { domain: domain.into(), ..node(op, &["X"], &["Y"]) };
        for (node, expected) in [
            (node("Loop", &["X"], &["Y"]), Some("Loop")),
            (node("BitShift", &["X"], &["Y"]), Some("BitShift")),
            (in_domain("com.example", "Add"), Some("com.example.Add")),
            (in_domain("ai.onnx", "Add"), None),
            (in_domain(ML, "Add"), Some("ai.onnx.ml.Add")),
            (in_domain(RUNTIME, "Add"), Some("com.microsoft.Add")),
            (in_domain(RUNTIME, "DynamicQuantizeLSTM"), None),
            (in_domain("", "DynamicQuantizeLSTM"), Some("DynamicQuantizeLSTM")),
            (with_text("LSTM", "direction", "reverse"), Some("LSTM with direction=reverse")),
            (with_text("LSTM", "direction", "bidirectional"), None),
            (with_text("LSTM", "activations", "Relu"), Some("LSTM with activations=Relu")),
            (with_text("Resize", "coordinate_transformation_mode", "tf_crop_and_resize"), None),
            (
                with_text("Resize", "coordinate_transformation_mode", "other"),
                Some("Resize with coordinate_transformation_mode=other"),
            ),
            (with_int(node("TopK", &["X"], &["Y"]), "sorted", 0), Some("TopK with sorted=0")),
            (with_int(node("TopK", &["X"], &["Y"]), "axis", 7), None),
            (with_int(node("Relu", &["X"], &["Y"]), "made_up", 7), Some("Relu with made_up=7")),
        ] {
            assert_eq!(refusal(&node).as_deref(), expected, "{node:?}");
        }
    }
}
