//! Operators that the engine refuses or computes badly, put right, and graphs that its optimiser would change for wrong ones.

use tract_hir::internal::*;
use tract_hir::ops::math::{Exp, Ln, add, max, min, sub};
use tract_hir::tract_core::ops::array::{Gather, MultiBroadcastTo, Tile};
use tract_hir::tract_core::ops::binary::TypedBinOp;
use tract_hir::tract_core::ops::cnn::{Conv, PaddingSpec};
use tract_hir::tract_core::ops::element_wise::ElementWiseOp;
use tract_hir::tract_core::ops::logic::Iff;
use tract_hir::tract_core::ops::nn::{Reduce, Reducer};
use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::onnx;

use crate::values::check_indices;

/// The first version of the operator set in which the engine takes a Squeeze without axes.
const SQUEEZE_WITHOUT_AXES: i64 = 13;

/// Replaces builders of the engine.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("Squeeze", |context, node| {
        let has_axes = node.attribute.iter().any(|attribute| attribute.name == "axes");
        let version = match has_axes {
            true => context.onnx_operator_set_version,
            // Older files may leave the axes out, too.
            false => context.onnx_operator_set_version.max(SQUEEZE_WITHOUT_AXES),
        };
        let context = ParsingContext { onnx_operator_set_version: version, ..context.clone() };
        let built_in = onnx().op_register.0.get("Squeeze").copied().context("the engine has Squeeze")?;
        built_in(&context, node)
    });
}

/// Changes what the optimiser would make something else of:
///
/// - a strided convolution over every other element, which it moves across operators that need all elements, such as a Softmax,
///   or joins with the padding of an earlier one: convolutions have explicit padding of a kind that it leaves alone;
/// - a broadcast before a product, which it drops even along the axis that is summed up;
/// - a Gather whose indices are computed: where the optimiser finds that they are constant, as `x × 0` is, nothing else checks them.
///
/// # Errors
/// A constant index is out of range.
pub(crate) fn protect(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes.len() {
        let node = &model.nodes[id];
        if let Some(conv) = node.op_as::<Conv>() {
            let mut conv = conv.clone();
            let spec = &mut conv.pool_spec;
            let shape = spec.data_format.shape(model.outlet_fact(node.inputs[0])?.shape.to_tvec())?;
            let padding = spec.computed_padding(shape.hw_dims());
            let before = padding.iter().map(|dim| dim.pad_before.to_usize()).collect::<Result<_, _>>()?;
            let after = padding.iter().map(|dim| dim.pad_after.to_usize()).collect::<Result<_, _>>()?;
            spec.padding = PaddingSpec::ExplicitOnnxPool(before, after, false);
            model.nodes[id].op = Box::new(conv);
        } else if node.op_is::<MultiBroadcastTo>() || node.op_is::<Tile>() {
            let absorbs = |inlet: &InletId| {
                model.nodes[inlet.node].op_is::<TypedBinOp>() || model.nodes[inlet.node].op_is::<Iff>()
            };
            if !node.outputs[0].successors.iter().all(absorbs) {
                model.nodes[id].op = Box::new(Opaque(node.op.clone()));
            }
        } else if let Some(gather) = node.op_as::<Gather>() {
            let dim = model.outlet_fact(node.inputs[0])?.shape[gather.axis].to_usize();
            match (&model.outlet_fact(node.inputs[1])?.konst, dim) {
                (Some(indices), Ok(dim)) => check_indices(indices, dim)?,
                _ => model.nodes[id].op = Box::new(Opaque(node.op.clone())),
            }
        }
    }
    Ok(())
}

/// An operator that the optimiser knows nothing of, and whose indices are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opaque(pub(crate) Box<dyn TypedOp>);

impl Opaque {
    fn check(&self, inputs: &[TValue]) -> TractResult<()> {
        let gather = self.0.downcast_ref::<Gather>();
        gather.map_or(Ok(()), |op| check_indices(&inputs[1], inputs[0].shape()[op.axis]))
    }
}

impl Op for Opaque {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Opaque {
    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.check(&inputs)?;
        self.0.eval(context, inputs)
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        self.check(&inputs)?;
        self.0.eval_out_of_plan(inputs)
    }
}

impl TypedOp for Opaque {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let facts = self.0.output_facts(inputs)?;
        Ok(facts.into_iter().map(|fact| fact.without_value()).collect())
    }

    as_op!();
}

/// Subtracts the largest element before each ReduceLogSumExp and adds it afterwards. The engine takes the exponentials of
/// the elements themselves, which all become 0, or infinite, where they are far from 0.
pub(crate) fn stabilise(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes.len() {
        let Some((x, axes)) = log_sum_exp(model, id) else { continue };
        let name = model.nodes[id].name.clone();
        let fact = model.outlet_fact(x)?.clone();
        let (rank, datum_type) = (fact.rank(), fact.datum_type);
        let mut patch = TypedModelPatch::default();
        let x = patch.tap_model(model, x)?;
        let mut bound = |what: &str, value: f64| -> TractResult<OutletId> {
            let value = tensor0(value).cast_to_dt(datum_type)?.into_owned().broadcast_into_rank(rank)?;
            patch.add_const(format!("{name}.{what}"), value)
        };
        // A difference of infinite numbers would be NaN.
        let largest = match datum_type {
            DatumType::F16 => 65504.0,
            DatumType::F64 => f64::MAX,
            _ => f64::from(f32::MAX),
        };
        let (low, high) = (bound("low", -largest)?, bound("high", largest)?);
        let greatest = Reduce::new(axes.clone(), Reducer::Max);
        let greatest = patch.wire_node(format!("{name}.greatest"), greatest, &[x])?[0];
        let greatest = patch.wire_node(format!("{name}.raised"), max(), &[greatest, low])?[0];
        let greatest = patch.wire_node(format!("{name}.finite"), min(), &[greatest, high])?[0];
        let rest = patch.wire_node(format!("{name}.rest"), sub(), &[x, greatest])?[0];
        let rest = patch.wire_node(format!("{name}.rest_exp"), tract_hir::ops::math::exp(), &[rest])?[0];
        let sum = Reduce::new(axes, Reducer::Sum);
        let sum = patch.wire_node(format!("{name}.rest_sum"), sum, &[rest])?[0];
        let log = patch.wire_node(format!("{name}.rest_ln"), tract_hir::ops::math::ln(), &[sum])?[0];
        let result = patch.wire_node(format!("{name}.stable"), add(), &[log, greatest])?[0];
        patch.shunt_outside(model, id.into(), result)?;
        patch.apply(model)?;
    }
    Ok(())
}

/// The input and the axes of the ReduceLogSumExp that ends in this node, as the engine names its three parts.
fn log_sum_exp(model: &TypedModel, id: usize) -> Option<(OutletId, TVec<usize>)> {
    let part = |id: usize, suffix: &str| Some(&model.nodes[id]).filter(|node| node.name.ends_with(suffix));
    let ln = part(id, ".ln")?;
    ln.op_as::<ElementWiseOp>()?.0.downcast_ref::<Ln>()?;
    let sum = part(ln.inputs.first()?.node, ".sum")?;
    let reduce = sum.op_as::<Reduce>().filter(|reduce| reduce.reducer == Reducer::Sum)?;
    let exp = part(sum.inputs.first()?.node, ".exp")?;
    exp.op_as::<ElementWiseOp>()?.0.downcast_ref::<Exp>()?;
    Some((*exp.inputs.first()?, reduce.axes.clone()))
}
