//! A forest in the form that is fast to run: all nodes in one array, and several ways through trees at once.
//!
//! The way through a tree is a chain of loads, each of which waits for the one before, and its branches cannot be predicted.
//! So [`LANES`] ways are walked in step, without branches: through one tree for several rows, or through several trees for
//! one row. A leaf leads to itself, so lanes that have arrived wait there for the others.

use std::thread;

use crate::ensemble::{Description, Kind, MAX_FEATURES, MAX_NODES, MAX_TREES, Split, Test, Tree};
use crate::error::FormatError;
use crate::number::Number;

/// Ways that are walked at once.
const LANES: usize = 8;
/// Rows whose sums are kept at once: the nodes of a tree stay in the processor's cache while these rows pass it.
const CHUNK: usize = 128;
/// Least ways through trees for which a thread is started: a start costs tens of microseconds, a way some nanoseconds.
const WAYS_PER_THREAD: usize = 1 << 15;

/// Most words of bits for categories: 256 MiB.
const MAX_WORDS: usize = 1 << 26;

/// Flags in the word of a node's feature.
const MISSING_PASSES: u32 = 1 << 31;
const IS_CATEGORICAL: u32 = 1 << 30;
const ZERO_IS_MISSING: u32 = 1 << 29;
const IS_SET: u32 = 1 << 28;
const FEATURE: u32 = (MAX_FEATURES - 1) as u32;

/// The tests that a walk may meet: comparisons of values of which none is missing, comparisons, and all.
const COMPLETE: u8 = 0;
const COMPARISONS: u8 = 1;
const ALL: u8 = 2;

