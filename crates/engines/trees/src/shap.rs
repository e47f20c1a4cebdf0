//! Explains results by the Shapley values of the features: how much each feature moves a result from the mean over the
//! training data.
//!
//! The algorithm is TreeSHAP with the weights of the training data ("path dependent"), by Lundberg and others: one walk
//! through each tree, which keeps for each feature on the way the share of its subsets in which the way is taken.

use crate::forest::Forest;
use crate::number::Number;

/// The deepest trees that are explained: the work grows with the square of the depth.
pub const MAX_DEPTH: usize = 512;

/// A feature on the way to a node.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// `None` for the root.
    feature: Option<usize>,
    /// The share of the training data that takes this step if the feature is unknown.
    unknown: f64,
    /// 1 if the row takes the way, or else 0.
    known: f64,
    /// The weight of the subsets with as many features as there are steps before this one.
    weight: f64,
}

/// The explanations of a row: for each output, a value for each feature, and the mean at the end. They add up to the sums of
/// the trees, before the link. Trees whose leaves are linear functions add up only if they have no splits.
pub fn explain<N: Number, R: Number>(forest: &Forest<N>, means: &[f64], row: &[N]) -> Vec<R> {
    let description = forest.description();
    let width = description.features + 1;
    let mut values = vec![0.0; description.outputs() * width];
    for (root, output) in forest.roots() {
        // A linear function without splits: each term is its feature's share.
        for (feature, value) in forest.terms(root, row) {
            values[output.unwrap_or(0) as usize * width + feature] += value;
        }
        let mut walk = Walk { forest, row, output, values: &mut values, width };
        walk.visit(root, Vec::new(), Step { feature: None, unknown: 1.0, known: 1.0, weight: 0.0 });
    }
    for (output, mean) in means.iter().enumerate() {
        values[output * width + width - 1] = *mean;
    }
    values.into_iter().map(R::nearest).collect()
}

/// The mean of each output over the training data.
pub fn means<N: Number>(forest: &Forest<N>) -> Vec<f64> {
    let mut means = forest.description().base.clone();
    for (root, output) in forest.roots() {
        let mut waiting = vec![(root, 1.0)];
        while let Some((place, share)) = waiting.pop() {
            let Some(children) = forest.children(place) else {
                forest.leaf_values(place, output, |output, value| means[output] += share * value);
                continue;
            };
            for child in children {
                waiting
                    .push((child, share * forest.cover(child) / forest.cover(place).max(f64::MIN_POSITIVE)));
            }
        }
    }
    means
}

struct Walk<'a, N> {
    forest: &'a Forest<N>,
    row: &'a [N],
    output: Option<u32>,
    values: &'a mut [f64],
    width: usize,
}

impl<N: Number> Walk<'_, N> {
    fn visit(&mut self, place: u32, mut way: Vec<Step>, step: Step) {
        extend(&mut way, step);
        let Some((feature, [yes, no], passes)) = self.forest.test(place, self.row) else {
            self.add(place, &way);
            return;
        };
        let (taken, other) = if passes { (yes, no) } else { (no, yes) };
        // A feature that was tested before counts once.
        let (mut unknown, mut known) = (1.0, 1.0);
        if let Some(earlier) = way.iter().position(|step| step.feature == Some(feature)) {
            (unknown, known) = (way[earlier].unknown, way[earlier].known);
            unwind(&mut way, earlier);
        }
        let cover = self.forest.cover(place).max(f64::MIN_POSITIVE);
        for (child, known) in [(taken, known), (other, 0.0)] {
            let unknown = unknown * self.forest.cover(child) / cover;
            if unknown == 0.0 && known == 0.0 {
                // No row reaches this node.
                continue;
            }
            self.visit(child, way.clone(), Step { feature: Some(feature), unknown, known, weight: 0.0 });
        }
    }

    /// Adds a leaf's share to each feature on the way to it.
    fn add(&mut self, place: u32, way: &[Step]) {
        for (at, step) in way.iter().enumerate() {
            let Some(feature) = step.feature else { continue };
            let moved = unwound_weight(way, at) * (step.known - step.unknown);
            let (values, width) = (&mut *self.values, self.width);
            self.forest.leaf_values(place, self.output, |output, value| {
                values[output * width + feature] += moved * value;
            });
        }
    }
}

fn extend(way: &mut Vec<Step>, step: Step) {
    let length = way.len();
    way.push(Step { weight: if length == 0 { 1.0 } else { 0.0 }, ..step });
    let count = (length + 1) as f64;
    for at in (0..length).rev() {
        way[at + 1].weight += step.known * way[at].weight * (at + 1) as f64 / count;
        way[at].weight = step.unknown * way[at].weight * (length - at) as f64 / count;
    }
}

/// Takes a step out of the way, as if it had never been taken.
fn unwind(way: &mut Vec<Step>, at: usize) {
    let last = way.len() - 1;
    let Step { unknown, known, .. } = way[at];
    let count = way.len() as f64;
    let mut next = way[last].weight;
    for place in (0..last).rev() {
        if known == 0.0 {
            way[place].weight = way[place].weight * count / (unknown * (last - place) as f64);
        } else {
            let before = way[place].weight;
            way[place].weight = next * count / ((place + 1) as f64 * known);
            next = before - way[place].weight * unknown * (last - place) as f64 / count;
        }
    }
    for place in at..last {
        let Step { feature, unknown, known, .. } = way[place + 1];
        way[place] = Step { feature, unknown, known, weight: way[place].weight };
    }
    way.pop();
}

/// The sum of the weights of a way without one of its steps.
fn unwound_weight(way: &[Step], at: usize) -> f64 {
    let last = way.len() - 1;
    let Step { unknown, known, .. } = way[at];
    let count = way.len() as f64;
    let mut next = way[last].weight;
    let mut total = 0.0;
    for place in (0..last).rev() {
        if known == 0.0 {
            total += way[place].weight * count / (unknown * (last - place) as f64);
        } else {
            let weight = next * count / ((place + 1) as f64 * known);
            total += weight;
            next = way[place].weight - weight * unknown * (last - place) as f64 / count;
        }
    }
    total
}
