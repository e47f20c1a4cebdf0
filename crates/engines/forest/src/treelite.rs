//! Checkpoints of Treelite (`checkpoint.tl`), the form for forests of scikit-learn, cuML and others, little-endian throughout.
//!
//! Versions 2.4 to 3 write nodes as structures, and models have one target. Version 4 writes an array for each field of nodes.

mod file;
mod version3;
mod version4;

use nereid_trees::{
    Description, Forest, FormatError, Kind, Link, MAX_OUTPUTS, MAX_TREES, Number, Split, Task, Test, Tree,
};

use self::file::File;

/// The place of the type of thresholds, behind the version.
const TYPES: usize = 12;

/// Types of thresholds and leaves.
const FLOAT: u8 = 2;
const DOUBLE: u8 = 3;

/// Reads a model.
///
/// # Errors
/// The file is damaged, or the model is not served.
pub(crate) fn read<N: Number>(contents: &[u8]) -> Result<Forest<N>, FormatError> {
    let mut file = File(contents);
    let [major, minor, _patch] = [file.i32()?, file.i32()?, file.i32()?];
    match (major, minor) {
        (4, _) | (3, _) | (2, 4) => {}
        (1 | 2, _) => {
            return Err(FormatError::new(format!(
                "a checkpoint of Treelite {major}.{minor}; those of 2.4, 3 and 4 are served: save it again"
            )));
        }
        (5.., _) => {
            return Err(FormatError::new(format!(
                "a checkpoint of Treelite {major}.{minor}, which is newer than what is known (4)"
            )));
        }
        _ => return Err(FormatError::new("not a checkpoint of Treelite")),
    }
    let types = [file.byte()?, file.byte()?];
    let double = match types {
        [FLOAT, FLOAT] => false,
        [DOUBLE, DOUBLE] => true,
        _ => {
            return Err(FormatError::new(format!(
                "thresholds and leaves are of types {types:?}; both in single or both in double precision are served"
            )));
        }
    };
    let count = usize::try_from(file.u64()?).unwrap_or(usize::MAX);
    if count > MAX_TREES {
        return Err(FormatError::new(format!("the model has {count} trees; at most {MAX_TREES} are served")));
    }
    let has_slots = major >= 3;
    let header = if major == 4 {
        version4::header(&mut file, count)?
    } else {
        version3::header(&mut file, count, has_slots)?
    };
    let mut forest = Forest::new(header.describe(double)?)?;
    for at in 0..count {
        let within = |error: FormatError| error.within(format_args!("tree {at}"));
        let output = header.output(at).map_err(within)?;
        let tree = if major == 4 {
            version4::tree(&mut file, double, output)
        } else {
            version3::tree(&mut file, double, output, has_slots)
        };
        forest.add(&tree.map_err(within)?).map_err(within)?;
    }
    Ok(forest)
}

/// Whether the thresholds of a checkpoint are in double precision.
pub(crate) fn is_double(contents: &[u8]) -> bool {
    contents.get(TYPES) == Some(&DOUBLE)
}

/// The properties of a model before its trees.
struct Header {
    features: i32,
    task: Task,
    averaged: bool,
    /// The number of classes of each target.
    classes: Vec<i32>,
    /// The number of targets and of classes for which a leaf has values.
    leaf_shape: [i32; 2],
    /// The target and the class of each tree. A negative number stands for all.
    places: Vec<[i32; 2]>,
    postprocessor: String,
    sigmoid_alpha: f32,
    ratio_c: f32,
    /// A score for each class of each target.
    base_scores: Vec<f64>,
}

impl Header {
    fn describe(&self, double: bool) -> Result<Description, FormatError> {
        let targets = self.classes.iter().map(|&classes| usize::try_from(classes).ok().filter(|&n| n > 0));
        let targets: Option<Vec<usize>> = targets.collect();
        let most = targets.iter().flatten().max().copied().unwrap_or(0);
        let outputs = most.saturating_mul(self.classes.len());
        let targets = targets.filter(|_| (1..=MAX_OUTPUTS).contains(&outputs));
        let targets = targets.ok_or_else(|| FormatError::new(format!("num_class is {:?}", self.classes)))?;
        if self.base_scores.len() != outputs {
            return Err(FormatError::new(format!("base_scores has {} values", self.base_scores.len())));
        }
        let features =
            usize::try_from(self.features).map_err(|_| FormatError::new("num_feature is negative"))?;
        let alpha = f64::from(self.sigmoid_alpha);
        let link = match self.postprocessor.as_str() {
            "identity" | "identity_multiclass" => Link::Identity,
            "signed_square" => Link::SignedSquare,
            "hinge" => Link::Hinge,
            "sigmoid" | "multiclass_ova" => Link::Sigmoid(alpha),
            "exponential" => Link::Exponential,
            "exponential_standard_ratio" => Link::AnomalyScore(self.ratio_c.into()),
            "logarithm_one_plus_exp" => Link::SoftPlus,
            "softmax" => Link::Softmax,
            other => return Err(FormatError::new(format!("the postprocessor '{other}' is not known"))),
        };
        Ok(Description {
            features,
            base: self.base_scores.clone(),
            targets: if self.task == Task::Classes { targets } else { vec![outputs] },
            linear: false,
            averaged: self.averaged,
            double,
            link,
            task: self.task,
            truncates: false,
        })
    }

