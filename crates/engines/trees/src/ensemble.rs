//! An ensemble of trees, in the form that the readers of all formats produce.

use crate::link::Link;

/// Most trees of an ensemble.
pub const MAX_TREES: usize = 1 << 20;
/// Most nodes of an ensemble.
pub const MAX_NODES: usize = 1 << 28;
/// Most outputs of a row.
pub const MAX_OUTPUTS: usize = 1 << 16;
/// Most features of a row.
pub const MAX_FEATURES: usize = 1 << 26;

/// The kind of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Numbers: regression, ranking, scores of anomaly.
    Numbers,
    /// The probability of the second of two classes.
    Binary,
    /// A score for each of several classes.
    Classes,
}

/// The properties of an ensemble, without its trees.
#[derive(Clone, Debug)]
pub struct Description {
    /// The number of features of a row.
    pub features: usize,
    /// The first summand of each output; one value for each output.
    pub base: Vec<f64>,
    /// The number of outputs of each target, padded with zeros to the width of the widest one.
    pub targets: Vec<usize>,
    /// Whether each output is the mean of its trees instead of their sum.
    pub averaged: bool,
    /// Whether leaves may be linear functions.
    pub linear: bool,
    /// Whether leaves are added in double precision.
    pub double: bool,
    /// The function that turns sums into results.
    pub link: Link,
    /// The kind of a prediction.
    pub task: Task,
    /// Whether negative fractions are truncated to category 0: LightGBM takes -0.5 for it, the others for none.
    pub truncates: bool,
}

impl Description {
    /// The number of outputs of a row.
    pub fn outputs(&self) -> usize {
        self.base.len()
    }

    /// The number of places that each target takes.
    pub fn width(&self) -> usize {
        self.targets.iter().copied().max().unwrap_or(0)
    }
}

/// A tree.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The nodes; the first is the root.
    pub nodes: Vec<Node>,
    /// The output that its leaves add to; `None` if each leaf adds to all.
    pub output: Option<usize>,
}

/// A node of a tree.
#[derive(Clone, Debug)]
pub struct Node {
    /// A leaf or a split.
    pub kind: Kind,
    /// The number of rows of the training data that passed the node, or their weight.
    pub cover: f64,
}

/// The kind of a node.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Adds to its tree's output.
    Leaf(f64),
    /// Adds to all outputs.
    Vector(Vec<f64>),
    /// Adds a function of the features to its tree's output.
    Linear(Linear),
    /// Sends a row on.
    Split(Split),
}

/// A linear function of the features of a row.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The first summand.
    pub constant: f64,
    /// Numbers of features, and their coefficients.
    pub terms: Vec<(usize, f64)>,
    /// The result for rows that lack one of the features; `None` if their terms are left out instead.
    pub otherwise: Option<f64>,
}

/// A test, and the nodes for its outcomes.
#[derive(Clone, Debug)]
pub struct Split {
    /// The number of the feature.
    pub feature: usize,
    /// The test of its value.
    pub test: Test,
    /// The node for rows that pass the test.
    pub yes: usize,
    /// The node for the others.
    pub no: usize,
    /// Whether rows without a value pass.
    pub missing_passes: bool,
    /// Whether zero counts as missing.
    pub zero_is_missing: bool,
}

/// A test of a feature's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// The value is at most this.
    AtMost(f64),
    /// The value is less than this.
    Below(f64),
    /// The value is one of these categories.
    In(Vec<u32>),
    /// The value is one of these numbers.
    Among(Vec<f64>),
}
