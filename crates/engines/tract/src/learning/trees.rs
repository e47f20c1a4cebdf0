//! TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble.

mod reading;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_trees::{Description, Forest, Link, Number, Task, Tree};
use tract_hir::internal::*;
use tract_onnx::pb::NodeProto;

use self::reading::Ensemble;
use super::scores::{Labels, Transform, largest};
use super::{Function, NUMBERS, check_type, rows_and_features};

/// Most weights of leaves: 512 MiB.
const MAX_WEIGHTS: usize = 1 << 26;

/// The trees of an operator, in the precision of its input.
#[derive(Debug)]
struct Forests {
    state: Mutex<State>,
    /// The number of features that the trees test.
    features: usize,
    outputs: usize,
    /// Whether the forest counts for each output the leaves that have a weight for it, behind the sums.
    counts: bool,
}

/// Trees are kept until the type of the input is known.
#[derive(Debug)]
struct State {
    trees: Vec<Tree>,
    single: Option<Arc<Forest<f32>>>,
    double: Option<Arc<Forest<f64>>>,
}

/// The sums of rows.
#[derive(Debug)]
enum Sums {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

impl Forests {
    /// Lays out trees with this number of outputs.
    fn new(ensemble: Ensemble, outputs: usize) -> TractResult<Self> {
        // ONNX Runtime distinguishes an output that no leaf of a row has a weight for from a sum of 0.
        let always = |output| ensemble.trees.iter().any(|tree| tree.leaves().all(|leaf| leaf.has(output)));
        let counts = outputs > 1 && !(0..outputs).all(always);
        let width = if counts { 2 * outputs } else { outputs };
        let weights: usize = ensemble.trees.iter().map(|tree| tree.weights(width, counts)).sum();
        ensure!(weights <= MAX_WEIGHTS, "its leaves have {weights} weights; {MAX_WEIGHTS} are served");
        let trees: Vec<Tree> =
            ensemble.trees.into_iter().map(|tree| tree.into_tree(outputs, counts)).collect();
        let features = ensemble.features;
        let single = forest(&trees, features, width)?;
        Ok(Self {
            features,
            outputs,
            counts,
            state: Mutex::new(State { trees, single: Some(Arc::new(single)), double: None }),
        })
    }

    /// Makes the trees ready for inputs of a type.
    fn decide(&self, datum_type: DatumType) -> TractResult<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if datum_type == DatumType::F64 && state.double.is_none() {
            let width = self.outputs * if self.counts { 2 } else { 1 };
            state.double = Some(Arc::new(forest(&state.trees, self.features, width)?));
            state.single = None;
        }
        state.trees = Vec::new();
        Ok(())
    }

    fn run(&self, input: &Tensor) -> TractResult<Sums> {
        let (single, double) = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.single.clone(), state.double.clone())
        };
        match double {
            Some(forest) if input.datum_type() == DatumType::F64 => {
                let values = self.rows(input.try_as_plain_ram()?.as_slice::<f64>()?, input.shape())?;
                Ok(Sums::Double(forest.predict(&values, 1)))
            }
            _ => {
                let values = input.cast_to::<f32>()?;
                let values = self.rows(values.try_as_plain_ram()?.as_slice::<f32>()?, input.shape())?;
                let forest = single.context("its trees are for double precision")?;
                Ok(Sums::Single(forest.predict(&values, 1)))
            }
        }
    }

    /// The features that are tested, of each row.
    fn rows<'a, N: Number>(&self, values: &'a [N], shape: &[usize]) -> TractResult<Cow<'a, [N]>> {
        let (_, features) = rows_and_features(shape)?;
        ensure!(
            features >= self.features,
            "it needs {} features, and its input has {features}",
            self.features
        );
        if features == self.features {
            return Ok(values.into());
        }
        Ok(values.chunks_exact(features).flat_map(|row| row[..self.features].iter().copied()).collect())
    }
}

fn forest<N: Number>(trees: &[Tree], features: usize, outputs: usize) -> TractResult<Forest<N>> {
    let mut forest = Forest::new(Description {
        features,
        base: vec![0.0; outputs],
        targets: vec![outputs],
        linear: false,
        averaged: false,
        double: size_of::<N>() == size_of::<f64>(),
        link: Link::Identity,
        task: Task::Numbers,
        truncates: false,
    })?;
    for tree in trees {
        forest.add(tree)?;
    }
    Ok(forest)
}

/// The sums of a row, and which of them have a weight at all.
struct Row<'a, N> {
    sums: &'a [N],
    /// Empty if all have.
    counts: &'a [N],
}

