//! Clip, in place of the engine's own, which drops NaN.
//!
//! A bound that is left out is the last finite number of the type. ONNX Runtime has version 11 of the operator for FP32 alone, so in
//! that version the bound is FP32's, and infinities of FP16 stay. ONNX leaves open what a bound that is NaN means: it has no effect, as
//! in ONNX Runtime.

use tract_hir::internal::*;
use tract_hir::ops::binary::wire_rank_broadcast;
use tract_hir::ops::math::{max, min};
use tract_hir::tract_core::ops::binary::{BinMiniOp, TypedBinOp};
use tract_hir::tract_core::ops::cast::wire_cast;
use tract_onnx::model::{OnnxOpRegister, ParsingContext, optional_inputs};
use tract_onnx::pb::NodeProto;

use crate::algebra::all;
use crate::pairs;

/// The first version of the operator set in which the bounds are inputs.
const BOUNDS_AS_INPUTS: i64 = 11;

/// Replaces the engine's operator.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("Clip", clip);
}

fn clip(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let bounds = if context.onnx_operator_set_version < BOUNDS_AS_INPUTS {
        let bound =
            |name, default| Ok::<_, TractError>(Bound::Value(node.get_attr_opt(name)?.unwrap_or(default)));
        [bound("min", f32::MIN)?, bound("max", f32::MAX)?]
    } else {
        let is_wide = context.onnx_operator_set_version == BOUNDS_AS_INPUTS;
        let last = if is_wide { Bound::LastOfSingle } else { Bound::Last };
        let mut inputs = optional_inputs(node).skip(1).map(|input| input.map_or(last, Bound::Input));
        [inputs.next().unwrap_or(last), inputs.next().unwrap_or(last)]
    };
    Ok((expand(Clip(bounds)), vec![]))
}

/// The operator with its lower and its upper bound.
#[derive(Clone, Debug, PartialEq)]
struct Clip([Bound; 2]);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    Value(f32),
    Input(usize),
    /// The last finite number.
    Last,
    /// The last finite number of FP32, for FP16 too.
    LastOfSingle,
}

impl Expansion for Clip {
    fn name(&self) -> StaticName {
        "Clip".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        let given = self.0.iter().filter(|bound| matches!(bound, Bound::Input(_))).count();
        check_input_arity(inputs, 1 + given)?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let datum_type = model.outlet_fact(inputs[0])?.datum_type;
        let mut clipped = tvec!(inputs[0]);
        for (bound, limit, is_lower) in [(self.0[0], "low", true), (self.0[1], "high", false)] {
            let name = format!("{prefix}.{limit}");
            let bound = match bound {
                Bound::Input(input) => inputs[input],
                Bound::Value(value) => model.add_const(format!("{name}.bound"), tensor0(value))?,
                Bound::LastOfSingle if datum_type == DatumType::F16 => continue,
                Bound::Last | Bound::LastOfSingle => match last(datum_type) {
                    Some(last) => model
                        .add_const(format!("{name}.bound"), tensor0(if is_lower { -last } else { last }))?,
                    None => continue,
                },
            };
            let bound = wire_cast(format!("{name}.cast"), model, &[bound], datum_type)?[0];
            let constant = model.outlet_fact(bound)?.konst.clone();
            let is_number = |bound: &Arc<Tensor>| all(bound, |bound| !bound.is_nan());
            let op = match is_lower {
                _ if datum_type.is_float() && !constant.as_ref().is_some_and(is_number) => {
                    TypedBinOp(Box::new(Limit { is_lower }), None)
                }
                true => max(),
                false => min(),
            };
            let pair = wire_rank_broadcast(&name, model, &[clipped[0], bound])?;
            clipped = model.wire_node(name, op, &pair)?;
        }
        Ok(clipped)
    }
}

/// The last finite number of a floating-point type.
fn last(datum_type: DatumType) -> Option<f64> {
    match datum_type {
        DatumType::F16 => Some(f16::MAX.to_f64()),
        DatumType::F32 => Some(f64::from(f32::MAX)),
        DatumType::F64 => Some(f64::MAX),
        _ => None,
    }
}

/// A bound that may be NaN, and has no effect then.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    is_lower: bool,
}

impl Limit {
    fn of<T: PartialOrd>(&self, number: T, bound: T) -> T {
        let is_beyond = if self.is_lower { number < bound } else { number > bound };
        if is_beyond { bound } else { number }
    }
}

impl BinMiniOp for Limit {
    fn name(&self) -> &'static str {
        "Clip"
    }

    fn is_commutative(&self) -> bool {
        false
    }

    fn result_datum_type(&self, number: DatumType, bound: DatumType) -> TractResult<DatumType> {
        self.operating_datum_type(number, bound)
    }

    fn eval_in_a(&self, numbers: &mut Tensor, bound: &Tensor) -> TractResult<()> {
        match numbers.datum_type() {
            DatumType::F16 => {
                pairs::combine_in_place::<f16>(numbers, bound, |number, bound| self.of(number, bound))
            }
            DatumType::F32 => {
                pairs::combine_in_place::<f32>(numbers, bound, |number, bound| self.of(number, bound))
            }
            DatumType::F64 => {
                pairs::combine_in_place::<f64>(numbers, bound, |number, bound| self.of(number, bound))
            }
            datum_type => bail!("no Clip of {datum_type:?}"),
        }
    }

    fn eval_out_of_place(&self, result: &mut Tensor, numbers: &Tensor, bound: &Tensor) -> TractResult<()> {
        // A bound is a single number, so that the result has the shape of the numbers.
        *result = numbers.clone();
        self.eval_in_a(result, bound)
    }
}