    /// The output of a tree; `None` if its leaves have a value for each output.
    fn output(&self, tree: usize) -> Result<Option<usize>, FormatError> {
        let damaged = || FormatError::new("it has no target and class");
        let [target, class] = *self.places.get(tree).ok_or_else(damaged)?;
        let most = self.classes.iter().max().copied().unwrap_or(1).max(1) as usize;
        // The only target or class, if there is one only.
        let target = usize::try_from(target).ok().or((self.classes.len() == 1).then_some(0));
        let class = usize::try_from(class).ok().or((most == 1).then_some(0));
        let [targets, classes] = self.leaf_shape;
        let covers_targets = targets as usize == self.classes.len() && (target.is_none() || targets == 1);
        let covers_classes = classes as usize == most && (class.is_none() || classes == 1);
        match (target, class) {
            (Some(target), Some(class)) if self.leaf_shape == [1, 1] => {
                if target >= self.classes.len() || class >= most {
                    return Err(FormatError::new(format!("it is for class {class} of target {target}")));
                }
                Ok(Some(target * most + class))
            }
            _ if covers_targets && covers_classes => Ok(None),
            // Some values of all outputs.
            _ => Err(FormatError::new(format!(
                "leaf_vector_shape is {:?}; leaves with a value for one output or for all {} are served",
                self.leaf_shape,
                self.base_scores.len()
            ))),
        }
    }
}

/// The fields of a split.
struct SplitFields {
    feature: usize,
    left: i32,
    right: i32,
    default_left: bool,
    condition: Condition,
}

enum Condition {
    /// The number of an operator, and a bound: rows that pass go left.
    Compares(u8, f64),
    /// Categories, and whether rows of these go right.
    Lists(Vec<u32>, bool),
}

impl SplitFields {
    fn kind(self) -> Result<Kind, FormatError> {
        let child =
            |child: i32| usize::try_from(child).map_err(|_| FormatError::new("a split has one node only"));
        let (left, right) = (child(self.left)?, child(self.right)?);
        let (test, passes_left) = match self.condition {
            Condition::Lists(categories, goes_right) => (Test::In(categories), !goes_right),
            Condition::Compares(1, bound) => (Test::Among(vec![bound]), true),
            Condition::Compares(2, bound) => (Test::Below(bound), true),
            Condition::Compares(3, bound) => (Test::AtMost(bound), true),
            // The opposites: what passes goes right.
            Condition::Compares(4, bound) => (Test::AtMost(bound), false),
            Condition::Compares(5, bound) => (Test::Below(bound), false),
            Condition::Compares(other, _) => {
                return Err(FormatError::new(format!("the comparison {other} is not known")));
            }
        };
        let (yes, no) = if passes_left { (left, right) } else { (right, left) };
        let missing_passes = self.default_left == passes_left;
        Ok(Kind::Split(Split {
            feature: self.feature,
            test,
            yes,
            no,
            missing_passes,
            zero_is_missing: false,
        }))
    }
}

/// How much of the training data passed each node: by weight, or else by number, if all nodes have it.
fn covers(weights: Vec<f64>, has_weights: bool, counts: Vec<u64>, has_counts: bool) -> Vec<f64> {
    if has_weights {
        weights
    } else if has_counts {
        counts.into_iter().map(|count| count as f64).collect()
    } else {
        Vec::new()
    }
}

fn with_covers(kinds: Vec<Kind>, covers: &[f64], output: Option<usize>) -> Tree {
    let covers = covers.iter().copied().chain(std::iter::repeat(0.0));
    let nodes = kinds.into_iter().zip(covers).map(|(kind, cover)| nereid_trees::Node { kind, cover });
    Tree { nodes: nodes.collect(), output }
}

#[cfg(test)]
mod tests;
