//! Trees in the attributes of the operators.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use nereid_trees::{Kind, Node, Split, Test, Tree};
use tract_hir::internal::*;
use tract_onnx::pb::NodeProto;

use crate::learning::attribute_tensor;

/// The trees of an operator.
#[derive(Debug)]
pub(super) struct Ensemble {
    pub(super) trees: Vec<Draft>,
    /// One more than the largest number of a feature.
    pub(super) features: usize,
}

/// A tree whose leaves may have weights for any of the outputs.
#[derive(Debug, Default)]
pub(super) struct Draft {
    nodes: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Leaf(Leaf),
    Split(Split),
}

/// The outputs that a leaf adds to, with weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf(Vec<(usize, f64)>);

impl Leaf {
    pub(super) fn has(&self, output: usize) -> bool {
        self.0.iter().any(|&(own, _)| own == output)
    }

    pub(super) fn weight(&self, output: usize) -> f64 {
        self.0.iter().filter(|&&(own, _)| own == output).map(|&(_, weight)| weight).sum()
    }
}

impl Draft {
    pub(super) fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.nodes.iter().filter_map(|part| match part {
            Part::Leaf(leaf) => Some(leaf),
            Part::Split(_) => None,
        })
    }

    /// The tree with this number of outputs. With `counts`, each output gets a second one, which counts its weights.
    pub(super) fn into_tree(self, outputs: usize, counts: bool) -> Tree {
        let only = self.only_output().filter(|_| !counts);
        let leaf = |leaf: &Leaf| {
            if let Some(output) = only {
                return Kind::Leaf(leaf.weight(output));
            }
            let weights = (0..outputs).map(|output| leaf.weight(output));
            let has = (0..outputs).filter(|_| counts).map(|output| f64::from(u8::from(leaf.has(output))));
            Kind::Vector(weights.chain(has).collect())
        };
        let nodes = self.nodes.into_iter().map(|part| {
            let kind = match part {
                Part::Leaf(own) => leaf(&own),
                Part::Split(split) => Kind::Split(split),
            };
            Node { kind, cover: 0.0 }
        });
        Tree { nodes: nodes.collect(), output: only }
    }

    /// How many weights the leaves of the tree have in `into_tree`, if there are `width` of each leaf.
    pub(super) fn weights(&self, width: usize, counts: bool) -> usize {
        let leaves = self.leaves().count();
        if !counts && self.only_output().is_some() { leaves } else { leaves.saturating_mul(width) }
    }

    /// The output that all weights are for.
    fn only_output(&self) -> Option<usize> {
        let mut outputs = self.leaves().flat_map(|leaf| &leaf.0).map(|&(output, _)| output);
        let first = outputs.next().unwrap_or(0);
        outputs.all(|output| output == first).then_some(first)
    }
}

/// How a split compares.
#[derive(Clone, Copy, Debug)]
enum Mode {
    AtMost,
    Below,
    AtLeast,
    Above,
    Equal,
    Unequal,
    Member,
}

impl Mode {
    fn of_name(name: &str) -> TractResult<Option<Self>> {
        Ok(Some(match name {
            "LEAF" => return Ok(None),
            "BRANCH_LEQ" => Self::AtMost,
            "BRANCH_LT" => Self::Below,
            "BRANCH_GTE" => Self::AtLeast,
            "BRANCH_GT" => Self::Above,
            "BRANCH_EQ" => Self::Equal,
            "BRANCH_NEQ" => Self::Unequal,
            other => bail!("its nodes have no mode '{other}'"),
        }))
    }

    fn of_number(number: i64) -> TractResult<Self> {
        let all =
            [Self::AtMost, Self::Below, Self::AtLeast, Self::Above, Self::Equal, Self::Unequal, Self::Member];
        let of = usize::try_from(number).ok().and_then(|number| all.get(number));
        of.copied().with_context(|| format!("its nodes have no mode {number}"))
    }