impl<N: Number> Row<'_, N> {
    fn sum(&self, output: usize) -> N {
        self.sums[output]
    }

    fn has(&self, output: usize) -> bool {
        self.counts.get(output).is_none_or(|count| *count > N::default())
    }
}

/// The rows of sums.
fn rows<N: Number>(sums: &[N], outputs: usize, counts: bool) -> impl Iterator<Item = Row<'_, N>> {
    sums.chunks_exact(outputs * if counts { 2 } else { 1 }).map(move |row| {
        let (sums, counts) = row.split_at(outputs);
        Row { sums, counts }
    })
}

fn add<N: Number>(one: N, other: f64) -> N {
    N::nearest(one.double() + other)
}

#[derive(Debug)]
pub(super) struct Regressor {
    forests: Forests,
    base: Vec<f64>,
    /// The divisor of sums.
    divisor: f64,
    transform: Transform,
    /// Whether the output has the type of the input.
    keeps_type: bool,
}

impl Regressor {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        let targets = usize::try_from(node.get_attr_opt::<i64>("n_targets")?.unwrap_or(1))?;
        let averages = match node.get_attr_opt::<&str>("aggregate_function")?.unwrap_or("SUM") {
            "SUM" => false,
            "AVERAGE" => true,
            other => bail!("the embedded engine has no aggregate_function '{other}'"),
        };
        let ensemble = Ensemble::of_lists(node, "target", targets)?;
        let base = reading::numbers(node, "base_values")?;
        Self::with(ensemble, targets, averages, base, Transform::new(node)?, false)
    }

    /// TreeEnsemble, which has another form for the same.
    pub(super) fn of_one_operator(node: &NodeProto) -> TractResult<Self> {
        let targets = usize::try_from(node.get_attr_opt::<i64>("n_targets")?.unwrap_or(1))?;
        let averages = match node.get_attr_opt::<i64>("aggregate_function")?.unwrap_or(1) {
            0 => true,
            1 => false,
            other => bail!("the embedded engine has no aggregate_function {other}"),
        };
        let transform = Transform::of_number(node.get_attr_opt::<i64>("post_transform")?.unwrap_or(0))?;
        let ensemble = Ensemble::of_leaves(node, targets)?;
        Self::with(ensemble, targets, averages, Vec::new(), transform, true)
    }

    fn with(
        ensemble: Ensemble,
        targets: usize,
        averages: bool,
        base: Vec<f64>,
        transform: Transform,
        keeps_type: bool,
    ) -> TractResult<Self> {
        ensure!(
            base.is_empty() || base.len() == targets,
            "it has {} base_values for {targets} targets",
            base.len()
        );
        let divisor = if averages { ensemble.trees.len().max(1) as f64 } else { 1.0 };
        Ok(Self { forests: Forests::new(ensemble, targets)?, base, divisor, transform, keeps_type })
    }

    /// The results of sums.
    fn results<N: Number>(&self, sums: &[N]) -> Vec<N> {
        let Forests { outputs, counts, .. } = self.forests;
        let result = |row: &Row<'_, N>, output: usize| {
            let base = self.base.get(output).copied().unwrap_or(0.0);
            match row.has(output) {
                true => add(N::nearest(row.sum(output).double() / self.divisor), base),
                false => N::default(),
            }
        };
        rows(sums, outputs, counts)
            .flat_map(|row| (0..outputs).map(|output| result(&row, output)).collect::<Vec<_>>())
            .collect()
    }
}

impl Function for Regressor {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        let is_double = datum_type == DatumType::F64 && self.keeps_type;
        check_type(datum_type, if self.keeps_type { &NUMBERS[..2] } else { &NUMBERS })?;
        ensure!(
            !is_double || self.transform == Transform::None,
            "the embedded engine has no {:?} in double precision",
            self.transform
        );
        self.forests.decide(datum_type)?;
        let (rows, _) = rows_and_features(shape)?;
        let made = if is_double { DatumType::F64 } else { DatumType::F32 };
        Ok(vec![(made, tvec![rows, self.forests.outputs.to_dim()])])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let outputs = self.forests.outputs;
        let mut results: Vec<f32> = match self.forests.run(input)? {
            Sums::Double(sums) if self.keeps_type => {
                let results = self.results(&sums);
                return Ok(vec![Tensor::from_shape(&[results.len() / outputs, outputs], &results)?]);
            }
            Sums::Double(sums) => self.results(&sums).into_iter().map(|result| result as f32).collect(),
            Sums::Single(sums) => self.results(&sums),
        };
        if self.transform != Transform::None {
            results.chunks_exact_mut(outputs).for_each(|row| self.transform.apply(row));
        }
        Ok(vec![Tensor::from_shape(&[results.len() / outputs, outputs], &results)?])
    }
}

