//! Forests for features in single or in double precision, and rows for them.

use std::borrow::Cow;

use nereid_backend_api::{DataType, Error, Result};
use nereid_trees::{Description, Forest, Number, shap};

/// A forest for features in one of the precisions.
#[derive(Debug)]
pub(crate) enum AnyForest {
    Single(Forest<f32>),
    Double(Forest<f64>),
}

/// Evaluates an expression for a forest in either precision.
macro_rules! with_forest {
    ($any:expr, $forest:ident => $body:expr) => {
        match $any {
            AnyForest::Single($forest) => $body,
            AnyForest::Double($forest) => $body,
        }
    };
}

impl AnyForest {
    pub(crate) fn description(&self) -> &Description {
        with_forest!(self, forest => forest.description())
    }

    pub(crate) fn trees(&self) -> usize {
        with_forest!(self, forest => forest.trees())
    }

    pub(crate) fn ways(&self) -> usize {
        with_forest!(self, forest => forest.ways())
    }

    pub(crate) fn depth(&self) -> usize {
        with_forest!(self, forest => forest.depth())
    }

    /// Whether any leaf is a linear function that needs all of its features.
    pub(crate) fn needs_features(&self) -> bool {
        with_forest!(self, forest => forest.needs_features())
    }

    pub(crate) fn has_covers(&self) -> bool {
        with_forest!(self, forest => forest.has_covers())
    }

    /// For explanations: the mean of each output over the training data.
    pub(crate) fn means(&self) -> Vec<f64> {
        with_forest!(self, forest => shap::means(forest))
    }

    /// The rows of an input, of this type, in the forest's precision.
    ///
    /// # Errors
    /// The bytes are not numbers of the type.
    pub(crate) fn rows<'a>(&self, data_type: DataType, bytes: &'a [u8]) -> Result<Rows<'a>> {
        let error = |error| Error::internal(format!("the input is not made of numbers: {error}"));
        Ok(match (self, data_type) {
            (Self::Double(_), _) => Rows::Double(bytemuck::try_cast_slice(bytes).map_err(error)?),
            (Self::Single(_), DataType::Fp64) => {
                let values: &[f64] = bytemuck::try_cast_slice(bytes).map_err(error)?;
                Rows::Single(values.iter().map(|&value| value as f32).collect())
            }
            (Self::Single(_), _) => {
                Rows::Single(Cow::Borrowed(bytemuck::try_cast_slice(bytes).map_err(error)?))
            }
        })
    }

    /// The results of rows of this forest.
    pub(crate) fn predict<R: Number>(&self, rows: &Rows<'_>, threads: usize) -> Vec<R> {
        match (self, rows) {
            (Self::Single(forest), Rows::Single(rows)) => forest.predict(rows, threads),
            (Self::Double(forest), Rows::Double(rows)) => forest.predict(rows, threads),
            _ => Vec::new(),
        }
    }

    /// The explanations of rows of this forest. `cost` is the cost of one, in predictions.
    pub(crate) fn explain<R: Number>(
        &self,
        rows: &Rows<'_>,
        means: &[f64],
        threads: usize,
        cost: usize,
    ) -> Vec<R> {
        match (self, rows) {
            (Self::Single(forest), Rows::Single(rows)) => explain(forest, rows, means, threads, cost),
            (Self::Double(forest), Rows::Double(rows)) => explain(forest, rows, means, threads, cost),
            _ => Vec::new(),
        }
    }
}

fn explain<N: Number, R: Number>(
    forest: &Forest<N>,
    rows: &[N],
    means: &[f64],
    threads: usize,
    cost: usize,
) -> Vec<R> {
    let features = forest.description().features;
    let width = forest.description().outputs() * (features + 1);
    forest.in_parallel(rows, width, threads, cost, |rows, results| {
        for (row, result) in rows.chunks(features.max(1)).zip(results.chunks_mut(width)) {
            result.copy_from_slice(&shap::explain(forest, means, row));
        }
    })
}

/// The features of rows, one behind the other, in the precision of their forest.
pub(crate) enum Rows<'a> {
    Single(Cow<'a, [f32]>),
    Double(&'a [f64]),
}
