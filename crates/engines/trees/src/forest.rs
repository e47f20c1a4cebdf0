//! A forest in the form that is fast to run: all nodes in one array, and several ways through trees at once.
//!
//! The way through a tree is a chain of loads, each of which waits for the one before, and its branches cannot be predicted.
//! So several ways are walked in step, without branches: through one tree for several rows, or through several trees for
//! one row. A leaf leads to itself, so lanes that have arrived wait there for the others.

mod layout;
mod linear;
mod run;

use self::linear::Functions;
use crate::ensemble::{Description, MAX_FEATURES};
use crate::error::FormatError;
use crate::number::Number;

/// Flags in the word of a node's feature.
const MISSING_PASSES: u32 = 1 << 31;
const IS_CATEGORICAL: u32 = 1 << 30;
const ZERO_IS_MISSING: u32 = 1 << 29;
const IS_SET: u32 = 1 << 28;
const FEATURE: u32 = (MAX_FEATURES - 1) as u32;

/// Terms of linear functions that take as long as a way through a tree.
const TERMS_OF_A_WAY: usize = 16;

/// A node: 16 bytes in single precision, four to a cache line.
#[derive(Clone, Copy, Debug)]
struct Node<N> {
    /// Rows whose value is at most this pass. Infinite in leaves.
    threshold: N,
    feature: u32,
    /// The node for rows that pass; the next one is for those that do not. A leaf's own number in leaves.
    yes: u32,
    /// A leaf's value or its place in the table; the number of a test's categories or set.
    payload: u32,
}

/// A part of an array: the words of categories, or the members of a set.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    len: usize,
}

/// The place of the values of leaves with one value. Those with several are in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// In the payloads, as bits of single precision.
    Inline,
    /// In the table `values`, by the payload.
    Table,
    /// In the table `functions`, by the payload.
    Functions,
}

/// An ensemble, ready to be run on features of a type.
#[derive(Debug)]
pub struct Forest<N = f32> {
    description: Description,
    nodes: Vec<Node<N>>,
    /// The cover of each node.
    covers: Vec<f64>,
    roots: Vec<u32>,
    /// The output of each tree; `None` for all.
    outputs: Vec<Option<u32>>,
    leaves: Leaves,
    values: Vec<f64>,
    functions: Functions,
    categories: Vec<Span>,
    words: Vec<u32>,
    /// Sets of numbers, each of them sorted.
    sets: Vec<Span>,
    members: Vec<N>,
    /// Whether any node is more than a comparison.
    is_special: bool,
    /// The divisor of each output's sum, for means.
    divisors: Vec<f64>,
    depth: usize,
}

impl<N: Number> Forest<N> {
    /// An empty forest.
    ///
    /// # Errors
    /// The description is beyond what can be served.
    pub fn new(description: Description) -> Result<Self, FormatError> {
        if description.features == 0 || description.features > MAX_FEATURES {
            return Err(FormatError::new(format!(
                "the model has {} features; 1 to {MAX_FEATURES} are served",
                description.features
            )));
        }
        if description.targets.is_empty()
            || description.targets.contains(&0)
            || description.width().checked_mul(description.targets.len()) != Some(description.outputs())
        {
            return Err(FormatError::new(format!(
                "the model has {} outputs for targets of {:?}",
                description.outputs(),
                description.targets
            )));
        }
        let leaves = match (description.linear, description.double) {
            (true, _) => Leaves::Functions,
            (false, true) => Leaves::Table,
            (false, false) => Leaves::Inline,
        };
        Ok(Self {
            divisors: vec![0.0; description.outputs()],
            description,
            nodes: Vec::new(),
            covers: Vec::new(),
            roots: Vec::new(),
            outputs: Vec::new(),
            leaves,
            values: Vec::new(),
            functions: Functions::default(),
            categories: Vec::new(),
            words: Vec::new(),
            sets: Vec::new(),
            members: Vec::new(),
            is_special: false,
            depth: 0,
        })
    }

    /// The properties of the ensemble.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The number of trees.
    pub fn trees(&self) -> usize {
        self.roots.len()
    }

    /// The work for a row, in ways through trees. The terms of a linear model without splits count, too.
    pub fn ways(&self) -> usize {
        let terms = if self.depth > 1 { 0 } else { self.functions.terms_in_all() };
        self.trees() + terms / TERMS_OF_A_WAY
    }

    /// The most nodes on a way from a root to a leaf.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Whether any leaf is a linear function that needs all of its features.
    pub fn needs_features(&self) -> bool {
        self.functions.need_features()
    }

    /// Whether the file has the cover of each node.
    pub fn has_covers(&self) -> bool {
        self.roots.iter().all(|&root| {
            let cover = self.covers[root as usize];
            cover.is_finite() && cover > 0.0
        })
    }
}

/// Access of the explanations to the nodes.
impl<N: Number> Forest<N> {
    /// The roots, and the outputs that their trees add to.
    pub fn roots(&self) -> impl Iterator<Item = (u32, Option<u32>)> {
        self.roots.iter().copied().zip(self.outputs.iter().copied())
    }

    /// How much of the training data passed the node.
    pub fn cover(&self, place: u32) -> f64 {
        self.covers[place as usize]
    }

    /// The feature that a node tests, the nodes for rows that pass and do not, and whether this row passes. `None` for leaves.
    pub fn test(&self, place: u32, row: &[N]) -> Option<(usize, [u32; 2], bool)> {
        let node = &self.nodes[place as usize];
        if node.yes == place {
            return None;
        }
        let feature = (node.feature & FEATURE) as usize;
        Some((feature, [node.yes, node.yes + 1], self.passes(node, row[feature])))
    }

    /// The nodes below a node; `None` for leaves.
    pub fn children(&self, place: u32) -> Option<[u32; 2]> {
        let yes = self.nodes[place as usize].yes;
        (yes != place).then_some([yes, yes + 1])
    }

    /// The terms of a leaf that is a linear function, for a row: features, and what they add to the constant.
    pub fn terms(&self, place: u32, row: &[N]) -> impl Iterator<Item = (usize, f64)> {
        let is_function = self.leaves == Leaves::Functions && self.children(place).is_none();
        let payload = is_function.then(|| self.nodes[place as usize].payload);
        payload.into_iter().flat_map(move |payload| self.functions.terms(payload, row))
    }

    /// Calls `add` with each output that a leaf adds to, and its value as a part of the result.
    pub fn leaf_values(&self, place: u32, output: Option<u32>, mut add: impl FnMut(usize, f64)) {
        let payload = self.nodes[place as usize].payload;
        let divisor =
            |output: usize| if self.description.averaged { self.divisors[output].max(1.0) } else { 1.0 };
        let Some(output) = output.map(|output| output as usize) else {
            let values = &self.values[payload as usize..][..self.description.outputs()];
            values.iter().enumerate().for_each(|(output, &value)| add(output, value / divisor(output)));
            return;
        };
        let value = match self.leaves {
            Leaves::Inline => f64::from(f32::from_bits(payload)),
            Leaves::Table => self.values[payload as usize],
            Leaves::Functions => self.functions.constant(payload),
        };
        add(output, value / divisor(output));
    }
}

#[cfg(test)]
mod tests;