#[derive(Debug)]
pub(super) struct Classifier {
    forests: Forests,
    labels: Labels,
    base: Vec<f64>,
    /// With two classes: the class that has weights, and whether all weights are positive or 0.
    of_two: Option<(usize, bool)>,
    transform: Transform,
}

impl Classifier {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        let labels = Labels::new(node, "classlabels_int64s", "classlabels_strings")?;
        let classes = labels.len();
        ensure!(classes > 1, "it has a single class");
        let transform = Transform::new(node)?;
        ensure!(
            classes > 2 || transform != Transform::Probit,
            "the embedded engine has no PROBIT of two classes"
        );
        let ensemble = Ensemble::of_lists(node, "class", classes)?;
        let base = reading::numbers(node, "base_values")?;
        ensure!(
            base.is_empty() || base.len() == classes || (classes == 2 && base.len() == 1),
            "it has {} base_values for {classes} classes",
            base.len()
        );
        let of_two = if classes == 2 {
            let leaves = || ensemble.trees.iter().flat_map(|tree| tree.leaves());
            let of = |class| leaves().any(|leaf| leaf.has(class));
            // Labels of ONNX Runtime are wrong then, so no exporter writes it.
            ensure!(of(0) != of(1), "the embedded engine needs the weights of one of two classes");
            let class = usize::from(of(1));
            Some((class, leaves().all(|leaf| leaf.weight(class) >= 0.0)))
        } else {
            None
        };
        Ok(Self { forests: Forests::new(ensemble, classes)?, labels, base, of_two, transform })
    }

    fn base(&self, class: usize) -> f64 {
        self.base.get(class).copied().unwrap_or(0.0)
    }

    /// The class of a row, and its scores.
    fn classify<N: Number>(&self, row: &Row<'_, N>, scores: &mut Vec<f32>) -> usize {
        if let Some((class, is_positive)) = self.of_two {
            return self.classify_as_two(row, class, is_positive, scores);
        }
        let start = scores.len();
        let score = |class| {
            let sum = row.sum(class);
            if self.base.is_empty() { sum } else { add(sum, self.base(class)) }
        };
        scores.extend((0..self.labels.len()).map(|class| score(class).double() as f32));
        let counted = (0..self.labels.len()).filter(|&class| row.has(class) || !self.base.is_empty());
        let class = largest(counted.map(|class| (class, scores[start + class])));
        self.transform.apply(&mut scores[start..]);
        class
    }

    /// ONNX Runtime's ways with two classes of which one has weights.
    fn classify_as_two<N: Number>(
        &self,
        row: &Row<'_, N>,
        weighted: usize,
        is_positive: bool,
        scores: &mut Vec<f32>,
    ) -> usize {
        let has = row.has(weighted);
        let sum = if has { row.sum(weighted).double() } else { 0.0 };
        let second = match (weighted, self.base.len()) {
            // The base value takes the place of the sum.
            (1, 2) if has => self.base(1),
            (0, 1 | 2) if has => add(N::nearest(sum), self.base(0)).double(),
            _ => sum,
        };
        let class = usize::from(second > if is_positive { 0.5 } else { 0.0 });
        let score = second as f32;
        if (weighted == 1 && has) || self.base.len() == 2 {
            let start = scores.len();
            scores.extend([if weighted == 0 { score } else { 0.0 }, if weighted == 1 { score } else { 0.0 }]);
            self.transform.apply(&mut scores[start..]);
        } else {
            scores.extend(self.transform.of_two(score, if is_positive { 1.0 - score } else { -score }));
        }
        class
    }

    fn classes_and_scores<N: Number>(&self, sums: &[N]) -> (Vec<usize>, Vec<f32>) {
        let mut scores = Vec::with_capacity(sums.len());
        let rows = rows(sums, self.labels.len(), self.forests.counts);
        let classes = rows.map(|row| self.classify(&row, &mut scores)).collect();
        (classes, scores)
    }
}

impl Function for Classifier {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &NUMBERS)?;
        self.forests.decide(datum_type)?;
        let (rows, _) = rows_and_features(shape)?;
        let scores = tvec![rows.clone(), self.labels.len().to_dim()];
        Ok(vec![(self.labels.datum_type(), tvec![rows]), (DatumType::F32, scores)])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let (classes, scores) = match self.forests.run(input)? {
            Sums::Single(sums) => self.classes_and_scores(&sums),
            Sums::Double(sums) => self.classes_and_scores(&sums),
        };
        let scores = Tensor::from_shape(&[classes.len(), self.labels.len()], &scores)?;
        Ok(vec![self.labels.of(&classes), scores])
    }
}