    /// The split for this mode. `missing_is_true` sends NaN the way of values that pass; NaN is unequal to all numbers.
    fn split(
        self,
        feature: usize,
        value: f64,
        members: Vec<f64>,
        ways: [usize; 2],
        missing_is_true: bool,
    ) -> Split {
        let [yes, no] = ways;
        let (test, swaps) = match self {
            Self::AtMost => (Test::AtMost(value), false),
            Self::Above => (Test::AtMost(value), true),
            Self::Below => (Test::Below(value), false),
            Self::AtLeast => (Test::Below(value), true),
            Self::Equal => (Test::Among(vec![value]), false),
            Self::Unequal => (Test::Among(vec![value]), true),
            Self::Member => (Test::Among(members), false),
        };
        let missing_is_true = missing_is_true || matches!(self, Self::Unequal);
        let (yes, no) = if swaps { (no, yes) } else { (yes, no) };
        Split { feature, test, yes, no, missing_passes: missing_is_true != swaps, zero_is_missing: false }
    }
}

/// The whole numbers of an attribute.
fn integers(node: &NodeProto, name: &str) -> TractResult<Vec<i64>> {
    Ok(node.get_attr_opt_vec::<i64>(name)?.unwrap_or_default())
}

/// The numbers of an attribute, or of the tensor that stands for it.
pub(super) fn numbers(node: &NodeProto, name: &str) -> TractResult<Vec<f64>> {
    let tensor = match attribute_tensor(node, &format!("{name}_as_tensor"))? {
        Some(tensor) => Some(tensor),
        None => match node.get_attr_opt_vec::<f32>(name)? {
            Some(numbers) => return Ok(numbers.into_iter().map(f64::from).collect()),
            None => None,
        },
    };
    tensor.map_or_else(|| Ok(Vec::new()), |tensor| floats(&tensor))
}

fn floats(tensor: &Tensor) -> TractResult<Vec<f64>> {
    Ok(tensor.cast_to::<f64>()?.try_as_plain_ram()?.as_slice::<f64>()?.to_vec())
}

/// The numbers of an attribute that is a tensor.
fn tensor_of(node: &NodeProto, name: &str) -> TractResult<Vec<f64>> {
    attribute_tensor(node, name)?.map_or_else(|| Ok(Vec::new()), |tensor| floats(&tensor))
}

fn feature(number: i64) -> TractResult<usize> {
    usize::try_from(number).with_context(|| format!("feature {number}"))
}

fn output(number: i64, outputs: usize) -> TractResult<usize> {
    let output = usize::try_from(number).ok().filter(|output| *output < outputs);
    output.with_context(|| format!("a weight is for output {number} of {outputs}"))
}

