//! Infers the shapes of a graph for concrete input shapes, one node at a time.
//!
//! The engine computes with constants while it infers, so a small file or a few dimensions can make it allocate any
//! amount. Here each node's output shapes are inferred first, held against the limit, and only then computed with.
//! Rules of ONNX that the engine relies upon without a check are checked before it sees a node.

use std::collections::{HashMap, HashSet};

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{GraphProto, NodeProto};
use tract_onnx::prelude::{DatumType, InferenceFact, InferenceModel, TVec, TractResult};
use tract_onnx::tract_core::internal::{OutletId, TractErrorContext, bail, ensure};
use tract_onnx::tract_hir::infer::Factoid;

use crate::scratch::Scratch;

/// The rules for the nodes of a graph, by the engine's number of the node.
#[derive(Default)]
pub(crate) struct Rules {
    nodes: HashMap<usize, Rule>,
}

/// What is known of an ONNX node.
struct Rule {
    operator: String,
    /// The attributes that are a whole number.
    numbers: Vec<(String, i64)>,
    /// The attribute `axes`.
    axes: Vec<i64>,
    /// The attribute `perm`.
    permutation: Option<Vec<i64>>,
    /// The inputs that are a single number, counted without those that the node leaves out.
    scalars: Vec<usize>,
    scratch: Scratch,
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
            permutation: list("perm"),
            scalars: scalars
                .iter()
                .flat_map(|(_, inputs)| *inputs)
                .copied()
                .filter(given)
                .map(position)
                .collect(),
            scratch: Scratch::new(node),
        }
    }

    fn expands(&self) -> bool {
        EXPANDING.contains(&self.operator.as_str())
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.numbers.iter().find(|(known, _)| known == name).map(|&(_, value)| value)
    }

    /// Checks the inputs of the node, as far as their shapes are known.
    fn check(&self, inputs: &[InferenceFact]) -> TractResult<()> {
        let dim = |input: usize, axis: usize| {
            dims(inputs.get(input)?).and_then(|dims| dims.get(axis).copied().flatten())
        };
        let rank = |input: usize| inputs.get(input).and_then(|fact| fact.shape.rank().concretize());
        if let Some(rank) = rank(0) {
            self.check_axes(rank)?;
        } else if self.number("axis").is_some() || !self.axes.is_empty() {
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
            "LSTM" | "GRU" | "RNN" => {
                same("the features of X and W", dim(0, 2), dim(1, 2))?;
                same("the directions of W and R", dim(1, 0), dim(2, 0))?;
            }
            "GatherND" => {
                let (Some(data), Some(indices)) = (rank(0), rank(1)) else {
                    bail!("the rank of an input is unknown")
                };
                let batch = self.number("batch_dims").unwrap_or(0);
                ensure!(data > 0 && indices > 0, "data and indices need dimensions");
                ensure!(
                    (0..data.min(indices)).contains(&batch),
                    "batch_dims {batch} is out of range for ranks {data} and {indices}"
                );
                for axis in 0..batch as usize {
                    same("the batch dimensions of data and indices", dim(0, axis), dim(1, axis))?;
                }
                let depth = dim(1, indices as usize - 1);
                ensure!(
                    depth.is_some_and(|depth| (1..=data - batch).contains(&depth)),
                    "the last dimension of the indices, {depth:?}, is out of range for data of rank {data}"
                );
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

    /// Checks that a dimension divides into as many parts as an attribute says, to its `power`. The engine makes a dimension of
    /// that size, whether there are elements or not.
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

    /// Checks that attributes which name an axis name one of an input of `rank` dimensions.
    fn check_axes(&self, rank: i64) -> TractResult<()> {
        let served = match self.operator.as_str() {
            // For a scalar scale the axis is without a meaning.
            "QuantizeLinear" | "DequantizeLinear" => return Ok(()),
            "Flatten" => -rank..=rank,
            "OneHot" => -rank - 1..=rank,
            "Unsqueeze" => {
                let rank = rank + self.axes.len() as i64;
                -rank..=rank - 1
            }
            // Of a tensor of one element by its own rules.
            _ if rank == 0 => -1..=0,
            _ => -rank..=rank - 1,
        };
        for axis in self.number("axis").iter().chain(&self.axes) {
            ensure!(served.contains(axis), "axis {axis} is out of range for an input of {rank} dimensions");
        }
        Ok(())
    }
}

/// Checks the numbers of a constant that may say a size. The engine infers with the lower 32 bits of them, and computes
/// with all.
fn check_sizes(constant: &InferenceFact) -> TractResult<()> {
    let Some(value) = constant.value.concretize() else { return Ok(()) };
    if !matches!(value.datum_type(), DatumType::I32 | DatumType::I64 | DatumType::TDim) {
        return Ok(());
    }
    let Ok(numbers) = value.cast_to::<i64>() else { return Ok(()) };
    let numbers = numbers.try_as_plain_ram()?;
    let large = numbers.as_slice::<i64>()?.iter().find(|number| i32::try_from(**number).is_err());
    ensure!(large.is_none(), "{large:?} is too large for a size");
    Ok(())
}

/// The dimensions of a tensor whose rank is known, as far as they are known.
fn dims(fact: &InferenceFact) -> Option<Vec<Option<i64>>> {
    fact.shape.rank().concretize()?;
    Some(fact.shape.dims().map(|dim| dim.concretize()?.to_i64().ok()).collect())
}

/// Infers the shapes of `model`, whose inputs have concrete ones. No tensor may take more than `limit` bytes.
pub(crate) fn analyse(model: &mut InferenceModel, rules: &Rules, limit: u64) -> TractResult<()> {
    let order = model.eval_order()?;
    // The engine infers with all of them.
    let checked: HashSet<_> = order.iter().collect();
    for node in model.nodes().iter().filter(|node| !node.inputs.is_empty()) {
        ensure!(checked.contains(&node.id), "no output needs {node}");
    }
    for id in order {
        analyse_node(model, id, rules, limit).with_context(|| format!("{}", model.node(id)))?;
    }
    Ok(())
}

fn analyse_node(model: &mut InferenceModel, id: usize, rules: &Rules, limit: u64) -> TractResult<()> {
    let node = model.node(id);
    let inputs = node.inputs.clone();
    let outputs: TVec<_> = (0..node.outputs.len()).map(|slot| OutletId::new(id, slot)).collect();
    let observed = node.op.observe_outlets(model, node)?;
    let facts = |outlets: &[OutletId]| {
        outlets.iter().map(|&outlet| model.outlet_fact(outlet).cloned()).collect::<TractResult<TVec<_>>>()
    };
    let before = [facts(&inputs)?, facts(&outputs)?, facts(&observed)?];
    if let Some(rule) = rules.nodes.get(&id) {
        rule.check(&before[0])?;
    }
    let known = || before.each_ref().map(|facts| facts.iter().collect());
    if !inputs.is_empty() {
        before[0].iter().try_for_each(check_rank)?;
        let [inputs, outputs, observed] = known();
        let (_, outputs, _) = model.node(id).op.clone().infer_facts(inputs, outputs, observed)?;
        let computes = before[0].iter().all(|input| input.value.is_concrete());
        let rule = rules.nodes.get(&id);
        let expands = rule.is_some_and(Rule::expands);
        for output in &outputs {
            check_rank(output)?;
            let size = size(output)?;
            ensure!(size.is_none_or(|size| size <= limit), "a tensor would take more than {limit} bytes");
            ensure!(
                size.is_some() || !computes || !expands,
                "the size of a constant is not known before it is computed"
            );
            if let Some(rule) = rule {
                let bytes = rule.scratch.bytes(&before[0], output, computes)?.unwrap_or(0);
                ensure!(bytes <= limit, "it would take {bytes} bytes to compute, and {limit} is the limit");
            }
        }
    }
    let after = {
        let [inputs, outputs, observed] = known();
        let (inputs, outputs, observed) = model.node_mut(id).op.infer(inputs, outputs, observed)?;
        [inputs, outputs, observed]
    };
    let outlets = inputs.iter().chain(&outputs).chain(&observed);
    for (&outlet, inferred) in outlets.zip(after.iter().flatten()) {
        let known = model.outlet_fact(outlet)?;
        let fact = known.unify(inferred)?;
        if fact != *known {
            model.set_outlet_fact(outlet, fact)?;
        }
    }
    Ok(())
}

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

fn check_rank(fact: &InferenceFact) -> TractResult<()> {
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

/// Operators with an input that has a number for each dimension of the output, or each new one: too many are refused before
/// the engine infers the output.
const SHAPES: [(&str, usize); 4] = [("ConstantOfShape", 0), ("Expand", 1), ("Reshape", 1), ("Unsqueeze", 1)];

/// Operators with channels, and how many dimensions their input has at least. The engine takes those for granted.
const RANKS: [(&str, i64); 11] = [
    ("AveragePool", 3),
    ("BatchNormalization", 2),
    ("Conv", 3),
    ("ConvInteger", 3),
    ("ConvTranspose", 3),
    ("GlobalAveragePool", 3),
    ("GlobalMaxPool", 3),
    ("InstanceNormalization", 3),
    ("LRN", 3),
    ("MaxPool", 3),
    ("QLinearConv", 3),
];

/// Operators that move elements without a look at them, so that these may be strings.
const TEXT: [&str; 16] = [
    "Concat",
    "Equal",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Identity",
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

/// The bytes that a tensor takes, if its type and shape are known. Without elements, it counts as if it had some: the engine
/// goes through its other dimensions all the same.
fn size(fact: &InferenceFact) -> TractResult<Option<u64>> {
    let (Some(datum_type), Some(dims)) = (fact.datum_type.concretize(), fact.shape.concretize()) else {
        return Ok(None);
    };
    let mut size = datum_type.size_of() as u64;
    for dim in dims {
        let Ok(dim) = dim.to_i64() else { return Ok(None) };
        ensure!(dim >= 0, "a tensor would have a dimension of {dim}");
        size = size.saturating_mul((dim as u64).max(1));
    }
    Ok(Some(size))
}

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
                        let fact = |name: &&str| if *name == "S" { scalar.clone() } else { fact(&[]) };
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
    fn an_operator_with_channels_needs_the_dimensions_for_them() {
        for (operator, least) in RANKS {
            let rule = Rule::new(&node(operator, &["X"], &["Y"]));
            for rank in 0..6 {
                let outcome = rule.check(&[fact(&vec![1; rank])]);
                assert_eq!(outcome.is_ok(), rank as i64 >= least, "{operator} {rank}: {outcome:?}");
            }
            rule.check(&[InferenceFact::dt(DatumType::I64)]).unwrap_err();
        }
    }
}
