//! Random trees and rows, compared with a plain walk.

use proptest::prelude::*;

use super::*;
use crate::ensemble::{Kind, Linear, Node as SourceNode, Split, Task, Test, Tree};
use crate::link::Link;

const FEATURES: usize = 3;

fn description(outputs: usize, double: bool, averaged: bool) -> Description {
    let (link, task) = (Link::Identity, Task::Numbers);
    Description {
        features: FEATURES,
        base: vec![0.25; outputs],
        targets: vec![outputs],
        linear: false,
        averaged,
        double,
        link,
        task,
        truncates: false,
    }
}

/// Values and bounds that are equal often, and those at the ends of what there is.
fn values() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => (-4_i8..40).prop_map(f32::from),
        2 => (-8_i8..8).prop_map(|value| f32::from(value) / 4.0),
        1 => prop::sample::select(vec![
            f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -0.0, 1e-36, 1e-35, -1e-40, 1e30, 31.9,
        ]),
    ]
}

fn tests() -> impl Strategy<Value = Test> {
    let near = || {
        (values(), prop::sample::select(vec![-1e-12, 0.0, 1e-12]))
            .prop_map(|(bound, off)| f64::from(bound) + off)
    };
    prop_oneof![
        near().prop_map(Test::AtMost),
        near().prop_map(Test::Below),
        prop::collection::vec(0_u32..40, 0..6).prop_map(Test::In),
        prop::collection::vec(near(), 0..6).prop_map(Test::Among),
    ]
}

/// A tree of some splits. Each one takes the place of a leaf.
fn trees(outputs: usize, vectors: bool) -> impl Strategy<Value = Tree> {
    let split = (any::<prop::sample::Index>(), tests(), 0..FEATURES, any::<(bool, bool)>());
    (prop::collection::vec(split, 0..12), prop::collection::vec(-8_i8..8, 64), 0..outputs).prop_map(
        move |(splits, mut numbers, output)| {
            let mut leaf = || {
                let mut next = || f64::from(numbers.pop().unwrap_or(1)) / 2.0;
                let kind = if vectors {
                    Kind::Vector((0..outputs).map(|_| next()).collect())
                } else {
                    Kind::Leaf(next())
                };
                SourceNode { kind, cover: 1.0 }
            };
            let mut nodes = vec![leaf()];
            for (place, test, feature, (missing_passes, zero_is_missing)) in splits {
                let leaves: Vec<_> =
                    (0..nodes.len()).filter(|&at| !matches!(nodes[at].kind, Kind::Split(_))).collect();
                let (yes, no) = (nodes.len(), nodes.len() + 1);
                let split = Split { feature, test, yes, no, missing_passes, zero_is_missing };
                nodes[*place.get(&leaves)].kind = Kind::Split(split);
                nodes.extend([leaf(), leaf()]);
            }
            Tree { nodes, output: (!vectors).then_some(output) }
        },
    )
}

/// The leaf of a row, by the plainest walk.
fn leaf<'a, N: Number>(tree: &'a Tree, row: &[N]) -> &'a Kind {
    let mut at = 0;
    loop {
        let Kind::Split(split) = &tree.nodes[at].kind else { return &tree.nodes[at].kind };
        let value = row[split.feature].double();
        let is_missing = value.is_nan() || split.zero_is_missing && value.abs() <= f64::from(1e-35_f32);
        let passes = if is_missing {
            split.missing_passes
        } else {
            match &split.test {
                Test::AtMost(bound) => value <= *bound,
                Test::Below(bound) => value < *bound,
                Test::In(list) => {
                    value >= 0.0 && list.iter().any(|&category| f64::from(category) == value.trunc())
                }
                Test::Among(list) => list.contains(&value),
            }
        };
        at = if passes { split.yes } else { split.no };
    }
}

