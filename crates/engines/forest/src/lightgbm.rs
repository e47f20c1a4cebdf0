//! LightGBM's models in its text format.

use std::collections::HashMap;

use nereid_trees::{
    Description, Forest, FormatError, Kind, Linear, Link, MAX_OUTPUTS, Node, Number, Split, Task, Test, Tree,
};

/// The parts of a node's `decision_type`.
const IS_CATEGORICAL: u32 = 1;
const DEFAULT_LEFT: u32 = 2;
const MISSING_SHIFT: u32 = 2;

/// Kinds of missing values, in `decision_type`.
const MISSING_NONE: u32 = 0;
const MISSING_ZERO: u32 = 1;

/// The largest value that is taken for zero.
const ZERO: f64 = 1e-35_f32 as f64;

/// Reads a model.
///
/// # Errors
/// The file is damaged, or the model is not served.
pub(crate) fn read<N: Number>(contents: &[u8]) -> Result<Forest<N>, FormatError> {
    let text =
        std::str::from_utf8(contents).map_err(|_| FormatError::new("not a model of LightGBM: not UTF-8"))?;
    let mut lines = text.lines().map(str::trim_end);
    if lines.next() != Some("tree") {
        return Err(FormatError::new("not a model of LightGBM: it does not begin with a line 'tree'"));
    }
    let (header, mut section) = fields(&mut lines);
    let header = Section(header);
    let per_iteration: usize = header.number("num_tree_per_iteration")?;
    let features = header.number::<usize>("max_feature_idx")?.saturating_add(1);
    let averaged = header.0.contains_key("average_output");
    let mut forest = Forest::new(describe(
        header.0.get("objective").copied().unwrap_or(""),
        per_iteration,
        features,
        averaged,
        text.contains("\nis_linear=1"),
    )?)?;
    let mut count = 0;
    loop {
        let Some(name) = section else {
            return Err(FormatError::new("the file ends too early"));
        };
        let within = |error: FormatError| error.within(format_args!("tree {count}"));
        if !name.starts_with("Tree=") {
            break;
        }
        let (own, next) = fields(&mut lines);
        let tree = Section(own).tree(count % per_iteration).map_err(within)?;
        forest.add(&tree).map_err(within)?;
        count += 1;
        section = next;
    }
    let sizes = header.0.get("tree_sizes").map_or(count, |sizes| sizes.split_whitespace().count());
    if sizes != count {
        return Err(FormatError::new(format!("the file has {count} of {sizes} trees")));
    }
    Ok(forest)
}

