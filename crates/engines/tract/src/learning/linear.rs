//! LinearClassifier and LinearRegressor.

use tract_hir::internal::*;
use tract_onnx::pb::NodeProto;

use super::scores::{Labels, Transform, largest};
use super::{Function, NUMBERS, check_type, matrix, rows_and_features};

/// A product with coefficients for each output.
#[derive(Debug)]
struct Product {
    features: usize,
    /// A row for each output.
    coefficients: Vec<f32>,
    intercepts: Vec<f32>,
}

impl Product {
    fn new(coefficients: Vec<f32>, intercepts: Vec<f32>) -> TractResult<Self> {
        let outputs = intercepts.len();
        ensure!(outputs > 0, "it has no outputs");
        let features = coefficients.len() / outputs;
        ensure!(
            features > 0 && features * outputs == coefficients.len(),
            "{} coefficients do not fit {outputs} outputs",
            coefficients.len()
        );
        Ok(Self { features, coefficients, intercepts })
    }

    fn outputs(&self) -> usize {
        self.intercepts.len()
    }

    /// The scores of rows, one row behind the other.
    fn scores(&self, input: &Tensor) -> TractResult<Vec<f32>> {
        let (values, rows) = matrix(input, self.features)?;
        let mut scores = Vec::with_capacity(rows * self.outputs());
        for row in values.try_as_plain_ram()?.as_slice::<f32>()?.chunks_exact(self.features) {
            for (coefficients, intercept) in
                self.coefficients.chunks_exact(self.features).zip(&self.intercepts)
            {
                let product: f32 = row.iter().zip(coefficients).map(|(value, factor)| value * factor).sum();
                scores.push(product + intercept);
            }
        }
        Ok(scores)
    }
}

#[derive(Debug)]
pub(super) struct Regressor {
    product: Product,
    transform: Transform,
}

impl Regressor {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        let targets = usize::try_from(node.get_attr_opt::<i64>("targets")?.unwrap_or(1))?;
        let intercepts =
            node.get_attr_opt_vec::<f32>("intercepts")?.unwrap_or_else(|| vec![0.0; targets.min(1 << 20)]);
        ensure!(intercepts.len() == targets, "it has {} intercepts for {targets} targets", intercepts.len());
        let product = Product::new(node.get_attr_vec("coefficients")?, intercepts)?;
        Ok(Self { product, transform: Transform::new(node)? })
    }
}

impl Function for Regressor {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &[DatumType::F32])?;
        let (rows, _) = rows_and_features(shape)?;
        Ok(vec![(DatumType::F32, tvec![rows, self.product.outputs().to_dim()])])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let mut scores = self.product.scores(input)?;
        scores.chunks_exact_mut(self.product.outputs()).for_each(|row| self.transform.apply(row));
        Ok(vec![Tensor::from_shape(
            &[scores.len() / self.product.outputs(), self.product.outputs()],
            &scores,
        )?])
    }
}

#[derive(Debug)]
pub(super) struct Classifier {
    product: Product,
    labels: Labels,
    transform: Transform,
}

impl Classifier {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        let labels = Labels::new(node, "classlabels_ints", "classlabels_strings")?;
        let intercepts =
            node.get_attr_opt_vec::<f32>("intercepts")?.unwrap_or_else(|| vec![0.0; labels.len()]);
        let product = Product::new(node.get_attr_vec("coefficients")?, intercepts)?;
        let classes = product.outputs();
        // One score stands for both of two classes.
        ensure!(
            labels.len() > 1 && (labels.len() == classes || (labels.len() == 2 && classes == 1)),
            "it has {} labels for {classes} scores",
            labels.len()
        );
        Ok(Self { product, labels, transform: Transform::new(node)? })
    }
}

impl Function for Classifier {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &NUMBERS)?;
        let (rows, _) = rows_and_features(shape)?;
        let scores = tvec![rows.clone(), self.labels.len().to_dim()];
        Ok(vec![(self.labels.datum_type(), tvec![rows]), (DatumType::F32, scores)])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let scores = self.product.scores(input)?;
        let outputs = self.product.outputs();
        let mut classes = Vec::with_capacity(scores.len() / outputs);
        let mut made = Vec::with_capacity(classes.capacity() * self.labels.len());
        for row in scores.chunks_exact(outputs) {
            if let &[score] = row {
                classes.push(usize::from(score > 0.0));
                made.extend(self.transform.of_two(score, 1.0 - score));
            } else {
                classes.push(largest(row.iter().copied().enumerate()));
                let start = made.len();
                made.extend_from_slice(row);
                self.transform.apply(&mut made[start..]);
            }
        }
        let scores = Tensor::from_shape(&[classes.len(), self.labels.len()], &made)?;
        Ok(vec![self.labels.of(&classes), scores])
    }
}
