//! The form of Treelite 3, and of 2.4, which has no slots for optional fields.
//!
//! Nodes are structures of C, with its padding.

use std::ops::Range;

use nereid_trees::{FormatError, Kind, MAX_OUTPUTS, Task, Tree};

use super::file::File;
use super::{Condition, Header, SplitFields, covers, with_covers};
use crate::lists::Lists;

/// Types of tasks.
const ONE_OUTPUT: u8 = 0;
const TREES_OF_CLASSES: u8 = 1;
const LEAVES_OF_CLASSES: u8 = 2;

/// The size of the parameters of the task, and of the name of the postprocessor.
const TASK_PARAMETERS: usize = 12;
const POSTPROCESSOR: usize = 256;

/// The left child of leaves.
const NONE: i32 = -1;

/// The type of a split by categories.
const CATEGORICAL: u8 = 2;

/// The bit in a node's feature that sends missing values left.
const DEFAULT_LEFT: u32 = 1 << 31;

pub(super) fn header(file: &mut File<'_>, count: usize, has_slots: bool) -> Result<Header, FormatError> {
    let features = file.i32()?;
    let task = file.byte()?;
    let averaged = file.byte()? != 0;
    let mut parameters = File(file.bytes(TASK_PARAMETERS)?);
    let has_integers = parameters.byte()? != 0;
    let [_trees_of_classes, _, _] = parameters.word()?;
    let (classes, leaf_size) = (parameters.u32()?, parameters.u32()?);
    let name = file.bytes(POSTPROCESSOR)?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| FormatError::new("pred_transform is not UTF-8"))?;
    let (sigmoid_alpha, ratio_c, bias) = (file.f32()?, file.f32()?, file.f32()?);
    if has_slots {
        file.no_extensions()?;
    }
    if has_integers {
        return Err(FormatError::new("its leaves are numbers of classes, which are not served"));
    }
    let classes = i32::try_from(classes).ok().filter(|&classes| classes as usize <= MAX_OUTPUTS);
    let classes = classes
        .filter(|&classes| classes > 0)
        .ok_or_else(|| FormatError::new(format!("num_class is not a number from 1 to {MAX_OUTPUTS}")))?;
    let (vector, trees_of_classes, is_one) = match task {
        ONE_OUTPUT => (1, false, true),
        TREES_OF_CLASSES => (1, true, false),
        LEAVES_OF_CLASSES => (classes, false, false),
        other => return Err(FormatError::new(format!("the type of task {other} is not served"))),
    };
    if is_one && classes != 1 || i64::from(leaf_size) != i64::from(vector) {
        return Err(FormatError::new(format!(
            "num_class {classes} and leaf_vector_size {leaf_size} do not fit the type of task {task}"
        )));
    }
    let place = |tree: usize| match trees_of_classes {
        true => [0, (tree % classes as usize) as i32],
        false if vector == 1 => [0, 0],
        false => [0, -1],
    };
    Ok(Header {
        features,
        // The type of task does not distinguish binary classifiers.
        task: match name {
            _ if !is_one => Task::Classes,
            "sigmoid" | "hinge" => Task::Binary,
            _ => Task::Numbers,
        },
        averaged,
        classes: vec![classes],
        leaf_shape: [1, vector],
        places: (0..count).map(place).collect(),
        // The class with the highest score is found later.
        postprocessor: if name == "max_index" { "softmax" } else { name }.to_owned(),
        sigmoid_alpha,
        ratio_c,
        base_scores: vec![bias.into(); classes as usize],
    })
}

/// A node. Its value is a threshold or a leaf's.
struct Node {
    left: i32,
    right: i32,
    feature: u32,
    value: f64,
    count: u64,
    weight: f64,
    is_categorical: bool,
    operator: u8,
    has_count: bool,
    has_weight: bool,
    listed_go_right: bool,
}

impl Node {
    /// The size of a node.
    fn size(double: bool) -> usize {
        if double { 56 } else { 48 }
    }

