//! Runs rows through the trees.

use std::thread;

use super::{FEATURE, Forest, IS_CATEGORICAL, IS_SET, Leaves, MISSING_PASSES, Node, Span, ZERO_IS_MISSING};
use crate::link::Link;
use crate::number::Number;

/// Ways that are walked at once.
const LANES: usize = 8;
/// Rows whose sums are kept at once: the nodes of a tree stay in the processor's cache while these rows pass it.
const CHUNK: usize = 128;
/// Least ways through trees for which a thread is started: a start costs tens of microseconds, a way some nanoseconds.
const WAYS_PER_THREAD: usize = 1 << 15;

/// The tests that a walk may meet: comparisons of values of which none is missing, comparisons, and all.
const COMPLETE: u8 = 0;
const COMPARISONS: u8 = 1;
const ALL: u8 = 2;

/// The largest value that LightGBM takes for zero.
const ZERO: f64 = 1e-35_f32 as f64;

impl<N: Number> Forest<N> {
    /// The results of rows, one behind the other, computed by up to `threads` threads. They are rounded to their type at last.
    pub fn predict<R: Number>(&self, rows: &[N], threads: usize) -> Vec<R> {
        let outputs = self.description.outputs();
        self.in_parallel(rows, outputs, threads, 1, |rows, results| self.predict_rows(rows, results))
    }

    /// Fills `width` results for each row, on up to `threads` threads. `cost` is what a walk through a tree
    /// costs, relative to a prediction.
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
        let useful = count.saturating_mul(self.ways()).saturating_mul(cost) / WAYS_PER_THREAD;
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

    fn predict_rows<R: Number>(&self, rows: &[N], results: &mut [R]) {
        let tests = match self.is_special {
            true => ALL,
            false if rows.iter().any(|value| value.is_nan()) => COMPARISONS,
            false => COMPLETE,
        };
        match (self.description.double, tests) {
            (false, COMPLETE) => self.predict_as::<f32, R, COMPLETE>(rows, results),
            (false, COMPARISONS) => self.predict_as::<f32, R, COMPARISONS>(rows, results),
            (false, _) => self.predict_as::<f32, R, ALL>(rows, results),
            (true, COMPLETE) => self.predict_as::<f64, R, COMPLETE>(rows, results),
            (true, COMPARISONS) => self.predict_as::<f64, R, COMPARISONS>(rows, results),
            (true, _) => self.predict_as::<f64, R, ALL>(rows, results),
        }
    }

    fn predict_as<S: Sum, R: Number, const TESTS: u8>(&self, rows: &[N], results: &mut [R]) {
        let (features, outputs) = (self.description.features, self.description.outputs());
        let width = self.description.width();
        let mut sums = vec![S::default(); CHUNK * outputs];
        let chunks = rows.chunks(CHUNK * features).zip(results.chunks_mut(CHUNK * outputs));
        for (rows, results) in chunks {
            let sums = &mut sums[..results.len()];
            for row in sums.chunks_mut(outputs) {
                for (sum, &base) in row.iter_mut().zip(&self.description.base) {
                    *sum = if self.description.averaged { S::default() } else { S::of(base) };
                }
            }
            if self.leaves == Leaves::Functions {
                for (row, sums) in rows.chunks(features).zip(sums.chunks_mut(outputs)) {
                    self.add_functions(row, sums);
                }
            } else if rows.len() < LANES * features {
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
                for (target, sums) in self.description.targets.iter().zip(sums.chunks_mut(width)) {
                    let (sums, beyond) = sums.split_at_mut(*target);
                    S::link(self.description.link, sums);
                    beyond.fill(S::default());
                }
                for (result, sum) in results.iter_mut().zip(sums) {
                    *result = R::nearest(sum.double());
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
    pub(super) fn passes(&self, node: &Node<N>, value: N) -> bool {
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

    /// Adds the values of a leaf that are numbers.
    fn add_leaf<S: Sum>(&self, place: u32, output: Option<u32>, sums: &mut [S]) {
        let payload = self.nodes[place as usize].payload;
        match (output, self.leaves) {
            (Some(output), Leaves::Inline) => sums[output as usize].add(f64::from(f32::from_bits(payload))),
            (Some(output), Leaves::Table | Leaves::Functions) => {
                sums[output as usize].add(self.values[payload as usize]);
            }
            (None, _) => {
                for (sum, &value) in sums.iter_mut().zip(&self.values[payload as usize..]) {
                    sum.add(value);
                }
            }
        }
    }

    /// Adds all trees for a row, some of whose leaves are functions. Apart from the loops for other forests, which stay small.
    #[inline(never)]
    fn add_functions<S: Sum>(&self, row: &[N], sums: &mut [S]) {
        for (roots, outputs) in self.roots.chunks(LANES).zip(self.outputs.chunks(LANES)) {
            let mut places = [roots[0]; LANES];
            places[..roots.len()].copy_from_slice(roots);
            let places = self.walk::<ALL>(places, row, [0; LANES]);
            for (&place, output) in places.iter().zip(outputs) {
                let payload = self.nodes[place as usize].payload;
                match output {
                    Some(output) => self.functions.add_result(payload, row, &mut sums[*output as usize]),
                    None => self.add_leaf(place, None, sums),
                }
            }
        }
    }
}

/// Whether a value passes a comparison.
#[inline]
fn compares<N: Number>(node: &Node<N>, value: N) -> bool {
    (value <= node.threshold) | (value.is_nan() & (node.feature & MISSING_PASSES != 0))
}

/// The type of sums.
pub(super) trait Sum: Copy + Default {
    fn of(value: f64) -> Self;
    fn add(&mut self, value: f64);
    fn double(self) -> f64;
    fn link(link: Link, row: &mut [Self]);
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

    fn link(link: Link, row: &mut [Self]) {
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

    fn link(link: Link, row: &mut [Self]) {
        link.apply_double(row);
    }
}
