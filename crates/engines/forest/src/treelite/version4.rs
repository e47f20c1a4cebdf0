//! The form of Treelite 4.

use std::ops::Range;

use nereid_trees::{FormatError, Kind, Task, Tree};

use super::file::File;
use super::{Condition, Header, SplitFields, covers, with_covers};
use crate::lists::Lists;

/// Kinds of nodes.
const LEAF: u8 = 0;
const NUMERICAL: u8 = 1;
const CATEGORICAL: u8 = 2;

pub(super) fn header(file: &mut File<'_>, count: usize) -> Result<Header, FormatError> {
    let features = file.i32()?;
    let task = match file.byte()? {
        0 => Task::Binary,
        2 => Task::Classes,
        1 | 3 | 4 => Task::Numbers,
        other => return Err(FormatError::new(format!("the type of task {other} is not known"))),
    };
    let averaged = file.byte()? != 0;
    let targets = file.i32()?;
    let classes = file.array(i32::from_le_bytes)?;
    let leaf_shape = file.array(i32::from_le_bytes)?;
    let target_ids = file.array(i32::from_le_bytes)?;
    let class_ids = file.array(i32::from_le_bytes)?;
    let postprocessor = file.text()?;
    let (sigmoid_alpha, ratio_c) = (file.f32()?, file.f32()?);
    let base_scores = file.array(f64::from_le_bytes)?;
    let _attributes = file.text()?;
    file.no_extensions()?;
    for (name, ids) in [("target_id", &target_ids), ("class_id", &class_ids)] {
        if ids.len() != count {
            return Err(FormatError::new(format!("{name} does not have a value for each tree")));
        }
    }
    if usize::try_from(targets) != Ok(classes.len()) {
        return Err(FormatError::new(format!("num_class is {classes:?} for {targets} targets")));
    }
    let leaf_shape =
        leaf_shape.try_into().map_err(|shape| FormatError::new(format!("leaf_vector_shape is {shape:?}")))?;
    Ok(Header {
        features,
        task,
        averaged,
        classes,
        leaf_shape,
        places: target_ids.into_iter().zip(class_ids).map(|(target, class)| [target, class]).collect(),
        postprocessor,
        sigmoid_alpha,
        ratio_c,
        base_scores,
    })
}

/// The arrays of a tree.
struct Arrays {
    kinds: Vec<u8>,
    left: Vec<i32>,
    right: Vec<i32>,
    features: Vec<i32>,
    default_left: Vec<u8>,
    leaf_values: Vec<f64>,
    thresholds: Vec<f64>,
    operators: Vec<u8>,
    listed_go_right: Vec<u8>,
    vectors: Segments<f64>,
    categories: Segments<u32>,
}

/// Lists of different lengths, one behind the other.
struct Segments<T> {
    values: Vec<T>,
    begins: Vec<u64>,
    ends: Vec<u64>,
}

impl<T> Segments<T> {
    fn range(&self, at: usize) -> Option<Range<usize>> {
        let bound = |bounds: &[u64]| usize::try_from(*bounds.get(at)?).ok();
        Some(bound(&self.begins)?..bound(&self.ends)?)
    }
}

pub(super) fn tree(file: &mut File<'_>, double: bool, output: Option<usize>) -> Result<Tree, FormatError> {
    let count = file.i32()?;
    let _has_categories = file.byte()?;
    let arrays = Arrays {
        kinds: file.array(u8::from_le_bytes)?,
        left: file.array(i32::from_le_bytes)?,
        right: file.array(i32::from_le_bytes)?,
        features: file.array(i32::from_le_bytes)?,
        default_left: file.array(u8::from_le_bytes)?,
        leaf_values: file.floats(double)?,
        thresholds: file.floats(double)?,
        operators: file.array(u8::from_le_bytes)?,
        listed_go_right: file.array(u8::from_le_bytes)?,
        vectors: Segments {
            values: file.floats(double)?,
            begins: file.array(u64::from_le_bytes)?,
            ends: file.array(u64::from_le_bytes)?,
        },
        categories: Segments {
            values: file.array(u32::from_le_bytes)?,
            begins: file.array(u64::from_le_bytes)?,
            ends: file.array(u64::from_le_bytes)?,
        },
    };
    let counts = file.array(u64::from_le_bytes)?;
    let has_counts = all(&file.array(u8::from_le_bytes)?);
    let weights = file.array(f64::from_le_bytes)?;
    let has_weights = all(&file.array(u8::from_le_bytes)?);
    let _gains = file.array(f64::from_le_bytes)?;
    let _has_gains = file.array(u8::from_le_bytes)?;
    file.no_extensions()?;
    file.no_extensions()?;
    let count = usize::try_from(count).map_err(|_| FormatError::new("it has less than no nodes"))?;
    if arrays.kinds.len() != count {
        return Err(FormatError::new("its arrays differ in length"));
    }
    let mut vectors = Lists::new(&arrays.vectors.values);
    let mut categories = Lists::new(&arrays.categories.values);
    let kind = |at: usize| arrays.kind(at, output, &mut vectors, &mut categories);
    let kinds = (0..count).map(kind).collect::<Result<_, _>>()?;
    Ok(with_covers(kinds, &covers(weights, has_weights, counts, has_counts), output))
}

fn all(flags: &[u8]) -> bool {
    !flags.is_empty() && flags.iter().all(|&flag| flag != 0)
}

impl Arrays {
    fn kind(
        &self,
        at: usize,
        output: Option<usize>,
        vectors: &mut Lists<'_, f64>,
        categories: &mut Lists<'_, u32>,
    ) -> Result<Kind, FormatError> {
        let damaged = || FormatError::new(format!("the list of node {at} is damaged"));
        match self.kinds[at] {
            LEAF if output.is_none() => {
                let vector = self.vectors.range(at).and_then(|range| vectors.take(range));
                Ok(Kind::Vector(vector.ok_or_else(damaged)?.to_vec()))
            }
            LEAF => entry(&self.leaf_values, at).map(Kind::Leaf),
            NUMERICAL => {
                let operator = entry(&self.operators, at)?;
                self.split(at, Condition::Compares(operator, entry(&self.thresholds, at)?))
            }
            CATEGORICAL => {
                let listed = self.categories.range(at).and_then(|range| categories.take(range));
                let listed = listed.ok_or_else(damaged)?.to_vec();
                self.split(at, Condition::Lists(listed, entry(&self.listed_go_right, at)? != 0))
            }
            other => Err(FormatError::new(format!("node {at} is of unknown type {other}"))),
        }
    }

    fn split(&self, at: usize, condition: Condition) -> Result<Kind, FormatError> {
        let feature = usize::try_from(entry(&self.features, at)?)
            .map_err(|_| FormatError::new(format!("node {at} tests no feature")))?;
        let fields = SplitFields {
            feature,
            left: entry(&self.left, at)?,
            right: entry(&self.right, at)?,
            default_left: entry(&self.default_left, at)? != 0,
            condition,
        };
        fields.kind().map_err(|error| error.within(format_args!("node {at}")))
    }
}

fn entry<T: Copy>(array: &[T], at: usize) -> Result<T, FormatError> {
    array.get(at).copied().ok_or_else(|| FormatError::new("its arrays differ in length"))
}
