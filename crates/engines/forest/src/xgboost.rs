//! XGBoost's models: JSON and UBJSON, which have the same fields, and the binary form that older versions wrote.

mod binary;
mod json;
mod ubjson;

use nereid_trees::{
    Description, Forest, FormatError, Kind, Linear, Link, MAX_OUTPUTS, Node, Split, Task, Test, Tree,
};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

pub(crate) use self::binary::read as read_binary;
use self::json::Real;

/// Reads a model in JSON.
///
/// # Errors
/// The file is damaged, or the model is not served.
pub(crate) fn read_json(contents: &[u8]) -> Result<Forest, FormatError> {
    let model: Document = serde_json::from_slice(&json::standard(contents))
        .map_err(|error| FormatError::new(format!("not a model of XGBoost in JSON: {error}")))?;
    model.learner.forest()
}

/// Reads a model in UBJSON.
///
/// # Errors
/// As [`read_json`].
pub(crate) fn read_ubjson(contents: &[u8]) -> Result<Forest, FormatError> {
    let model: Document = ubjson::from_slice(contents)
        .map_err(|error| FormatError::new(format!("not a model of XGBoost in UBJSON: {error}")))?;
    model.learner.forest()
}

#[derive(Deserialize)]
struct Document {
    learner: Learner,
}

#[derive(Deserialize)]
struct Learner {
    gradient_booster: Booster,
    learner_model_param: LearnerParameters,
    objective: Objective,
}

#[derive(Deserialize)]
struct Objective {
    name: String,
}

/// The parameters of the learner, which are numbers as text.
#[derive(Deserialize)]
struct LearnerParameters {
    base_score: String,
    #[serde(default)]
    num_class: String,
    num_feature: String,
    #[serde(default)]
    num_target: String,
}

#[derive(Deserialize)]
struct Booster {
    #[serde(default)]
    name: String,
    model: Option<Trees>,
    /// The trees of `dart`, with a weight for each.
    gbtree: Option<Inner>,
    #[serde(default)]
    weight_drop: Vec<Real>,
}

#[derive(Deserialize)]
struct Inner {
    model: Trees,
}

#[derive(Deserialize)]
struct Trees {
    trees: Option<Vec<Fields>>,
    #[serde(default)]
    tree_info: Vec<i64>,
    /// The weights of `gblinear`, which has no trees.
    weights: Option<Vec<Real>>,
}

/// A tree, as arrays with an entry for each node.
#[derive(Deserialize)]
struct Fields {
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

impl Learner {
    fn forest(self) -> Result<Forest, FormatError> {
        let Self { gradient_booster: booster, learner_model_param: parameters, objective } = self;
        let weights = booster.weight_drop;
        let model = match (booster.model, booster.gbtree) {
            (Some(model), _) | (None, Some(Inner { model })) => model,
            (None, None) => return Err(FormatError::new("the model has no trees")),
        };
        let groups =
            number(&parameters.num_class, "num_class")?.max(number(&parameters.num_target, "num_target")?);
        let description = describe(
            &objective.name,
            groups,
            number(&parameters.num_feature, "num_feature")?,
            &scores(&parameters.base_score)?,
            true,
        )?;
        if booster.name == "gblinear" {
            let weights = model.weights.ok_or_else(|| FormatError::new("the model has no weights"))?;
            let weights: Vec<f32> = weights.into_iter().map(|Real(weight)| weight).collect();
            return linear(description, &weights);
        }
        let trees = model.trees.ok_or_else(|| FormatError::new("the model has no trees"))?;
        if trees.len() != model.tree_info.len() {
            return Err(FormatError::new("tree_info does not have a value for each tree"));
        }
        let mut forest = Forest::new(description)?;
        for (at, (fields, group)) in trees.into_iter().zip(model.tree_info).enumerate() {
            let weight = weights.get(at).map_or(1.0, |&Real(weight)| weight);
            let tree = fields.tree(group, weight).and_then(|tree| forest.add(&tree));
            tree.map_err(|error| error.within(format_args!("tree {at}")))?;
        }
        Ok(forest)
    }
}

/// The model of the booster `gblinear`: a weight of each feature for each output, and at last the biases of the outputs.
fn linear(description: Description, weights: &[f32]) -> Result<Forest, FormatError> {
    let (features, outputs) = (description.features, description.outputs());
    let expected = features.saturating_add(1).saturating_mul(outputs);
    if weights.len() != expected {
        return Err(FormatError::new(format!(
            "the model has {} weights instead of {expected}, for {features} features and {outputs} outputs",
            weights.len()
        )));
    }
    // XGBoost adds the first score to all outputs, also if it wrote several.
    let base = vec![description.base.first().copied().unwrap_or(0.0); outputs];
    let mut forest = Forest::new(Description { base, linear: true, ..description })?;
    for output in 0..outputs {
        let own = || weights.iter().skip(output).step_by(outputs).map(|&weight| f64::from(weight));
        let linear = Linear {
            constant: own().next_back().unwrap_or(0.0),
            terms: own().take(features).enumerate().collect(),
            otherwise: None,
        };
        // All rows pass the only node.
        let nodes = vec![Node { kind: Kind::Linear(linear), cover: 1.0 }];
        forest.add(&Tree { nodes, output: Some(output) })?;
    }
    Ok(forest)
}

/// The properties of a model with this objective.
///
/// `base` has the scores that all rows begin with: results of the link if `is_result`, or else its inputs.
fn describe(
    objective: &str,
    groups: usize,
    features: usize,
    base: &[f64],
    is_result: bool,
) -> Result<Description, FormatError> {
    let outputs = groups.max(1);
    if outputs > MAX_OUTPUTS {
        return Err(FormatError::new(format!(
            "the model has {outputs} classes; at most {MAX_OUTPUTS} are served"
        )));
    }
    let (link, task) = match objective {
        "binary:logistic" => (Link::Sigmoid(1.0), Task::Binary),
        "reg:logistic" => (Link::Sigmoid(1.0), Task::Numbers),
        "binary:logitraw" => (Link::Identity, Task::Binary),
        "binary:hinge" => (Link::Hinge, Task::Binary),
        "multi:softmax" | "multi:softprob" => (Link::Softmax, Task::Classes),
        "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
            (Link::Exponential, Task::Numbers)
        }
        "reg:linear"
        | "reg:squarederror"
        | "reg:squaredlogerror"
        | "reg:pseudohubererror"
        | "reg:absoluteerror"
        | "reg:quantileerror"
        | "reg:expectileerror"
        | "rank:pairwise"
        | "rank:ndcg"
        | "rank:map" => (Link::Identity, Task::Numbers),
        other => {
            return Err(FormatError::new(format!("the objective '{other}' is not known")));
        }
    };
    let margin = |score: f64| match link {
        // Computed as XGBoost does, in single precision.
        Link::Sigmoid(_) if is_result => -f64::from((1.0 / score as f32 - 1.0).ln()),
        Link::Exponential if is_result => f64::from((score as f32).ln()),
        _ => score,
    };
    // One score is for all outputs.
    let base = match base {
        [score] => vec![margin(*score); outputs],
        scores if scores.len() == outputs => scores.iter().map(|&score| margin(score)).collect(),
        scores => {
            return Err(FormatError::new(format!(
                "base_score has {} values for {outputs} outputs",
                scores.len()
            )));
        }
    };
    Ok(Description {
        features,
        base,
        targets: vec![outputs],
        linear: false,
        averaged: false,
        double: false,
        link,
        task,
        truncates: false,
    })
}