/// The fields until the next section, and that section's line.
fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> (HashMap<&'a str, &'a str>, Option<&'a str>) {
    let mut fields = HashMap::new();
    for line in lines {
        // Version 2 writes how important features are right after the trees.
        if line.starts_with("Tree=") || line == "end of trees" || line.starts_with("feature importances") {
            return (fields, Some(line));
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        fields.insert(key, value);
    }
    (fields, None)
}

/// The properties of a model with this objective. Parameters may follow the objective's name.
fn describe(
    objective: &str,
    outputs: usize,
    features: usize,
    averaged: bool,
    linear: bool,
) -> Result<Description, FormatError> {
    if outputs == 0 || outputs > MAX_OUTPUTS {
        return Err(FormatError::new(format!(
            "the model has {outputs} trees in an iteration; 1 to {MAX_OUTPUTS} are served"
        )));
    }
    let mut words = objective.split_whitespace();
    let name = words.next().unwrap_or("");
    let parameters: Vec<_> = words.collect();
    let alpha = parameters.iter().find_map(|word| word.strip_prefix("sigmoid:"));
    let alpha: f64 = alpha.unwrap_or("1").parse().map_err(|_| FormatError::new("sigmoid is not a number"))?;
    let (link, task) = match name {
        "binary" => (Link::Sigmoid(alpha), Task::Binary),
        "multiclass" | "softmax" => (Link::Softmax, Task::Classes),
        "multiclassova" | "multiclass_ova" | "ova" | "ovr" => (Link::Sigmoid(alpha), Task::Classes),
        "cross_entropy" | "xentropy" => (Link::Sigmoid(1.0), Task::Numbers),
        "cross_entropy_lambda" | "xentlambda" => (Link::SoftPlus, Task::Numbers),
        "poisson" | "gamma" | "tweedie" => (Link::Exponential, Task::Numbers),
        "regression" | "regression_l2" | "l2" if parameters.contains(&"sqrt") => {
            (Link::SignedSquare, Task::Numbers)
        }
        "" | "custom" | "none" | "regression" | "regression_l2" | "l2" | "regression_l1" | "l1" | "huber"
        | "fair" | "quantile" | "mape" | "lambdarank" | "rank_xendcg" => {
            let task = if outputs > 1 { Task::Classes } else { Task::Numbers };
            (Link::Identity, task)
        }
        other => return Err(FormatError::new(format!("the objective '{other}' is not known"))),
    };
    // Random forests average results, not sums, if the objective has a link of its own.
    let link =
        if averaged && !matches!(task, Task::Numbers) && name.is_empty() { Link::Identity } else { link };
    Ok(Description {
        features,
        base: vec![0.0; outputs],
        targets: vec![outputs],
        linear,
        averaged,
        double: true,
        link,
        task,
        truncates: true,
    })
}

/// The bound that treats values as a threshold does after the smallest of them were taken for zero.
fn bound(threshold: f64) -> f64 {
    match threshold.abs() <= ZERO {
        true if threshold < 0.0 => (-ZERO).next_down(),
        true => ZERO,
        false => threshold,
    }
}

/// The fields of a tree, or of the header.
struct Section<'a>(HashMap<&'a str, &'a str>);

impl Section<'_> {
    fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T, FormatError> {
        let text = self.0.get(key).ok_or_else(|| FormatError::new(format!("it lacks '{key}'")))?;
        text.trim().parse().map_err(|_| FormatError::new(format!("{key} is '{text}', not a number")))
    }

    /// A list of numbers; of `count`, if the field is needed.
    fn list<T: std::str::FromStr>(&self, key: &str, count: usize) -> Result<Vec<T>, FormatError> {
        let text = self.0.get(key).ok_or_else(|| FormatError::new(format!("it lacks '{key}'")))?;
        let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<T>, _>>();
        let numbers =
            numbers.map_err(|_| FormatError::new(format!("{key} has a value that is not a number")))?;
        if numbers.len() == count {
            return Ok(numbers);
        }
        Err(FormatError::new(format!("{key} has {} values instead of {count}", numbers.len())))
    }

    /// Counts of rows, which old versions did not write.
    fn covers(&self, key: &str, count: usize) -> Vec<f64> {
        self.list(key, count).unwrap_or_else(|_| vec![0.0; count])
    }

    fn tree(&self, output: usize) -> Result<Tree, FormatError> {
        let leaves: usize = self.number("num_leaves")?;
        if leaves == 0 || leaves > 1 << 28 {
            return Err(FormatError::new(format!("it has {leaves} leaves")));
        }
        let splits = leaves - 1;
        let values: Vec<f64> = self.list("leaf_value", leaves)?;
        let mut nodes = Vec::with_capacity(splits + leaves);
        if splits > 0 {
            self.splits(splits, &mut nodes)?;
        }
        let covers = self.covers("leaf_count", leaves);
        let kinds = if self.0.get("is_linear").is_some_and(|value| value.trim() == "1") {
            self.linear_leaves(&values)?
        } else {
            values.into_iter().map(Kind::Leaf).collect()
        };
        nodes.extend(kinds.into_iter().zip(covers).map(|(kind, cover)| Node { kind, cover }));
        Ok(Tree { nodes, output: Some(output) })
    }

    /// Leaves that are linear functions, or these values for rows that lack a feature.
    fn linear_leaves(&self, values: &[f64]) -> Result<Vec<Kind>, FormatError> {
        let constants: Vec<f64> = self.list("leaf_const", values.len())?;
        let sizes: Vec<usize> = self.list("num_features", values.len())?;
        let damaged = || FormatError::new("num_features has too many features");
        let total = sizes.iter().try_fold(0_usize, |total, &size| total.checked_add(size));
        let total = total.ok_or_else(damaged)?;
        let features: Vec<usize> = self.list("leaf_features", total)?;
        let coefficients: Vec<f64> = self.list("leaf_coeff", total)?;
        let mut terms = features.into_iter().zip(coefficients);
        let leaves = values.iter().zip(constants).zip(sizes);
        let kinds = leaves.map(|((&value, constant), size)| {
            let terms: Vec<_> = terms.by_ref().take(size).collect();
            // A function without features is always the constant.
            let otherwise = (!terms.is_empty()).then_some(value);
            Kind::Linear(Linear { constant, terms, otherwise })
        });
        Ok(kinds.collect())
    }

    fn splits(&self, count: usize, nodes: &mut Vec<Node>) -> Result<(), FormatError> {
        let features: Vec<usize> = self.list("split_feature", count)?;
        let thresholds: Vec<f64> = self.list("threshold", count)?;
        let decisions: Vec<u32> = self.list("decision_type", count)?;
        let (left, right) = (self.list::<i64>("left_child", count)?, self.list::<i64>("right_child", count)?);
        let covers = self.covers("internal_count", count);
        // Each list is for one split: if splits shared one, a small file would take any amount of memory.
        let mut categories: Vec<_> = self.categories()?.into_iter().map(Some).collect();
        // A leaf's number is negative, and the leaves stand behind the splits.
        let place = |child: i64| {
            let place = if child >= 0 { child as u64 } else { (!child as u64).saturating_add(count as u64) };
            usize::try_from(place).unwrap_or(usize::MAX)
        };
        for at in 0..count {
            let decision = decisions[at];
            let missing = decision >> MISSING_SHIFT & 3;
            let (test, missing_passes) = if decision & IS_CATEGORICAL != 0 {
                let listed = categories.get_mut(thresholds[at] as usize).and_then(Option::take);
                let listed = listed
                    .ok_or_else(|| FormatError::new(format!("split {at} has no categories of its own")))?;
                (Test::In(listed), false)
            } else if missing == MISSING_NONE {
                // No value is missing: what is none counts as zero.
                (Test::AtMost(bound(thresholds[at])), 0.0 <= thresholds[at])
            } else {
                (Test::AtMost(bound(thresholds[at])), decision & DEFAULT_LEFT != 0)
            };
            let split = Split {
                feature: features[at],
                zero_is_missing: missing == MISSING_ZERO && decision & IS_CATEGORICAL == 0,
                test,
                yes: place(left[at]),
                no: place(right[at]),
                missing_passes,
            };
            nodes.push(Node { kind: Kind::Split(split), cover: covers[at] });
        }
        Ok(())
    }

    /// The lists of categories, which are words of bits in the file.
    fn categories(&self) -> Result<Vec<Vec<u32>>, FormatError> {
        let count: usize = self.number("num_cat")?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let damaged = || FormatError::new("its lists of categories are damaged");
        let bounds: Vec<usize> = self.list("cat_boundaries", count.checked_add(1).ok_or_else(damaged)?)?;
        let words: Vec<u32> = self.list("cat_threshold", bounds.last().copied().unwrap_or(0))?;
        let bits = |words: &[u32]| {
            let bits = (0_u32..).zip(words).flat_map(|(at, &word)| {
                (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 32 + bit)
            });
            bits.collect()
        };
        let lists = bounds.windows(2).map(|pair| words.get(pair[0]..pair[1]).map(bits).ok_or_else(damaged));
        lists.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_that_share_categories_are_refused() {
        let text = include_str!("../tests/models/lgb_categories.txt");
        assert!(read::<f32>(text.as_bytes()).is_ok());
        // The second list of a tree is named as the first one.
        let line = text.lines().find(|line| line.starts_with("threshold=") && line.contains(" 1 ")).unwrap();
        let shared = text.replacen(line, &line.replacen(" 1 ", " 0 ", 1), 1);
        let error = read::<f32>(shared.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("has no categories of its own"), "{error}");
    }
}
