//! XGBoost's models: JSON and UBJSON, which have the same fields, and the binary form that older versions wrote.

mod binary;
mod fields;
mod json;
mod ubjson;

use nereid_trees::{Description, Forest, FormatError, Kind, Linear, Link, MAX_OUTPUTS, Node, Task, Tree};
use serde::{Deserialize, de};

pub(crate) use self::binary::read as read_binary;
use self::fields::Fields;
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

/// For readers of other forms: an error of serde with this reason.
fn refused<E: de::Error>(reason: impl std::fmt::Display) -> E {
    E::custom(reason)
}

#[cfg(test)]
mod tests;