fn number(text: &str, name: &str) -> Result<usize, FormatError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| FormatError::new(format!("{name} is '{text}', not a number")))
}

/// One number, or a list of numbers.
fn scores(text: &str) -> Result<Vec<f64>, FormatError> {
    let list = text.trim().trim_start_matches('[').trim_end_matches(']');
    let scores = list.split(',').map(|score| score.trim().parse::<f32>().map(f64::from));
    scores
        .collect::<Result<_, _>>()
        .map_err(|_| FormatError::new(format!("base_score is '{text}', not a number")))
}

impl Fields {
    fn tree(self, group: i64, weight: f32) -> Result<Tree, FormatError> {
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
        let categories = self.categories(count)?;
        let mut nodes = Vec::with_capacity(count);
        for at in 0..count {
            let kind = if self.left_children[at] < 0 {
                self.leaf(at, width, weight)?
            } else {
                let (left, right) = (child(self.left_children[at])?, child(self.right_children[at])?);
                let feature = usize::try_from(self.split_indices[at])
                    .map_err(|_| FormatError::new(format!("node {at} tests no feature")))?;
                let (test, yes, no, missing_passes) = if self.split_type.get(at) == Some(&1) {
                    // Listed categories go right, and all others left.
                    let listed = categories.get(at).cloned().flatten().unwrap_or_default();
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

    fn leaf(&self, at: usize, width: usize, weight: f32) -> Result<Kind, FormatError> {
        if width <= 1 {
            return Ok(Kind::Leaf(f64::from(self.split_conditions[at].0 * weight)));
        }
        let (values, place) = match self.leaf_weights.as_slice() {
            [] => (self.base_weights.as_slice(), Some(at)),
            values => (values, usize::try_from(self.right_children[at]).ok()),
        };
        let start = place.and_then(|place| place.checked_mul(width));
        let values = start.and_then(|start| values.get(start..)?.get(..width));
        let values = values.ok_or_else(|| FormatError::new(format!("leaf {at} lacks its {width} values")))?;
        Ok(Kind::Vector(values.iter().map(|&Real(value)| f64::from(value * weight)).collect()))
    }

    /// The categories of each node; empty if no node has any.
    fn categories(&self, count: usize) -> Result<Vec<Option<Vec<u32>>>, FormatError> {
        let damaged = || FormatError::new("its lists of categories are damaged");
        if self.categories_nodes.is_empty() {
            return Ok(Vec::new());
        }
        let mut lists = vec![None; count];
        let sections = self.categories_segments.iter().zip(&self.categories_sizes);
        if sections.len() != self.categories_nodes.len() {
            return Err(damaged());
        }
        for (&node, (&start, &size)) in self.categories_nodes.iter().zip(sections) {
            let start = usize::try_from(start).map_err(|_| damaged())?;
            let end =
                usize::try_from(size).ok().and_then(|size| start.checked_add(size)).ok_or_else(damaged)?;
            let own = self.categories.get(start..end).ok_or_else(damaged)?;
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

/// For readers of other forms: an error of serde with this reason.
fn refused<E: de::Error>(reason: impl std::fmt::Display) -> E {
    E::custom(reason)
}

#[cfg(test)]
mod tests;