    fn read(bytes: &[u8], double: bool) -> Result<Self, FormatError> {
        let mut file = File(bytes);
        let (left, right, feature) = (file.i32()?, file.i32()?, file.u32()?);
        let value = if double {
            let _padding = file.u32()?;
            f64::from_bits(file.u64()?)
        } else {
            file.f32()?.into()
        };
        let (count, weight, _gain) = (file.u64()?, f64::from_bits(file.u64()?), file.u64()?);
        let [split_type, operator, has_count, has_weight, _has_gain, listed_go_right] = file.word()?;
        Ok(Self {
            left,
            right,
            feature,
            value,
            count,
            weight,
            is_categorical: split_type == CATEGORICAL,
            operator,
            has_count: has_count != 0,
            has_weight: has_weight != 0,
            listed_go_right: listed_go_right != 0,
        })
    }

    /// The kind of a node, whose leaf has one value, and whose split lists these categories.
    fn kind(self, listed: &[u32]) -> Result<Kind, FormatError> {
        if self.left == NONE {
            return Ok(Kind::Leaf(self.value));
        }
        let condition = if self.is_categorical {
            Condition::Lists(listed.to_vec(), self.listed_go_right)
        } else {
            Condition::Compares(self.operator, self.value)
        };
        let fields = SplitFields {
            feature: (self.feature & !DEFAULT_LEFT) as usize,
            left: self.left,
            right: self.right,
            default_left: self.feature & DEFAULT_LEFT != 0,
            condition,
        };
        fields.kind()
    }
}

pub(super) fn tree(
    file: &mut File<'_>,
    double: bool,
    output: Option<usize>,
    has_slots: bool,
) -> Result<Tree, FormatError> {
    let count = file.i32()?;
    let _has_categories = file.byte()?;
    let size = Node::size(double);
    let nodes = file.array_bytes(size)?.chunks_exact(size).map(|bytes| Node::read(bytes, double));
    let nodes: Vec<Node> = nodes.collect::<Result<_, _>>()?;
    let vectors = file.floats(double)?;
    let (begins, ends) = (file.array(u64::from_le_bytes)?, file.array(u64::from_le_bytes)?);
    let categories = file.array(u32::from_le_bytes)?;
    let offsets = file.array(u64::from_le_bytes)?;
    if has_slots {
        file.no_extensions()?;
        file.no_extensions()?;
    }
    if usize::try_from(count) != Ok(nodes.len()) {
        return Err(FormatError::new(format!("it has {} of {count} nodes", nodes.len())));
    }
    let all = |has: fn(&Node) -> bool| !nodes.is_empty() && nodes.iter().all(has);
    let covers = covers(
        nodes.iter().map(|node| node.weight).collect(),
        all(|node| node.has_weight),
        nodes.iter().map(|node| node.count).collect(),
        all(|node| node.has_count),
    );
    let (mut vectors, mut categories) = (Lists::new(&vectors), Lists::new(&categories));
    let kinds = nodes.into_iter().enumerate().map(|(at, node)| {
        let damaged = || FormatError::new(format!("the list of node {at} is damaged"));
        if node.left == NONE && output.is_none() {
            let vector = range(begins.get(at), ends.get(at)).and_then(|range| vectors.take(range));
            return Ok(Kind::Vector(vector.ok_or_else(damaged)?.to_vec()));
        }
        let listed = match node.is_categorical && node.left != NONE {
            true => range(offsets.get(at), offsets.get(at + 1)).and_then(|range| categories.take(range)),
            false => Some(Default::default()),
        };
        let kind = node.kind(listed.ok_or_else(damaged)?);
        kind.map_err(|error| error.within(format_args!("node {at}")))
    });
    Ok(with_covers(kinds.collect::<Result<_, _>>()?, &covers, output))
}

fn range(begin: Option<&u64>, end: Option<&u64>) -> Option<Range<usize>> {
    Some(usize::try_from(*begin?).ok()?..usize::try_from(*end?).ok()?)
}
