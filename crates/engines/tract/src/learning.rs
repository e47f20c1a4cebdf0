//! Operators of classical machine learning (`ai.onnx.ml`), as exporters of scikit-learn, XGBoost and LightGBM write them.
//!
//! Results equal ONNX Runtime's, even where ONNX leaves them open: scores of two classes, targets without a weight, labels of equal
//! scores. The engine's own operators differ from them, and support few types.

mod encoding;
mod linear;
mod scaling;
mod scores;
mod trees;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use tract_hir::internal::*;
use tract_onnx::model::{OnnxOpRegister, ParsingContext, optional_outputs};
use tract_onnx::pb::{NodeProto, TensorProto};
use tract_onnx::tensor::load_tensor;

use crate::external_data::RegularFiles;

/// Adds the operators.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("Binarizer", |_, node| build(node, scaling::Binarizer::new(node)?));
    operators.insert("Imputer", |_, node| build(node, scaling::Imputer::new(node)?));
    operators.insert("LabelEncoder", label_encoder);
    operators.insert("LinearClassifier", |_, node| build(node, linear::Classifier::new(node)?));
    operators.insert("LinearRegressor", |_, node| build(node, linear::Regressor::new(node)?));
    operators.insert("Normalizer", |_, node| build(node, scaling::Normalizer::new(node)?));
    operators.insert("OneHotEncoder", |_, node| build(node, encoding::OneHotEncoder::new(node)?));
    operators.insert("Scaler", |_, node| build(node, scaling::Scaler::new(node)?));
    operators.insert("TreeEnsemble", |_, node| build(node, trees::Regressor::of_one_operator(node)?));
    operators.insert("TreeEnsembleClassifier", |_, node| build(node, trees::Classifier::new(node)?));
    operators.insert("TreeEnsembleRegressor", |_, node| build(node, trees::Regressor::new(node)?));
}

type Built = TractResult<(Box<dyn InferenceOp>, Vec<String>)>;

fn label_encoder(context: &ParsingContext<'_>, node: &NodeProto) -> Built {
    let opsets = &context.model.opset_import;
    let version = opsets.iter().find(|opset| opset.domain == node.domain).map_or(1, |opset| opset.version);
    build(node, encoding::LabelEncoder::new(node, version)?)
}

fn build(node: &NodeProto, function: impl Function) -> Built {
    let declared = Declared(Rows {
        operator: node.op_type.clone(),
        // Those that the node has names for.
        outputs: optional_outputs(node)
            .take(node.output.len())
            .enumerate()
            .filter_map(|(at, output)| output.map(|_| at))
            .collect(),
        function: Arc::new(function),
    });
    Ok((expand(declared), vec![]))
}

/// A function of one tensor, most often of its rows.
trait Function: Debug + Send + Sync + 'static {
    /// The types and shapes of the outputs for an input.
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>>;

    /// The outputs.
    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>>;
}

/// The numbers of rows and of features of a tensor with one or two dimensions; one is a row.
fn rows_and_features<D: DimLike>(shape: &[D]) -> TractResult<(D, D)> {
    match shape {
        [features] => Ok((1.into(), features.clone())),
        [rows, features] => Ok((rows.clone(), features.clone())),
        _ => bail!("its input has {} dimensions instead of one or two", shape.len()),
    }
}

/// A tensor of numbers in single precision, and its number of rows.
fn matrix(input: &Tensor, features: usize) -> TractResult<(Cow<'_, Tensor>, usize)> {
    let (rows, own) = rows_and_features(input.shape())?;
    ensure!(own == features, "it needs {features} features, and its input has {own}");
    Ok((input.cast_to::<f32>()?, rows))
}

/// A copy of the elements in single precision.
fn singles(input: &Tensor) -> TractResult<Vec<f32>> {
    Ok(input.cast_to::<f32>()?.try_as_plain_ram()?.as_slice::<f32>()?.to_vec())
}

/// The attribute of this name that is a tensor.
fn attribute_tensor(node: &NodeProto, name: &str) -> TractResult<Option<Tensor>> {
    let tensor = node.get_attr_opt::<&TensorProto>(name)?;
    // No exporter puts data of attributes into files of its own.
    tensor.map(|tensor| load_tensor(&RegularFiles, tensor, None)).transpose()
}

/// Checks that an input is of a type that ONNX has for the operator.
fn check_type(datum_type: DatumType, types: &[DatumType]) -> TractResult<()> {
    ensure!(types.contains(&datum_type), "its input is of the type {datum_type:?}");
    Ok(())
}

/// The types of numbers that most of these operators take.
const NUMBERS: [DatumType; 4] = [DatumType::F32, DatumType::F64, DatumType::I64, DatumType::I32];

/// An operator with its function, and which of its outputs the file has.
#[derive(Clone, Debug)]
struct Rows {
    operator: String,
    outputs: TVec<usize>,
    function: Arc<dyn Function>,
}

impl PartialEq for Rows {
    fn eq(&self, other: &Self) -> bool {
        self.outputs == other.outputs && Arc::ptr_eq(&self.function, &other.function)
    }
}

impl Eq for Rows {}

impl Rows {
    /// The types and shapes of the outputs that the file has.
    fn facts(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<TVec<(DatumType, TVec<TDim>)>> {
        let facts = self.function.outputs(datum_type, shape)?;
        let fact = |&at: &usize| {
            facts.get(at).cloned().with_context(|| format!("{} has {} outputs", self.operator, facts.len()))
        };
        self.outputs.iter().map(fact).collect()
    }
}

/// The operator of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared(Rows);

impl Expansion for Declared {
    fn name(&self) -> StaticName {
        self.0.operator.clone().into()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.0.outputs.len())
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, self.0.outputs.len())?;
        solver.given_2(&inputs[0].datum_type, &inputs[0].shape, move |solver, datum_type, shape| {
            for (output, (datum_type, shape)) in outputs.iter().zip(self.0.facts(datum_type, &shape)?) {
                solver.equals(&output.datum_type, datum_type)?;
                solver.equals(&output.shape, shape)?;
            }
            Ok(())
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        model.wire_node(prefix, self.0.clone(), inputs)
    }
}

impl Op for Rows {
    fn name(&self) -> StaticName {
        self.operator.clone().into()
    }

    op_as_typed_op!();
}

impl EvalOp for Rows {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let made = self.function.eval(&inputs[0]).with_context(|| self.operator.clone())?;
        let mut made: Vec<_> = made.into_iter().map(Some).collect();
        let output = |&at: &usize| {
            let output = made.get_mut(at).and_then(Option::take);
            Ok(output.with_context(|| format!("{} has no output {at}", self.operator))?.into_tvalue())
        };
        self.outputs.iter().map(output).collect()
    }
}

impl TypedOp for Rows {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let facts = self.facts(inputs[0].datum_type, &inputs[0].shape)?;
        Ok(facts.into_iter().map(|(datum_type, shape)| datum_type.fact(shape)).collect())
    }

    as_op!();
}