/// The largest value that LightGBM takes for zero.
const ZERO: f64 = 1e-35;

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
        let leaves = if description.double { Leaves::Table } else { Leaves::Inline };
        Ok(Self {
            divisors: vec![0.0; description.outputs()],
            description,
            nodes: Vec::new(),
            covers: Vec::new(),
            roots: Vec::new(),
            outputs: Vec::new(),
            leaves,
            values: Vec::new(),
            categories: Vec::new(),
            words: Vec::new(),
            sets: Vec::new(),
            members: Vec::new(),
            is_special: false,
            depth: 0,
        })
    }

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

    /// The properties of the ensemble.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The number of trees.
    pub fn trees(&self) -> usize {
        self.roots.len()
    }

    /// The most nodes on a way from a root to a leaf.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Whether the file has the cover of each node.
    pub fn has_covers(&self) -> bool {
        self.roots.iter().all(|&root| {
            let cover = self.covers[root as usize];
            cover.is_finite() && cover > 0.0
        })
    }

    /// The results of rows, one behind the other, computed by up to `threads` threads.
    pub fn predict(&self, rows: &[N], threads: usize) -> Vec<N> {
        let outputs = self.description.outputs();
        self.in_parallel(rows, outputs, threads, 1, |rows, results| self.predict_rows(rows, results))
    }

    /// Fills `width` results for each row, on up to `threads` threads. `cost` is the cost of a way through a tree, in those of
    /// a prediction.
    pub fn in_parallel<R: Clone + Default + Send>(
        &self,
        rows: &[N],
        width: usize,
        threads: usize,
        cost: usize,
        fill: impl Fn(&[N], &mut [R]) + Sync,
    ) -> Vec<R> {
        let features = self.description.features;
        let count = rows.len().checked_div(features).unwrap_or(0);
        let mut results = vec![R::default(); count * width];
        let useful = count.saturating_mul(self.trees()).saturating_mul(cost) / WAYS_PER_THREAD;
        let threads = threads.min(useful).clamp(1, count.max(1));
        let share = count.div_ceil(threads).max(1);
        thread::scope(|scope| {
            let parts = rows.chunks(share * features.max(1)).zip(results.chunks_mut(share * width));
            let mut parts = parts.collect::<Vec<_>>().into_iter();
            let own = parts.next();
            for (rows, results) in parts {
                scope.spawn(|| fill(rows, results));
            }
            if let Some((rows, results)) = own {
                fill(rows, results);
            }
        });
        results
    }

    fn predict_rows(&self, rows: &[N], results: &mut [N]) {
        let tests = match self.is_special {
            true => ALL,
            false if rows.iter().any(|value| value.is_nan()) => COMPARISONS,
            false => COMPLETE,
        };
        match (self.description.double, tests) {
            (false, COMPLETE) => self.predict_as::<f32, COMPLETE>(rows, results),
            (false, COMPARISONS) => self.predict_as::<f32, COMPARISONS>(rows, results),
            (false, _) => self.predict_as::<f32, ALL>(rows, results),
            (true, COMPLETE) => self.predict_as::<f64, COMPLETE>(rows, results),
            (true, COMPARISONS) => self.predict_as::<f64, COMPARISONS>(rows, results),
            (true, _) => self.predict_as::<f64, ALL>(rows, results),
        }
    }

    fn predict_as<S: Sum, const TESTS: u8>(&self, rows: &[N], results: &mut [N]) {
        let (features, outputs) = (self.description.features, self.description.outputs());
        let mut sums = vec![S::default(); CHUNK * outputs];
        let chunks = rows.chunks(CHUNK * features).zip(results.chunks_mut(CHUNK * outputs));
        for (rows, results) in chunks {
            let sums = &mut sums[..results.len()];
            for row in sums.chunks_mut(outputs) {
                for (sum, &base) in row.iter_mut().zip(&self.description.base) {
                    *sum = if self.description.averaged { S::default() } else { S::of(base) };
                }
            }
            if rows.len() < LANES * features {
                for (row, sums) in rows.chunks(features).zip(sums.chunks_mut(outputs)) {
                    self.add_trees::<S, TESTS>(row, sums);
                }
            } else {
                self.add_rows::<S, TESTS>(rows, sums);
            }
            for (sums, results) in sums.chunks_mut(outputs).zip(results.chunks_mut(outputs)) {
                if self.description.averaged {
                    for (output, sum) in sums.iter_mut().enumerate() {
                        *sum = S::of(
                            self.description.base[output] + sum.double() / self.divisors[output].max(1.0),
                        );
                    }
                }
                S::link(self.description.link, sums);
                for (result, sum) in results.iter_mut().zip(sums) {
                    *result = N::nearest(sum.double());
                }
            }
        }
    }

    /// Adds all trees for one row, several trees at once.
    fn add_trees<S: Sum, const TESTS: u8>(&self, row: &[N], sums: &mut [S]) {
        for (roots, outputs) in self.roots.chunks(LANES).zip(self.outputs.chunks(LANES)) {
            let mut places = [roots[0]; LANES];
            places[..roots.len()].copy_from_slice(roots);
            let places = self.walk::<TESTS>(places, row, [0; LANES]);
            for (&place, output) in places.iter().zip(outputs) {
                self.add_leaf(place, *output, sums);
            }
        }
    }

    /// Adds all trees for several rows, several rows at once.
    fn add_rows<S: Sum, const TESTS: u8>(&self, rows: &[N], sums: &mut [S]) {
        let (features, width) = (self.description.features, self.description.outputs());
        for (&root, &output) in self.roots.iter().zip(&self.outputs) {
            let groups = rows.chunks(LANES * features).zip(sums.chunks_mut(LANES * width));
            for (rows, sums) in groups {
                // Lanes without a row of their own walk with the first one's.
                let mut starts = [0; LANES];
                for (lane, start) in (0..rows.len()).step_by(features).enumerate() {
                    starts[lane] = start;
                }
                let places = self.walk::<TESTS>([root; LANES], rows, starts);
                for (&place, sums) in places.iter().zip(sums.chunks_mut(width)) {
                    self.add_leaf(place, output, sums);
                }
            }
        }
    }

    /// Walks each lane from its node to a leaf, by the values of the row that starts there.
    #[inline(always)]
    fn walk<const TESTS: u8>(
        &self,
        mut places: [u32; LANES],
        values: &[N],
        starts: [usize; LANES],
    ) -> [u32; LANES] {
        let nodes = self.nodes.as_slice();
        loop {
            let mut moved = 0;
            for lane in 0..LANES {
                let node = &nodes[places[lane] as usize];
                let value = values[starts[lane] + (node.feature & FEATURE) as usize];
                let passes = match TESTS {
                    COMPLETE => value <= node.threshold,
                    COMPARISONS => compares(node, value),
                    _ => self.passes(node, value),
                };
                let next = node.yes + u32::from(!passes);
                moved |= next ^ places[lane];
                places[lane] = next;
            }
            if moved == 0 {
                return places;
            }
        }
    }

    /// Whether a value passes the test of a node of any kind.
    fn passes(&self, node: &Node<N>, value: N) -> bool {
        let missing = node.feature & MISSING_PASSES != 0;
        if node.feature & ZERO_IS_MISSING != 0 && value.double().abs() <= ZERO {
            return missing;
        }
        if node.feature & (IS_CATEGORICAL | IS_SET) == 0 {
            return compares(node, value);
        }
        if value.is_nan() {
            return missing;
        }
        match node.feature & IS_SET {
            0 => self.is_of_category(node.payload, value.double()),
            _ => self.is_member(node.payload, value.double()),
        }
    }

    fn is_member(&self, set: u32, value: f64) -> bool {
        let Span { start, len } = self.sets[set as usize];
        // `+ 0.0` removes the sign of zeros.
        self.members[start..][..len]
            .binary_search_by(|member| (member.double() + 0.0).total_cmp(&(value + 0.0)))
            .is_ok()
    }

    fn is_of_category(&self, categories: u32, value: f64) -> bool {
        let Span { start, len } = self.categories[categories as usize];
        if value < 0.0 && !(self.description.truncates && value > -1.0) {
            return false;
        }
        // Saturates: what is too large for a word is in none.
        let category = value as u64;
        let word = usize::try_from(category / 32).unwrap_or(usize::MAX);
        word < len && self.words[start + word] >> (category % 32) & 1 == 1
    }

    fn add_leaf<S: Sum>(&self, place: u32, output: Option<u32>, sums: &mut [S]) {
        let payload = self.nodes[place as usize].payload;
        match (output, self.leaves) {
            (Some(output), Leaves::Inline) => sums[output as usize].add(f64::from(f32::from_bits(payload))),
            (Some(output), Leaves::Table) => sums[output as usize].add(self.values[payload as usize]),
            (None, _) => {
                for (sum, &value) in sums.iter_mut().zip(&self.values[payload as usize..]) {
                    sum.add(value);
                }
            }
        }
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
        };
        add(output, value / divisor(output));
    }
}

/// Whether a value passes a comparison.
#[inline]
fn compares<N: Number>(node: &Node<N>, value: N) -> bool {
    (value <= node.threshold) | (value.is_nan() & (node.feature & MISSING_PASSES != 0))
}

/// The type of sums.
trait Sum: Copy + Default {
    fn of(value: f64) -> Self;
    fn add(&mut self, value: f64);
    fn double(self) -> f64;
    fn link(link: crate::link::Link, row: &mut [Self]);
}

impl Sum for f32 {
    fn of(value: f64) -> Self {
        value as Self
    }

    fn add(&mut self, value: f64) {
        *self += value as Self;
    }

    fn double(self) -> f64 {
        self.into()
    }

    fn link(link: crate::link::Link, row: &mut [Self]) {
        link.apply(row);
    }
}

impl Sum for f64 {
    fn of(value: f64) -> Self {
        value
    }

    fn add(&mut self, value: f64) {
        *self += value;
    }

    fn double(self) -> f64 {
        self
    }

    fn link(link: crate::link::Link, row: &mut [Self]) {
        link.apply_double(row);
    }
}

#[cfg(test)]
mod tests;
