//! ONNX's rules for the attributes and inputs of a node, which the engine relies upon without a check.
//!
//! `analysis` holds each node to its rule before the engine infers it, when the shapes of its inputs and the values of constants
//! are known.

use std::collections::HashMap;

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{GraphProto, NodeProto};
use tract_onnx::prelude::{DatumType, InferenceFact, TractResult};
use tract_onnx::tract_core::internal::{OutletId, bail, ensure};
use tract_onnx::tract_hir::infer::Factoid;

use crate::scratch::Scratch;
use crate::values::check_places;
use crate::windows::Windows;

/// The rules for the nodes of a graph, by the engine's number of the node.
#[derive(Default)]
pub(crate) struct Rules {
    nodes: HashMap<usize, Rule>,
}

/// The rule for an ONNX node. Positions of inputs do not count those that the node leaves out.
pub(crate) struct Rule {
    pub(crate) operator: String,
    /// The attributes that are a whole number.
    numbers: Vec<(String, i64)>,
    /// The attribute `axes`.
    axes: Vec<i64>,
    /// The input that lists axes.
    axes_input: Option<usize>,
    /// The attribute `perm`.
    permutation: Option<Vec<i64>>,
    /// The attribute `split`.
    split: Option<Vec<i64>>,
    /// The inputs that are a single number.
    scalars: Vec<usize>,
    outputs: usize,
    windows: Option<Windows>,
    /// The attribute `pads` of a Pad.
    pads: Option<Vec<i64>>,
    mode: Vec<u8>,
    /// Whether a Resize has the coordinate transformation `align_corners`.
    aligns_corners: bool,
    pub(crate) scratch: Scratch,
}

impl Rules {
    /// The rules for a graph, whose tensors the engine knows as `outlets`.
    pub(crate) fn new(graph: &GraphProto, outlets: &HashMap<String, OutletId>) -> Self {
        let rule = |node: &NodeProto| {
            let outlet = outlets.get(node.output.iter().find(|name| !name.is_empty())?)?;
            Some((outlet.node, Rule::new(node)))
        };
        Self { nodes: graph.node.iter().filter_map(rule).collect() }
    }

    /// The rule for a node of the engine's.
    pub(crate) fn get(&self, node: usize) -> Option<&Rule> {
        self.nodes.get(&node)
    }
}

