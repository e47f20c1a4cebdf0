//! A tree in JSON or UBJSON.

use nereid_trees::{FormatError, Kind, Node, Split, Test, Tree};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::json::Real;
use super::number;
use crate::lists::Lists;

/// A tree, as arrays with an entry for each node.
#[derive(Deserialize)]
pub(super) struct Fields {
    left_children: Vec<i64>,
    right_children: Vec<i64>,
    split_indices: Vec<i64>,
    split_conditions: Vec<Real>,
    #[serde(deserialize_with = "flags")]
    default_left: Vec<bool>,
    #[serde(default)]
    sum_hessian: Vec<Real>,
    #[serde(default)]
    split_type: Vec<i64>,
    #[serde(default)]
    categories: Vec<i64>,
    #[serde(default)]
    categories_nodes: Vec<i64>,
    #[serde(default)]
    categories_segments: Vec<i64>,
    #[serde(default)]
    categories_sizes: Vec<i64>,
    #[serde(default)]
    tree_param: TreeParameters,
    /// The values of leaves with several values, one leaf behind the other; leaves have their place as right child.
    #[serde(default)]
    leaf_weights: Vec<Real>,
    /// Values of all nodes in the same form, which XGBoost before 3.2 has for leaves, too.
    #[serde(default)]
    base_weights: Vec<Real>,
}

#[derive(Default, Deserialize)]
struct TreeParameters {
    #[serde(default)]
    size_leaf_vector: String,
}

/// Flags, which are numbers or booleans, depending on the version of XGBoost.
fn flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<bool>, D::Error> {
    struct Flags;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Flag {
        Boolean(bool),
        Number(i64),
    }

    impl<'de> Visitor<'de> for Flags {
        type Value = Vec<bool>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of flags")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut flags = Vec::new();
            while let Some(flag) = list.next_element()? {
                flags.push(match flag {
                    Flag::Boolean(flag) => flag,
                    Flag::Number(flag) => flag != 0,
                });
            }
            Ok(flags)
        }
    }
    deserializer.deserialize_seq(Flags)
}

impl Fields {
    pub(super) fn tree(self, group: i64, weight: f32) -> Result<Tree, FormatError> {
        let width = number(&self.tree_param.size_leaf_vector, "size_leaf_vector")?;
        let count = self.left_children.len();
        let lengths = [
            self.right_children.len(),
            self.split_indices.len(),
            self.split_conditions.len(),
            self.default_left.len(),
        ];
        if lengths.iter().any(|&length| length != count) {
            return Err(FormatError::new("its arrays differ in length"));
        }
        let mut categories = self.categories(count)?;
        let mut vectors = Lists::new(match self.leaf_weights.as_slice() {
            [] => &self.base_weights,
            weights => weights,
        });
        let mut nodes = Vec::with_capacity(count);
        for at in 0..count {
            let kind = if self.left_children[at] < 0 {
                self.leaf(at, width, weight, &mut vectors)?
            } else {
                let (left, right) = (child(self.left_children[at])?, child(self.right_children[at])?);
                let feature = usize::try_from(self.split_indices[at])
                    .map_err(|_| FormatError::new(format!("node {at} tests no feature")))?;
                let (test, yes, no, missing_passes) = if self.split_type.get(at) == Some(&1) {
                    // Listed categories go right, and all others left.
                    let listed = categories.get_mut(at).and_then(Option::take).unwrap_or_default();
                    (Test::In(listed), right, left, !self.default_left[at])
                } else {
                    (Test::Below(self.split_conditions[at].0.into()), left, right, self.default_left[at])
                };
                Kind::Split(Split { feature, test, yes, no, missing_passes, zero_is_missing: false })
            };
            nodes.push(Node {
                kind,
                cover: self.sum_hessian.get(at).map_or(0.0, |&Real(cover)| cover.into()),
            });
        }
        let output = usize::try_from(group).map_err(|_| FormatError::new("it is for no output"))?;
        // Leaves with several values are for all outputs.
        Ok(Tree { nodes, output: (width <= 1).then_some(output) })
    }

    fn leaf(
        &self,
        at: usize,
        width: usize,
        weight: f32,
        vectors: &mut Lists<'_, Real>,
    ) -> Result<Kind, FormatError> {
        if width <= 1 {
            return Ok(Kind::Leaf(f64::from(self.split_conditions[at].0 * weight)));
        }
        let has_places = !self.leaf_weights.is_empty();
        let place = if has_places { usize::try_from(self.right_children[at]).ok() } else { Some(at) };
        let start = place.and_then(|place| place.checked_mul(width));
        let values = start.and_then(|start| vectors.take(start..start.checked_add(width)?));
        let values = values.ok_or_else(|| FormatError::new(format!("leaf {at} lacks its {width} values")))?;
        Ok(Kind::Vector(values.iter().map(|&Real(value)| f64::from(value * weight)).collect()))
    }

    /// The categories of each node; empty if no node has any.
    fn categories(&self, count: usize) -> Result<Vec<Option<Vec<u32>>>, FormatError> {
        let damaged = || FormatError::new("its lists of categories are damaged");
        if self.categories_nodes.is_empty() {
            return Ok(Vec::new());
        }
        let (mut lists, mut all) = (vec![None; count], Lists::new(&self.categories));
        let sections = self.categories_segments.iter().zip(&self.categories_sizes);
        if sections.len() != self.categories_nodes.len() {
            return Err(damaged());
        }
        for (&node, (&start, &size)) in self.categories_nodes.iter().zip(sections) {
            let start = usize::try_from(start).map_err(|_| damaged())?;
            let end =
                usize::try_from(size).ok().and_then(|size| start.checked_add(size)).ok_or_else(damaged)?;
            let own = all.take(start..end).ok_or_else(damaged)?;
            let numbers = own.iter().map(|&category| u32::try_from(category).map_err(|_| damaged()));
            let list = usize::try_from(node).ok().and_then(|node| lists.get_mut(node)).ok_or_else(damaged)?;
            *list = Some(numbers.collect::<Result<_, _>>()?);
        }
        Ok(lists)
    }
}

fn child(number: i64) -> Result<usize, FormatError> {
    usize::try_from(number).map_err(|_| FormatError::new("a split has one node only"))
}