impl Ensemble {
    /// Reads the lists of TreeEnsembleClassifier and TreeEnsembleRegressor. The names of lists of weights start with `kind`.
    pub(super) fn of_lists(node: &NodeProto, kind: &str, outputs: usize) -> TractResult<Self> {
        ensure!((1..=nereid_trees::MAX_OUTPUTS).contains(&outputs), "it has {outputs} outputs");
        let trees = integers(node, "nodes_treeids")?;
        let count = trees.len();
        let list = |name: &str| -> TractResult<Vec<i64>> {
            let list = integers(node, name)?;
            ensure!(list.len() == count, "it has {} {name} for {count} nodes", list.len());
            Ok(list)
        };
        let (ids, features) = (list("nodes_nodeids")?, list("nodes_featureids")?);
        let (yes, no) = (list("nodes_truenodeids")?, list("nodes_falsenodeids")?);
        let missing = integers(node, "nodes_missing_value_tracks_true")?;
        let modes = node.get_attr_opt_vec::<&str>("nodes_modes")?.unwrap_or_default();
        let values = numbers(node, "nodes_values")?;
        ensure!(
            modes.len() == count && values.len() == count && (missing.is_empty() || missing.len() == count),
            "its lists of nodes differ in length"
        );
        let mut leaves = leaves(node, kind, outputs)?;
        // The place of each node: the number of its tree among the trees, and its own in the tree.
        let mut places = HashMap::new();
        let mut order: HashMap<i64, usize> = HashMap::new();
        let mut sizes: Vec<usize> = Vec::new();
        for (&tree, &id) in trees.iter().zip(&ids) {
            let number = *order.entry(tree).or_insert(sizes.len());
            if number == sizes.len() {
                sizes.push(0);
            }
            ensure!(
                places.insert((tree, id), sizes[number]).is_none(),
                "tree {tree} has two nodes with the number {id}"
            );
            sizes[number] += 1;
        }
        let mut drafts: Vec<Draft> = sizes.iter().map(|_| Draft::default()).collect();
        let mut is_child: Vec<Vec<bool>> = sizes.iter().map(|&size| vec![false; size]).collect();
        let mut most = 0;
        for at in 0..count {
            let (tree, id) = (trees[at], ids[at]);
            let draft = &mut drafts[order[&tree]].nodes;
            let Some(mode) = Mode::of_name(modes[at])? else {
                draft.push(Part::Leaf(leaves.remove(&(tree, id)).unwrap_or_default()));
                continue;
            };
            let mut way = |to: i64| -> TractResult<usize> {
                let place =
                    *places.get(&(tree, to)).with_context(|| format!("tree {tree} has no node {to}"))?;
                is_child[order[&tree]][place] = true;
                Ok(place)
            };
            let ways = [way(yes[at])?, way(no[at])?];
            let feature = feature(features[at])?;
            most = most.max(feature + 1);
            let missing = missing.get(at).is_some_and(|&missing| missing != 0);
            draft.push(Part::Split(mode.split(feature, values[at], Vec::new(), ways, missing)));
        }
        for (draft, is_child) in drafts.iter_mut().zip(&is_child) {
            let mut roots = (0..is_child.len()).filter(|&place| !is_child[place]);
            let (Some(root), None) = (roots.next(), roots.next()) else { bail!("a tree needs one root") };
            draft.start_at(root);
            draft.check()?;
        }
        Ok(Self { trees: drafts, features: most.max(1) })
    }

