//! Runs a forest on a batch's rows.

use std::cell::RefCell;
use std::sync::Arc;

use bytemuck::NoUninit;
use bytes::Bytes;
use nereid_backend_api::{DataType, Error, Result, Shape, Tensor};
use nereid_graph_executor::{Contents, Elements, Engine, GraphModel, Port, RunInput, Target, Words};
use nereid_trees::Number;

use crate::ports::Results;
use crate::precision::{AnyForest, Rows};

/// Cost of an explanation, in predictions.
const EXPLANATION_COST: usize = 100;

/// A forest with the outputs of its model.
#[derive(Debug)]
pub(crate) struct Served {
    forest: AnyForest,
    results: Vec<Results>,
    threads: usize,
    /// For explanations: the mean of each output.
    means: Vec<f64>,
}

impl Served {
    pub(crate) fn new(forest: AnyForest, results: Vec<Results>, threads: usize) -> Self {
        let explains = results.contains(&Results::Explanation);
        let means = if explains { forest.means() } else { Vec::new() };
        Self { forest, results, threads, means }
    }

    /// The number of ways through trees that these rows take. An explanation counts as several.
    pub(crate) fn ways(&self, rows: usize) -> usize {
        let cost = if self.means.is_empty() { 1 } else { EXPLANATION_COST };
        rows.saturating_mul(self.forest.ways()).saturating_mul(cost)
    }

    fn output<R: Number>(&self, results: Results, rows: &Rows<'_>) -> Vec<R> {
        let predict = || self.forest.predict::<R>(rows, self.threads);
        match results {
            Results::Numbers => predict(),
            Results::BothClasses => {
                predict().into_iter().flat_map(|second| [R::nearest(1.0 - second.double()), second]).collect()
            }
            Results::Above(threshold) => {
                let is_above = |second: R| second.double() > f64::from(threshold);
                predict()
                    .into_iter()
                    .map(|second| R::nearest(f64::from(u8::from(is_above(second)))))
                    .collect()
            }
            Results::Class => {
                let targets = self.forest.description().targets.iter().cycle();
                let predicted = predict();
                let scores = predicted.chunks(self.forest.description().width());
                scores.zip(targets).map(|(scores, &classes)| best(&scores[..classes])).collect()
            }
            Results::Explanation => self.forest.explain(rows, &self.means, self.threads, EXPLANATION_COST),
        }
    }
}

/// The number of the highest score; the first of equal ones.
fn best<R: Number>(scores: &[R]) -> R {
    let first = scores.first().copied().unwrap_or_default();
    let better = |(best, highest): (usize, R), (class, &score): (usize, &R)| {
        if score > highest { (class, score) } else { (best, highest) }
    };
    R::nearest(scores.iter().enumerate().fold((0, first), better).0 as f64)
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
        let data_type = self.model.inputs.first().map_or(DataType::Fp32, |input| input.port.data_type);
        let rows = self.served.forest.rows(data_type, value.as_bytes())?;
        let mut raw = Vec::with_capacity(self.model.outputs.len());
        for output in &self.model.outputs {
            let results = self.results(&output.port.name)?;
            let bytes = match output.port.data_type {
                DataType::Fp64 => Bytes::from_owner(Owned(self.served.output::<f64>(results, &rows))),
                _ => Bytes::from_owner(Owned(self.served.output::<f32>(results, &rows))),
            };
            // The graph's dimensions, with the number of rows for the open one.
            let rows = shape.first().copied().unwrap_or(1);
            let dims = output.port.dims.iter().flatten().map(|dim| dim.unwrap_or(rows));
            raw.push(Some((dims.collect(), bytes)));
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
struct Owned<R>(Vec<R>);

impl<R: NoUninit> AsRef<[u8]> for Owned<R> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
