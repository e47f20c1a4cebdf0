//! Runs a forest on a batch's rows.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use nereid_backend_api::{Error, Result, Shape, Tensor};
use nereid_graph_executor::{Contents, Elements, Engine, GraphModel, Port, RunInput, Target, Words};
use nereid_trees::{Forest, shap};

use crate::ports::Results;

/// Cost of an explanation, in predictions.
const EXPLANATION_COST: usize = 100;

/// A forest with the outputs of its model.
#[derive(Debug)]
pub(crate) struct Served {
    forest: Forest,
    results: Vec<Results>,
    threads: usize,
    /// For explanations: the mean of each output.
    means: Vec<f64>,
}

impl Served {
    pub(crate) fn new(forest: Forest, results: Vec<Results>, threads: usize) -> Self {
        let explains = results.contains(&Results::Explanation);
        let means = if explains { shap::means(&forest) } else { Vec::new() };
        Self { forest, results, threads, means }
    }

    /// The number of ways through trees that these rows take. An explanation counts as several.
    pub(crate) fn ways(&self, rows: usize) -> usize {
        let cost = if self.means.is_empty() { 1 } else { EXPLANATION_COST };
        rows.saturating_mul(self.forest.trees()).saturating_mul(cost)
    }

    fn output(&self, results: Results, rows: &[f32], predicted: &[f32]) -> Vec<f32> {
        let outputs = self.forest.description().outputs();
        match results {
            Results::Numbers => predicted.to_vec(),
            Results::BothClasses => predicted.iter().flat_map(|&second| [1.0 - second, second]).collect(),
            Results::Above(threshold) => {
                predicted.iter().map(|&second| if second > threshold { 1.0 } else { 0.0 }).collect()
            }
            Results::Class => {
                let targets = self.forest.description().targets.iter().cycle();
                let scores = predicted.chunks(self.forest.description().width());
                scores.zip(targets).map(|(scores, &classes)| best(&scores[..classes])).collect()
            }
            Results::Explanation => {
                let (features, width) =
                    (self.forest.description().features, outputs * (self.forest.description().features + 1));
                self.forest.in_parallel(rows, width, self.threads, EXPLANATION_COST, |rows, results| {
                    for (row, result) in rows.chunks(features.max(1)).zip(results.chunks_mut(width)) {
                        result.copy_from_slice(&shap::explain(&self.forest, &self.means, row));
                    }
                })
            }
        }
    }
}

/// The number of the highest score; the first of equal ones.
fn best(scores: &[f32]) -> f32 {
    let first = scores.first().copied().unwrap_or_default();
    let better = |(best, highest): (usize, f32), (class, &score): (usize, &f32)| {
        if score > highest { (class, score) } else { (best, highest) }
    };
    scores.iter().enumerate().fold((0, first), better).0 as f32
}

/// An instance.
pub(crate) struct ForestEngine {
    served: Arc<Served>,
    model: Arc<GraphModel>,
    /// Memory of the last copy of an input.
    spare: RefCell<Words>,
}

impl ForestEngine {
    pub(crate) fn new(served: Arc<Served>, model: Arc<GraphModel>) -> Self {
        Self { served, model, spare: RefCell::default() }
    }

    /// The results of an output of this name.
    fn results(&self, name: &str) -> Result<Results> {
        let is_explanation =
            |results: &&Results| (**results == Results::Explanation) == (name == "treeshap_output");
        self.served
            .results
            .iter()
            .find(is_explanation)
            .copied()
            .ok_or_else(|| Error::internal(format!("the forest has no output '{name}'")))
    }
}

impl Engine for ForestEngine {
    type Value = Elements;
    type Raw = (Shape, Bytes);

    fn check(&self, _port: &Port, _tensor: &Tensor) -> Result<()> {
        Ok(())
    }

    fn gather(&self, port: &Port, _shape: &Shape, parts: &[&Tensor]) -> Result<Elements> {
        Elements::join(port.data_type, parts, || self.spare.take())
    }

    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<Elements>>>,
        _targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<(Shape, Bytes)>>> {
        let Some(Some(RunInput { shape, value })) = inputs.into_iter().next() else {
            return Err(Error::internal("a run without its input"));
        };
        let rows: &[f32] = bytemuck::try_cast_slice(value.as_bytes())
            .map_err(|error| Error::internal(format!("the input is not made of numbers: {error}")))?;
        let predicted = self.served.forest.predict(rows, self.served.threads);
        let mut raw = Vec::with_capacity(self.model.outputs.len());
        for output in &self.model.outputs {
            let results = self.served.output(self.results(&output.port.name)?, rows, &predicted);
            // The graph's dimensions, with the number of rows for the open one.
            let rows = shape.first().copied().unwrap_or(1);
            let dims = output.port.dims.iter().flatten().map(|dim| dim.unwrap_or(rows));
            raw.push(Some((dims.collect(), Bytes::from_owner(Owned(results)))));
        }
        if let Elements::Copied(words, _) = value {
            self.spare.replace(words);
        }
        Ok(raw)
    }

    fn read(&self, _port: &Port, (shape, bytes): (Shape, Bytes)) -> Result<(Shape, Contents)> {
        Ok((shape, Contents::Fixed(bytes)))
    }
}

/// Numbers as bytes, without a copy.
struct Owned(Vec<f32>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