    /// The trees of TreeEnsemble, whose splits and leaves are in lists of their own.
    pub(super) fn of_leaves(node: &NodeProto, outputs: usize) -> TractResult<Self> {
        ensure!((1..=nereid_trees::MAX_OUTPUTS).contains(&outputs), "it has {outputs} targets");
        let features = integers(node, "nodes_featureids")?;
        let count = features.len();
        let list = |name: &str| -> TractResult<Vec<i64>> {
            let list = integers(node, name)?;
            ensure!(list.len() == count, "it has {} {name} for {count} nodes", list.len());
            Ok(list)
        };
        let ways = [list("nodes_truenodeids")?, list("nodes_falsenodeids")?];
        let are_leaves = [list("nodes_trueleafs")?, list("nodes_falseleafs")?];
        let missing = integers(node, "nodes_missing_value_tracks_true")?;
        let modes: Vec<i64> = tensor_of(node, "nodes_modes")?.into_iter().map(|mode| mode as i64).collect();
        let values = tensor_of(node, "nodes_splits")?;
        let (targets, weights) = (integers(node, "leaf_targetids")?, tensor_of(node, "leaf_weights")?);
        ensure!(
            modes.len() == count
                && values.len() == count
                && (missing.is_empty() || missing.len() == count)
                && targets.len() == weights.len(),
            "its lists of nodes differ in length"
        );
        let members = tensor_of(node, "membership_values")?;
        let mut members = members.split(|value| value.is_nan());
        let mut splits = Vec::with_capacity(count);
        let mut most = 0;
        for at in 0..count {
            let mode = Mode::of_number(modes[at])?;
            let own = match mode {
                Mode::Member => members.next().context("a node has no membership_values")?.to_vec(),
                _ => Vec::new(),
            };
            let feature = feature(features[at])?;
            most = most.max(feature + 1);
            let missing = missing.get(at).is_some_and(|&missing| missing != 0);
            splits.push(Some((mode, feature, values[at], own, missing)));
        }
        let mut trees = Vec::new();
        for root in integers(node, "tree_roots")? {
            let mut draft = Draft::default();
            // Each place is filled with a split, whose ways get the next places, or with a leaf.
            draft.nodes.push(Part::Leaf(Leaf::default()));
            let mut waiting = vec![(0, root, false)];
            while let Some((place, number, is_leaf)) = waiting.pop() {
                let at = usize::try_from(number).with_context(|| format!("there is no node {number}"))?;
                if is_leaf {
                    let (Some(&target), Some(&weight)) = (targets.get(at), weights.get(at)) else {
                        bail!("there is no leaf {number}");
                    };
                    draft.nodes[place] = Part::Leaf(Leaf(vec![(output(target, outputs)?, weight)]));
                    continue;
                }
                let split = splits.get_mut(at).with_context(|| format!("there is no node {number}"))?;
                let (mode, feature, value, own, missing) =
                    split.take().with_context(|| format!("several ways lead to node {number}"))?;
                let next = draft.nodes.len();
                draft.nodes.extend([Part::Leaf(Leaf::default()), Part::Leaf(Leaf::default())]);
                draft.nodes[place] = Part::Split(mode.split(feature, value, own, [next, next + 1], missing));
                for side in [0, 1] {
                    waiting.push((next + side, ways[side][at], are_leaves[side][at] != 0));
                }
            }
            trees.push(draft);
        }
        Ok(Self { trees, features: most.max(1) })
    }
}

impl Draft {
    /// Checks that one way leads to each node.
    fn check(&self) -> TractResult<()> {
        let mut reached = 1;
        let mut waiting = vec![0];
        while let Some(place) = waiting.pop() {
            if let Part::Split(split) = &self.nodes[place] {
                waiting.extend([split.yes, split.no]);
                reached += 2;
                ensure!(reached <= self.nodes.len(), "several splits lead to a node");
            }
        }
        ensure!(reached == self.nodes.len(), "no split leads to some nodes of a tree");
        Ok(())
    }

    /// Makes a node the first one.
    fn start_at(&mut self, root: usize) {
        if root == 0 {
            return;
        }
        self.nodes.swap(0, root);
        let moved = |place: usize| match place {
            0 => root,
            place if place == root => 0,
            place => place,
        };
        for part in &mut self.nodes {
            if let Part::Split(split) = part {
                (split.yes, split.no) = (moved(split.yes), moved(split.no));
            }
        }
    }
}

/// The weights of leaves, by their tree and node.
fn leaves(node: &NodeProto, kind: &str, outputs: usize) -> TractResult<HashMap<(i64, i64), Leaf>> {
    let trees = integers(node, &format!("{kind}_treeids"))?;
    let nodes = integers(node, &format!("{kind}_nodeids"))?;
    let ids = integers(node, &format!("{kind}_ids"))?;
    let weights = numbers(node, &format!("{kind}_weights"))?;
    ensure!(
        trees.len() == nodes.len() && trees.len() == ids.len() && trees.len() == weights.len(),
        "its lists of weights differ in length"
    );
    let mut leaves: HashMap<(i64, i64), Leaf> = HashMap::new();
    for (((tree, node), id), weight) in trees.into_iter().zip(nodes).zip(ids).zip(weights) {
        let weight = (output(id, outputs)?, weight);
        match leaves.entry((tree, node)) {
            Entry::Occupied(mut leaf) => leaf.get_mut().0.push(weight),
            Entry::Vacant(leaf) => {
                leaf.insert(Leaf(vec![weight]));
            }
        }
    }
    Ok(leaves)
}
