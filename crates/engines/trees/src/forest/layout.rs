//! Lays out trees: checks that the nodes form a tree, and places the two children of a split side by side.

use super::{Forest, IS_CATEGORICAL, IS_SET, Leaves, MISSING_PASSES, Node, Span, ZERO_IS_MISSING};
use crate::ensemble::{Kind, Linear, MAX_NODES, MAX_TREES, Split, Test, Tree};
use crate::error::FormatError;
use crate::number::Number;

/// Most words of bits for categories: 256 MiB.
const MAX_WORDS: usize = 1 << 26;

impl<N: Number> Forest<N> {
    /// Adds a tree.
    ///
    /// # Errors
    /// The nodes are not a tree, or do not fit the description.
    pub fn add(&mut self, tree: &Tree) -> Result<(), FormatError> {
        if self.roots.len() >= MAX_TREES || self.nodes.len() + tree.nodes.len() > MAX_NODES {
            return Err(FormatError::new(format!(
                "the model has more than {MAX_TREES} trees or {MAX_NODES} nodes"
            )));
        }
        let outputs = self.description.outputs();
        if let Some(output) = tree.output.filter(|&output| output >= outputs) {
            return Err(FormatError::new(format!("the tree is for output {output} of {outputs}")));
        }
        let root = self.reserve(1)?;
        let mut waiting = vec![(0, root, 1)];
        let mut reached = vec![false; tree.nodes.len()];
        while let Some((number, place, depth)) = waiting.pop() {
            let node = tree.nodes.get(number).ok_or_else(|| {
                FormatError::new(format!("a split leads to node {number} of {}", tree.nodes.len()))
            })?;
            if std::mem::replace(&mut reached[number], true) {
                return Err(FormatError::new(format!("several splits lead to node {number}")));
            }
            self.depth = self.depth.max(depth);
            self.covers[place] = node.cover;
            match &node.kind {
                Kind::Leaf(_) if tree.output.is_none() => {
                    return Err(FormatError::new("a leaf has one value in a tree for all outputs"));
                }
                Kind::Leaf(value) => self.nodes[place] = self.leaf(place, Some(*value), &[])?,
                Kind::Vector(values) if tree.output.is_some() || values.len() != outputs => {
                    return Err(FormatError::new(format!("a leaf has {} values", values.len())));
                }
                Kind::Vector(values) => self.nodes[place] = self.leaf(place, None, values)?,
                Kind::Linear(_) if tree.output.is_none() || self.leaves != Leaves::Functions => {
                    return Err(FormatError::new("a leaf is a linear function"));
                }
                Kind::Linear(linear) => {
                    let payload = self.functions.add(linear, self.description.features)?;
                    self.nodes[place] =
                        Node { threshold: N::INFINITY, feature: MISSING_PASSES, yes: place as u32, payload };
                }
                Kind::Split(split) => {
                    let yes = self.reserve(2)?;
                    self.nodes[place] = self.split(split, yes)?;
                    waiting.push((split.no, yes + 1, depth + 1));
                    waiting.push((split.yes, yes, depth + 1));
                }
            }
        }
        self.roots.push(root as u32);
        self.outputs.push(tree.output.map(|output| output as u32));
        for (output, divisor) in self.divisors.iter_mut().enumerate() {
            if tree.output.is_none_or(|own| own == output) {
                *divisor += 1.0;
            }
        }
        Ok(())
    }

    /// Makes room for nodes, and returns the first.
    fn reserve(&mut self, count: usize) -> Result<usize, FormatError> {
        let first = self.nodes.len();
        if first + count > MAX_NODES {
            return Err(FormatError::new(format!("the model has more than {MAX_NODES} nodes")));
        }
        let blank = Node { threshold: N::INFINITY, feature: MISSING_PASSES, yes: 0, payload: 0 };
        self.nodes.resize(first + count, blank);
        self.covers.resize(first + count, 0.0);
        Ok(first)
    }

    /// A leaf with one value, or with several.
    fn leaf(&mut self, place: usize, value: Option<f64>, values: &[f64]) -> Result<Node<N>, FormatError> {
        let payload = match value {
            Some(value) if self.leaves == Leaves::Inline => (value as f32).to_bits(),
            Some(constant) if self.leaves == Leaves::Functions => {
                let linear = Linear { constant, terms: Vec::new(), otherwise: None };
                self.functions.add(&linear, self.description.features)?
            }
            _ => {
                let start = u32::try_from(self.values.len())
                    .map_err(|_| FormatError::new("the leaves have more values than can be served"))?;
                self.values.extend(value);
                self.values.extend_from_slice(values);
                start
            }
        };
        Ok(Node { threshold: N::INFINITY, feature: MISSING_PASSES, yes: place as u32, payload })
    }

    fn split(&mut self, split: &Split, yes: usize) -> Result<Node<N>, FormatError> {
        if split.feature >= self.description.features {
            return Err(FormatError::new(format!(
                "a split tests feature {} of {}",
                split.feature, self.description.features
            )));
        }
        let mut feature = split.feature as u32;
        let mut payload = 0;
        let threshold = match &split.test {
            Test::AtMost(bound) => N::at_most(*bound),
            Test::Below(bound) => N::below(*bound),
            Test::In(categories) => {
                feature |= IS_CATEGORICAL;
                payload = self.categories.len() as u32;
                self.add_categories(categories)?;
                N::default()
            }
            Test::Among(members) => {
                feature |= IS_SET;
                payload = self.sets.len() as u32;
                self.add_set(members)?;
                N::default()
            }
        };
        if split.missing_passes {
            feature |= MISSING_PASSES;
        }
        if split.zero_is_missing {
            feature |= ZERO_IS_MISSING;
        }
        self.is_special |= feature & (IS_CATEGORICAL | ZERO_IS_MISSING | IS_SET) != 0;
        Ok(Node { threshold, feature, yes: yes as u32, payload })
    }

    fn add_categories(&mut self, categories: &[u32]) -> Result<(), FormatError> {
        let start = self.words.len();
        let len = categories.iter().max().map_or(0, |&largest| largest as usize / 32 + 1);
        if start + len > MAX_WORDS {
            return Err(FormatError::new(format!(
                "the categories of the model, of which one is {}, take more than {} MiB",
                categories.iter().max().unwrap_or(&0),
                (MAX_WORDS * size_of::<u32>()) >> 20
            )));
        }
        self.words.resize(start + len, 0);
        for &category in categories {
            self.words[start + category as usize / 32] |= 1 << (category % 32);
        }
        self.categories.push(Span { start, len });
        Ok(())
    }

    fn add_set(&mut self, members: &[f64]) -> Result<(), FormatError> {
        let start = self.members.len();
        if start + members.len() > MAX_WORDS {
            return Err(FormatError::new(format!(
                "the sets of the model have more than {MAX_WORDS} numbers"
            )));
        }
        // No feature equals a number that its type does not have.
        let members = members.iter().map(|&member| (member, N::nearest(member)));
        self.members.extend(
            members.filter(|(member, nearest)| nearest.double() == *member).map(|(_, nearest)| nearest),
        );
        self.members[start..].sort_by(|one, other| (one.double() + 0.0).total_cmp(&(other.double() + 0.0)));
        self.sets.push(Span { start, len: self.members.len() - start });
        Ok(())
    }
}