impl Rule {
    fn new(node: &NodeProto) -> Self {
        let numbers = node.attribute.iter().filter(|it| it.r#type == AttributeType::Int as i32);
        let list = |name| node.attribute.iter().find(|it| it.name == name).map(|it| it.ints.clone());
        let scalars = SCALARS.iter().find(|(operator, _)| *operator == node.op_type);
        let given = |&input: &usize| node.input.get(input).is_some_and(|name| !name.is_empty());
        let position = |input: usize| node.input[..input].iter().filter(|name| !name.is_empty()).count();
        Self {
            operator: node.op_type.clone(),
            numbers: numbers.map(|it| (it.name.clone(), it.i)).collect(),
            axes: list("axes").unwrap_or_default(),
            axes_input: axes_input(&node.op_type).filter(given).map(position),
            permutation: list("perm"),
            split: list("split"),
            scalars: scalars
                .iter()
                .flat_map(|(_, inputs)| *inputs)
                .copied()
                .filter(given)
                .map(position)
                .collect(),
            outputs: node.output.len(),
            windows: Windows::new(node),
            pads: list("pads"),
            mode: node.attribute.iter().find(|it| it.name == "mode").map_or_else(Vec::new, |it| it.s.clone()),
            aligns_corners: node.attribute.iter().any(|it| it.s == b"align_corners"),
            scratch: Scratch::new(node),
        }
    }

    pub(crate) fn expands(&self) -> bool {
        EXPANDING.contains(&self.operator.as_str())
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.numbers.iter().find(|(known, _)| known == name).map(|&(_, value)| value)
    }

    /// Checks the inputs of the node, as far as their shapes are known.
    pub(crate) fn check(&self, inputs: &[InferenceFact]) -> TractResult<()> {
        let dim = |input: usize, axis: usize| {
            dims(inputs.get(input)?).and_then(|dims| dims.get(axis).copied().flatten())
        };
        let rank = |input: usize| inputs.get(input).and_then(|fact| fact.shape.rank().concretize());
        let axes = match self.axes_input.and_then(|input| numbers(inputs.get(input)?)) {
            Some(axes) => axes,
            None => self.axes.clone(),
        };
        check_dimensions(axes.len() as i64)?;
        if let Some(rank) = rank(0) {
            self.check_axes(rank, &axes)?;
        } else if self.number("axis").is_some() || !axes.is_empty() {
            bail!("the rank of its input is unknown");
        }
        if inputs.iter().any(|input| input.datum_type.concretize() == Some(DatumType::String)) {
            ensure!(
                TEXT.contains(&self.operator.as_str()),
                "the embedded engine has no {} of strings",
                self.operator
            );
        }
        if self.expands() {
            inputs.iter().try_for_each(check_sizes)?;
        }
        // The engine reads their first element, whether they have any or not.
        for input in self.scalars.iter().filter_map(|&input| inputs.get(input)) {
            let single = dims(input).is_some_and(|dims| dims.iter().all(|dim| *dim == Some(1)));
            ensure!(single, "an input has the shape {:?} instead of a single element", input.shape);
        }
        if let Some((_, least)) = RANKS.iter().find(|(operator, _)| *operator == self.operator) {
            let Some(rank) = rank(0) else { bail!("the rank of its input is unknown") };
            ensure!(rank >= *least, "its input has {rank} dimensions, and it needs {least}");
        }
        if let Some((_, input)) = SHAPES.iter().find(|(operator, _)| *operator == self.operator)
            && let Some(rank) = dim(*input, 0)
        {
            check_dimensions(rank)?;
        }
        let known = |input: usize| dims(inputs.get(input)?)?.into_iter().collect::<Option<Vec<_>>>();
        if let Some(windows) = &self.windows
            && let (Some(input), Some(weights)) = (known(0), known(windows.weights))
        {
            windows.check(&input, &weights)?;
        }
        let same = |what: &str, one: Option<i64>, other: Option<i64>| {
            let (Some(one), Some(other)) = (one, other) else { return Ok(()) };
            ensure!(one == other, "{what} do not fit: {one} and {other}");
            Ok(())
        };
        match self.operator.as_str() {
            "Conv" | "ConvInteger" | "ConvTranspose" | "QLinearConv" => {
                self.check_parts("group", dim(0, 1), 1)?;
            }
            "DepthToSpace" => self.check_parts("blocksize", dim(0, 1), 2)?,
            "GroupNormalization" => self.check_parts("num_groups", dim(0, 1), 1)?,
            "RotaryEmbedding" if rank(0) == Some(3) => self.check_parts("num_heads", dim(0, 2), 1)?,
            "SpaceToDepth" => {
                self.check_parts("blocksize", dim(0, 2), 1)?;
                self.check_parts("blocksize", dim(0, 3), 1)?;
            }
            "LSTM" | "GRU" | "RNN" | "DynamicQuantizeLSTM" => {
                ensure!(
                    inputs.first().is_none_or(|x| x.datum_type.concretize() != Some(DatumType::F64)),
                    "the embedded engine has no {} of FP64",
                    self.operator
                );
                // Dimensions that do not fit are ones that the engine does not know yet.
                ensure!(known(0).is_some(), "the shape of its input is unknown, or its inputs do not fit");
                let features = if self.operator == "DynamicQuantizeLSTM" { 1 } else { 2 };
                same("the features of X and W", dim(0, 2), dim(1, features))?;
                same("the directions of W and R", dim(1, 0), dim(2, 0))?;
            }
            "Gather" | "ArrayFeatureExtractor" => {
                let axis = match self.operator.as_str() {
                    "Gather" => self.number("axis").unwrap_or(0),
                    _ => -1,
                };
                let axis = rank(0).map(|rank| if axis < 0 { axis + rank } else { axis } as usize);
                if let (Some(dim), Some(indices)) =
                    (axis.and_then(|axis| dim(0, axis)), inputs.get(1).and_then(numbers))
                {
                    check_places(&indices, dim)?;
                }
            }
            "InstanceNormalization" => {
                for (input, what) in
                    [(1, "the channels of the input and the scale"), (2, "those of the bias")]
                {
                    ensure!(rank(input) == Some(1), "the scale and the bias need one dimension");
                    same(what, dim(0, 1), dim(input, 0))?;
                }
            }
            "MatMul" | "MatMulInteger" | "QLinearMatMul" => {
                let other = if self.operator == "QLinearMatMul" { 3 } else { 1 };
                ensure!(rank(0) != Some(0) && rank(other) != Some(0), "a factor has no dimensions");
            }
            "PRelu" => ensure!(rank(1) <= rank(0), "the slope has more dimensions than the input"),
            "Pad" => {
                if let Some(pads) = self.pads.clone().or_else(|| inputs.get(1).and_then(numbers)) {
                    let padded = match axes.is_empty() {
                        true => (0..rank(0).unwrap_or(0)).collect(),
                        false => axes,
                    };
                    self.check_pads(&pads, &padded, &known(0).unwrap_or_default())?;
                }
            }
            // ONNX's definition has the size before it is rounded, and ONNX Runtime the one behind.
            "Resize" if self.aligns_corners => {
                let scales = inputs.iter().skip(1).find_map(scales);
                let sizes = known(0).unwrap_or_default();
                for (size, scale) in sizes.iter().zip(scales.unwrap_or_default()) {
                    let resized = *size as f32 * scale;
                    ensure!(
                        (resized - resized.round()).abs() < 1e-4,
                        "a dimension of {size} is resized to {resized}, which is not a whole number, with aligned corners"
                    );
                }
            }
            "Slice" => {
                // The engine takes the lower 32 bits of a step.
                inputs.get(4).map_or(Ok(()), check_sizes)?;
            }
            "Split" => {
                let axis = self.number("axis").unwrap_or(0);
                let axis = rank(0).map(|rank| if axis < 0 { axis + rank } else { axis } as usize);
                if let Some(dim) = axis.and_then(|axis| dim(0, axis)) {
                    self.check_split(dim, inputs.get(1))?;
                }
            }
            "Transpose" => {
                let Some(rank) = rank(0) else { bail!("the rank of its input is unknown") };
                if let Some(permutation) = &self.permutation {
                    let mut sorted = permutation.clone();
                    sorted.sort_unstable();
                    ensure!(
                        sorted.into_iter().eq(0..rank),
                        "{permutation:?} does not permute {rank} dimensions"
                    );
                }
            }
            "TopK" => {
                let k = inputs.get(1).and_then(|k| k.value.concretize()?.cast_to_scalar::<i64>().ok());
                let axis = self.number("axis").unwrap_or(-1);
                let axis = rank(0).map(|rank| if axis < 0 { axis + rank } else { axis } as usize);
                if let (Some(k), Some(dim)) = (k, axis.and_then(|axis| dim(0, axis))) {
                    ensure!((0..=dim).contains(&k), "{k} elements are asked of a dimension of {dim}");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that a dimension divides into the number of parts in an attribute, to its `power`. The engine makes a dimension
    /// of that size even for a tensor without elements.
    fn check_parts(&self, attribute: &str, dim: Option<i64>, power: u32) -> TractResult<()> {
        let (Some(parts), Some(dim)) = (self.number(attribute), dim) else { return Ok(()) };
        let divides = parts
            .checked_pow(power)
            .is_some_and(|parts| (1..=dim.max(1)).contains(&parts) && dim % parts == 0);
        ensure!(
            divides,
            "a dimension of {dim} does not divide into the parts that {attribute} {parts} asks for"
        );
        Ok(())
    }

    /// Checks the pads of some axes: the engine cannot crop, and takes elements that it pads with from beyond a dimension.
    fn check_pads(&self, pads: &[i64], axes: &[i64], sizes: &[i64]) -> TractResult<()> {
        ensure!(pads.len() == 2 * axes.len(), "{} pads for {} axes", pads.len(), axes.len());
        ensure!(pads.iter().all(|pad| *pad >= 0), "negative pads {pads:?} are not served");
        let most = |size: i64| match self.mode.as_slice() {
            b"reflect" => size - 1,
            b"edge" if size == 0 => 0,
            _ => i64::MAX,
        };
        for (at, axis) in axes.iter().enumerate() {
            let axis = if *axis < 0 { axis + sizes.len() as i64 } else { *axis } as usize;
            let Some(&size) = sizes.get(axis) else { continue };
            let pad = pads[at].max(pads[at + axes.len()]);
            ensure!(
                pad == 0 || pad <= most(size),
                "a dimension of {size} has too few elements for pads of {pad}"
            );
        }
        Ok(())
    }

    /// Checks that a dimension divides into the parts of a Split. The engine slices without a look at their sum.
    fn check_split(&self, dim: i64, sizes: Option<&InferenceFact>) -> TractResult<()> {
        let outputs = self.outputs as i64;
        if let Some(sizes) = self.split.clone().or_else(|| numbers(sizes?)) {
            let sum = sizes.iter().try_fold(0_i64, |sum, size| sum.checked_add(*size));
            ensure!(
                sizes.len() == self.outputs && sum == Some(dim) && sizes.iter().all(|size| *size >= 0),
                "a dimension of {dim} does not split into {sizes:?} for {outputs} outputs"
            );
        } else if sizes.is_none() {
            // With a number of parts, the last one may be smaller.
            let parts = self.number("num_outputs").unwrap_or(outputs);
            let size = dim.checked_add(parts - 1).unwrap_or(dim) / parts.max(1);
            ensure!(
                parts == outputs
                    && if self.number("num_outputs").is_some() {
                        size.checked_mul(parts - 1).is_some_and(|others| others <= dim)
                    } else {
                        dim % parts.max(1) == 0
                    },
                "a dimension of {dim} does not split into {parts} parts for {outputs} outputs"
            );
        }
        Ok(())
    }

    /// Checks that `axes`, and an attribute that names an axis, are axes of an input of `rank` dimensions, and that none is
    /// listed twice.
    fn check_axes(&self, rank: i64, axes: &[i64]) -> TractResult<()> {
        let served = match self.operator.as_str() {
            // For a scalar scale the axis is without a meaning.
            "QuantizeLinear" | "DequantizeLinear" => return Ok(()),
            "Flatten" => -rank..=rank,
            "OneHot" => -rank - 1..=rank,
            "Unsqueeze" => {
                let rank = rank + axes.len() as i64;
                -rank..=rank - 1
            }
            // Of a tensor of one element by its own rules.
            _ if rank == 0 => -1..=0,
            _ => -rank..=rank - 1,
        };
        for axis in self.number("axis").iter().chain(axes) {
            ensure!(served.contains(axis), "axis {axis} is out of range for an input of {rank} dimensions");
        }
        let rank = served.end() + 1;
        let position = |axis: i64| if axis < 0 { axis + rank } else { axis };
        let repeated = axes
            .iter()
            .enumerate()
            .find(|(at, axis)| axes[..*at].iter().any(|other| position(*other) == position(**axis)));
        ensure!(repeated.is_none(), "axes {axes:?} name one twice");
        Ok(())
    }
}

/// Checks the numbers of a constant that may be sizes. The engine infers with their lower 32 bits, and computes with all.
fn check_sizes(constant: &InferenceFact) -> TractResult<()> {
    let numbers = numbers(constant).unwrap_or_default();
    match numbers.iter().find(|number| i32::try_from(**number).is_err()) {
        Some(large) => bail!("{large} is too large for a size"),
        None => Ok(()),
    }
}

/// The whole numbers of a constant.
fn numbers(constant: &InferenceFact) -> Option<Vec<i64>> {
    let value = constant.value.concretize()?;
    if !matches!(value.datum_type(), DatumType::I32 | DatumType::I64 | DatumType::TDim) {
        return None;
    }
    let numbers = value.cast_to::<i64>().ok()?;
    let numbers = numbers.try_as_plain_ram().ok()?;
    Some(numbers.as_slice::<i64>().ok()?.to_vec())
}

/// The dimensions of a tensor whose rank is known, as far as they are known.
fn dims(fact: &InferenceFact) -> Option<Vec<Option<i64>>> {
    fact.shape.rank().concretize()?;
    Some(fact.shape.dims().map(|dim| dim.concretize()?.to_i64().ok()).collect())
}

/// The scales of a Resize, which is its only constant of FP32 with several elements but for a region.
fn scales(constant: &InferenceFact) -> Option<Vec<f32>> {
    let value = constant.value.concretize().filter(|value| value.datum_type() == DatumType::F32)?;
    let scales = value.try_as_plain_ram().ok()?.as_slice::<f32>().ok()?.to_vec();
    Some(scales).filter(|scales| !scales.is_empty())
}

/// The input that lists the axes of an operator, in the versions in which it is not an attribute.
fn axes_input(operator: &str) -> Option<usize> {
    match operator {
        "CumSum" | "Squeeze" | "Unsqueeze" => Some(1),
        "DFT" => Some(2),
        "Pad" | "Slice" => Some(3),
        _ => operator.starts_with("Reduce").then_some(1),
    }
}

pub(crate) fn check_rank(fact: &InferenceFact) -> TractResult<()> {
    fact.shape.rank().concretize().map_or(Ok(()), check_dimensions)
}

fn check_dimensions(rank: i64) -> TractResult<()> {
    ensure!(
        rank <= MOST_DIMENSIONS,
        "a tensor would have {rank} dimensions, and {MOST_DIMENSIONS} are the most"
    );
    Ok(())
}

/// The engine's time grows with the square of a tensor's dimensions.
const MOST_DIMENSIONS: i64 = 64;

/// Operators with inputs that are a single number.
const SCALARS: [(&str, &[usize]); 11] = [
    ("Clip", &[1, 2]),
    ("CumSum", &[1]),
    ("DFT", &[1, 2]),
    ("Dropout", &[1, 2]),
    ("NonMaxSuppression", &[2, 3, 4]),
    ("OneHot", &[1]),
    ("Pad", &[2]),
    ("Range", &[0, 1, 2]),
    ("STFT", &[1, 3]),
    ("TopK", &[1]),
    ("Trilu", &[1]),
];

/// Operators with an input that has a number for each dimension of the output, or each new one: too many are refused before
/// the engine infers the output.
const SHAPES: [(&str, usize); 4] = [("ConstantOfShape", 0), ("Expand", 1), ("Reshape", 1), ("Unsqueeze", 1)];

/// How many dimensions the first input of an operator has at least. The engine takes channels and axes for granted.
const RANKS: [(&str, i64); 16] = [
    ("AveragePool", 3),
    ("BatchNormalization", 2),
    ("Conv", 3),
    ("ConvInteger", 3),
    ("ConvTranspose", 3),
    ("GlobalAveragePool", 3),
    ("GlobalMaxPool", 3),
    ("Hardmax", 1),
    ("InstanceNormalization", 3),
    ("LRN", 3),
    ("LogSoftmax", 1),
    ("LpNormalization", 1),
    ("MaxPool", 3),
    ("QLinearConv", 3),
    ("Softmax", 1),
    ("Trilu", 2),
];

/// Operators that move elements without a look at them, so that these may be strings.
const TEXT: [&str; 18] = [
    "Concat",
    "Equal",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Identity",
    "LabelEncoder",
    "OneHotEncoder",
    "Reshape",
    "Shape",
    "Size",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// Operators whose output may be larger than their inputs.
const EXPANDING: [&str; 9] =
    ["ConstantOfShape", "Expand", "EyeLike", "GridSample", "OneHot", "Pad", "Range", "Resize", "Tile"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::onnx::node;

    fn fact(dims: &[usize]) -> InferenceFact {
        InferenceFact::dt_shape(DatumType::I64, dims)
    }

    #[test]
    fn an_input_that_is_a_single_number_has_one_element() {
        for (operator, inputs) in SCALARS {
            let names = ["A", "B", "C", "D", "E"];
            for &input in inputs {
                // Without those between the first and this one, and with them.
                let mut few = vec![""; input + 1];
                (few[0], few[input]) = ("A", "S");
                let all = [&names[..input], &["S"]].concat();
                for names in [few, all] {
                    let rule = Rule::new(&node(operator, &names, &["Y"]));
                    let given = names.iter().filter(|name| !name.is_empty());
                    let check = |scalar: InferenceFact| {
                        let other = || fact(&[1, 1]);
                        let fact = |name: &&str| if *name == "S" { scalar.clone() } else { other() };
                        rule.check(&given.clone().map(fact).collect::<Vec<_>>())
                    };
                    for dims in [&[][..], &[1], &[1, 1]] {
                        check(fact(dims)).unwrap();
                    }
                    for dims in [&[0][..], &[2], &[1, 0]] {
                        let error = check(fact(dims)).unwrap_err().to_string();
                        assert!(
                            error.contains("instead of a single element"),
                            "{operator} {names:?}: {error}"
                        );
                    }
                    check(InferenceFact::dt(DatumType::I64)).unwrap_err();
                }
            }
        }
    }

    #[test]
    fn an_operator_needs_the_dimensions_of_its_channels_and_axes() {
        for (operator, least) in RANKS {
            let rule = Rule::new(&node(operator, &["X"], &["Y"]));
            for rank in 0..6 {
                let outcome = rule.check(&[fact(&vec![1; rank])]).map_err(|error| error.to_string());
                let lacks = outcome.as_ref().is_err_and(|error| error.contains("and it needs"));
                assert_eq!(lacks, (rank as i64) < least, "{operator} {rank}: {outcome:?}");
            }
            rule.check(&[InferenceFact::dt(DatumType::I64)]).unwrap_err();
        }
    }

    #[test]
    fn a_factor_of_a_product_has_dimensions() {
        for (operator, factors) in [("MatMul", [0, 1]), ("MatMulInteger", [0, 1]), ("QLinearMatMul", [0, 3])]
        {
            let rule = Rule::new(&node(operator, &["A", "B", "C", "D", "E", "F", "G", "H"], &["Y"]));
            for scalar in 0..8 {
                let inputs: Vec<_> =
                    (0..8).map(|at| fact(if at == scalar { &[] } else { &[2, 2] })).collect();
                let outcome = rule.check(&inputs).map_err(|error| error.to_string());
                let lacks = outcome.as_ref().is_err_and(|error| error.contains("has no dimensions"));
                assert_eq!(lacks, factors.contains(&scalar), "{operator} {scalar}: {outcome:?}");
            }
        }
    }
}