/// Checks results against plain walks.
fn check<N: Number>(trees: &[Tree], rows: &[N], description: Description) -> Result<(), TestCaseError> {
    let (outputs, averaged) = (description.outputs(), description.averaged);
    let mut forest = Forest::new(description).unwrap();
    for tree in trees {
        forest.add(tree).unwrap();
    }
    let own: Vec<N> = forest.predict(rows, 1);
    prop_assert_eq!(own.len(), rows.len() / FEATURES * outputs);
    for (row, own) in rows.chunks(FEATURES).zip(own.chunks(outputs)) {
        // All leaves are halves, so sums are exact in any order and precision.
        for (output, own) in own.iter().enumerate() {
            let values = trees.iter().filter_map(|tree| match leaf(tree, row) {
                Kind::Leaf(value) if tree.output == Some(output) => Some(*value),
                Kind::Vector(values) => Some(values[output]),
                _ => None,
            });
            let values: Vec<f64> = values.collect();
            let divisor = if averaged { values.len().max(1) as f64 } else { 1.0 };
            let expected = 0.25 + values.iter().sum::<f64>() / divisor;
            prop_assert!((own.double() - expected).abs() <= 1e-6, "{own:?} {expected}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn rows_take_the_ways_of_a_plain_walk(
        (outputs, trees) in (1_usize..4, any::<bool>()).prop_flat_map(|(outputs, vectors)| {
            (Just(outputs), prop::collection::vec(trees(outputs, vectors), 0..20))
        }),
        rows in prop::collection::vec([values(), values(), values()], 0..150),
        double in any::<bool>(),
        averaged in any::<bool>(),
    ) {
        let rows: Vec<f32> = rows.iter().flatten().copied().collect();
        check(&trees, &rows, description(outputs, double, averaged))?;
        // Some numbers are only in double precision.
        let rows: Vec<f64> = rows.iter().map(|&value| f64::from(value) + if value < 8.0 { 1e-12 } else { 0.0 }).collect();
        check(&trees, &rows, description(outputs, double, averaged))?;
    }

    /// The values of an explanation add up to the result.
    #[test]
    fn explanations_add_up_to_the_result(
        trees in prop::collection::vec(trees(2, true), 1..4),
        rows in prop::collection::vec([values(), values(), values()], 1..4),
        averaged in any::<bool>(),
    ) {
        let mut forest = Forest::new(description(2, true, averaged)).unwrap();
        for mut tree in trees {
            // Each node has the weight of the leaves below it.
            for at in (0..tree.nodes.len()).rev() {
                if let Kind::Split(split) = &tree.nodes[at].kind {
                    tree.nodes[at].cover = tree.nodes[split.yes].cover + tree.nodes[split.no].cover;
                }
            }
            forest.add(&tree).unwrap();
        }
        let means = crate::shap::means(&forest);
        for row in rows {
            let sums: Vec<f32> = forest.predict(&row, 1);
            for (parts, sum) in crate::shap::explain::<_, f32>(&forest, &means, &row).chunks(FEATURES + 1).zip(sums) {
                prop_assert!((parts.iter().sum::<f32>() - sum).abs() <= 1e-4, "{parts:?} {sum}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    /// Large models have as many trees. Rows come alone and in a batch.
    #[test]
    fn ten_thousand_trees_add_up_to_a_plain_walk(
        trees in prop::collection::vec(trees(1, false), 10_000),
        rows in prop::collection::vec([values(), values(), values()], 40),
    ) {
        let rows: Vec<f32> = rows.iter().flatten().copied().collect();
        check(&trees, &rows, description(1, false, false))?;
        check(&trees, &rows[..FEATURES], description(1, false, false))?;
    }
}

proptest! {
    /// A leaf with several values explains each output as a leaf with that value does.
    #[test]
    fn explanations_of_vectors_are_those_of_single_values(
        trees in prop::collection::vec(trees(2, true), 1..4),
        row in [values(), values(), values()],
    ) {
        let forest = |trees: &[Tree], outputs| {
            let mut forest = Forest::new(description(outputs, true, false)).unwrap();
            for tree in trees {
                forest.add(tree).unwrap();
            }
            forest
        };
        let explain = |forest: &Forest| {
            crate::shap::explain::<_, f64>(forest, &crate::shap::means(forest), &row)
        };
        let all = explain(&forest(&trees, 2));
        for output in 0..2 {
            let mut own = trees.clone();
            for tree in &mut own {
                tree.output = Some(0);
                for node in &mut tree.nodes {
                    if let Kind::Vector(values) = &node.kind {
                        node.kind = Kind::Leaf(values[output]);
                    }
                }
            }
            let own = explain(&forest(&own, 1));
            for (one, other) in own.iter().zip(&all[output * (FEATURES + 1)..]) {
                prop_assert!((one - other).abs() <= 1e-12, "{own:?} {all:?}");
            }
        }
    }
}

proptest! {
    /// Leaves that are functions of the features, which rows may lack.
    #[test]
    fn linear_leaves_are_those_of_a_plain_walk(
        mut trees in prop::collection::vec(trees(2, false), 1..12),
        functions in prop::collection::vec((-8_i8..8, prop::collection::vec((0..FEATURES, -4_i8..4), 0..4), any::<bool>()), 8),
        rows in prop::collection::vec([values(), values(), values()], 1..30),
        double in any::<bool>(),
    ) {
        // Halves, so that sums are exact, but for large and tiny values.
        let rows: Vec<_> = rows.iter().map(|row| row.map(|value| if value.abs() < 100.0 { (value * 4.0).round() / 4.0 } else { f32::NAN })).collect();
        let mut next = functions.iter().cycle();
        for node in trees.iter_mut().flat_map(|tree| &mut tree.nodes) {
            if let Kind::Leaf(value) = node.kind
                && let Some((constant, terms, needs)) = next.next()
                && value > 0.0
            {
                node.kind = Kind::Linear(Linear {
                    constant: f64::from(*constant),
                    terms: terms.iter().map(|&(feature, coefficient)| (feature, f64::from(coefficient))).collect(),
                    otherwise: needs.then_some(value),
                });
            }
        }
        let mut forest = Forest::new(Description { linear: true, ..description(2, double, false) }).unwrap();
        for tree in &trees {
            forest.add(tree).unwrap();
        }
        let value = |kind: &Kind, row: &[f32; FEATURES]| match kind {
            Kind::Leaf(value) => *value,
            Kind::Linear(linear) => {
                let lacks = linear.terms.iter().any(|&(feature, _)| row[feature].is_nan());
                let terms = linear.terms.iter().map(|&(feature, coefficient)| f64::from(row[feature]) * coefficient);
                match linear.otherwise {
                    Some(otherwise) if lacks => otherwise,
                    _ => linear.constant + terms.filter(|term| !term.is_nan()).sum::<f64>(),
                }
            }
            other => panic!("{other:?}"),
        };
        let own: Vec<f64> = forest.predict(rows.as_flattened(), 1);
        for (row, own) in rows.iter().zip(own.chunks(2)) {
            for (output, own) in own.iter().enumerate() {
                let trees = trees.iter().filter(|tree| tree.output == Some(output));
                let expected = 0.25 + trees.map(|tree| value(leaf(tree, row), row)).sum::<f64>();
                prop_assert!((own - expected).abs() <= 1e-9, "{row:?}: {own} {expected}");
            }
        }
    }
}

#[test]
fn terms_of_a_linear_model_are_work() {
    let tree = |count| {
        let linear = Linear { constant: 1.0, terms: vec![(0, 2.0); count], otherwise: None };
        Tree { nodes: vec![SourceNode { kind: Kind::Linear(linear), cover: 1.0 }], output: Some(0) }
    };
    let mut forest = Forest::<f32>::new(Description { linear: true, ..description(1, true, false) }).unwrap();
    forest.add(&tree(1)).unwrap();
    assert_eq!((forest.trees(), forest.ways()), (1, 1));
    forest.add(&tree(16_000)).unwrap();
    assert_eq!((forest.trees(), forest.ways()), (2, 1002));
    // As many rows as are shared by threads.
    let rows: Vec<f32> = (0..300 * FEATURES).map(|at| (at * 37 % 101) as f32).collect();
    assert_eq!(forest.predict::<f64>(&rows, 4), forest.predict::<f64>(&rows, 1));
}

#[test]
fn targets_have_links_of_their_own() {
    let description = Description {
        base: vec![1.0, 3.0, 0.5, 0.5, 0.5, 0.5],
        targets: vec![2, 3],
        link: Link::Softmax,
        ..description(6, true, false)
    };
    let forest = Forest::<f32>::new(description.clone()).unwrap();
    let own: Vec<f64> = forest.predict(&[0.0; FEATURES], 1);
    let second = 1.0 / (1.0 + (-2.0_f64).exp());
    let expected = [1.0 - second, second, 0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0];
    for (own, expected) in own.iter().zip(expected) {
        assert!((own - expected).abs() <= 1e-12, "{own} {expected}");
    }
    for targets in [vec![], vec![0, 6], vec![7], vec![2, 2], vec![usize::MAX, 2]] {
        let description = Description { targets, ..description.clone() };
        let error = Forest::<f32>::new(description).unwrap_err().to_string();
        assert!(error.contains("6 outputs for targets of"), "{error}");
    }
}

#[test]
fn threads_share_the_rows() {
    let split = |feature, bound, yes, no| {
        let test = Test::AtMost(bound);
        let split = Split { feature, test, yes, no, missing_passes: true, zero_is_missing: false };
        SourceNode { kind: Kind::Split(split), cover: 1.0 }
    };
    let leaf = |value| SourceNode { kind: Kind::Leaf(value), cover: 1.0 };
    let mut forest = Forest::new(description(1, false, false)).unwrap();
    for number in 0..100 {
        let bound = f64::from(number);
        let nodes = vec![split(0, bound, 1, 2), split(1, bound, 3, 4), leaf(1.0), leaf(2.0), leaf(4.0)];
        forest.add(&Tree { nodes, output: Some(0) }).unwrap();
    }
    for rows in [0, 1, 7, 8, 9, 127, 128, 129, 3001] {
        let rows: Vec<f32> = (0..rows * FEATURES).map(|at| (at * 37 % 101) as f32).collect();
        let alone: Vec<f32> = forest.predict(&rows, 1);
        for threads in [2, 3, 64] {
            assert_eq!(forest.predict::<f32>(&rows, threads), alone);
        }
    }
}

#[test]
fn what_is_no_tree_is_refused() {
    let split = |feature, yes, no| {
        let test = Test::AtMost(0.0);
        let split = Split { feature, test, yes, no, missing_passes: true, zero_is_missing: false };
        SourceNode { kind: Kind::Split(split), cover: 1.0 }
    };
    let leaf = || SourceNode { kind: Kind::Leaf(1.0), cover: 1.0 };
    let listed = |category| {
        let test = Test::In(vec![3, category]);
        let split = Split { feature: 0, test, yes: 1, no: 2, missing_passes: true, zero_is_missing: false };
        SourceNode { kind: Kind::Split(split), cover: 1.0 }
    };
    let linear = || {
        let linear = Linear { constant: 1.0, terms: vec![(0, 1.0)], otherwise: None };
        SourceNode { kind: Kind::Linear(linear), cover: 1.0 }
    };
    let vector = |length| SourceNode { kind: Kind::Vector(vec![1.0; length]), cover: 1.0 };
    for (nodes, output, expected) in [
        (vec![], Some(0), "node 0 of 0"),
        (vec![split(0, 0, 1), leaf()], Some(0), "several splits lead to node 0"),
        (vec![split(0, 1, 1), leaf()], Some(0), "several splits lead to node 1"),
        (vec![split(0, 1, 3), leaf(), leaf()], Some(0), "node 3 of 3"),
        (vec![split(0, 1, usize::MAX), leaf()], Some(0), "a split leads to node"),
        (vec![split(3, 1, 2), leaf(), leaf()], Some(0), "feature 3 of 3"),
        (vec![leaf()], Some(2), "output 2 of 2"),
        (vec![leaf()], None, "one value"),
        (vec![vector(2)], Some(0), "2 values"),
        (vec![vector(3)], None, "3 values"),
        (vec![linear()], Some(0), "linear function"),
        (vec![listed(u32::MAX), leaf(), leaf()], Some(0), "256 MiB"),
    ] {
        let mut forest = Forest::<f32>::new(description(2, false, false)).unwrap();
        let error = forest.add(&Tree { nodes, output }).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
