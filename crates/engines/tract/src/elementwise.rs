//! Mod, Div and Pow of integers, Softplus, LogSoftmax and Mean, in place of the engine's own.
//!
//! The engine exchanges the operands of a Mod whose first one is smaller, takes the remainder of dimensions with another sign
//! than that of other integers, panics where integers are divided by 0, raises integers to negative powers with arbitrary
//! results, has an infinite Softplus of large numbers, takes the logarithm of a Softmax that is rounded to 0, and has no Mean of
//! tensors of different ranks.

use std::fmt::Debug;

use tract_hir::internal::*;
use tract_hir::ops::binary::{self, wire_cast, wire_rank_broadcast};
use tract_hir::ops::cast::cast;
use tract_hir::ops::math::{self, exp, ln, sub};
use tract_hir::tract_core::broadcast::multi_broadcast;
use tract_hir::tract_core::ops::array::MultiBroadcastTo;
use tract_hir::tract_core::ops::nn::{Reduce, Reducer};
use tract_hir::tract_num_traits::Float;
use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::pb::NodeProto;

use crate::functions;

/// The first version of the operator set in which a LogSoftmax is along one axis. Before, all axes from one on count as one.
const SINGLE_AXIS: i64 = 13;

/// Replaces builders of the engine.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("Mod", |_, node| {
        let truncates = node.get_attr_opt::<i64>("fmod")?.unwrap_or(0) != 0;
        Ok((expand(Pairs(if truncates { Function::Fmod } else { Function::Mod })), vec![]))
    });
    operators.insert("Div", |_, _| Ok((expand(Pairs(Function::Div)), vec![])));
    operators.insert("Pow", |_, _| Ok((expand(Pairs(Function::Pow)), vec![])));
    operators.insert("Softplus", |_, _| Ok((expand(Softplus), vec![])));
    operators.insert("LogSoftmax", log_softmax);
    operators.insert("Mean", |_, _| Ok((expand(Mean), vec![])));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    /// The remainder with the sign of the divisor.
    Mod,
    /// The remainder with the sign of the dividend.
    Fmod,
    Div,
    Pow,
}

impl Function {
    fn of_integers(self, one: i64, other: i64) -> TractResult<i64> {
        if self == Self::Pow {
            return power(one, other);
        }
        ensure!(other != 0, "{one} is divided by 0");
        Ok(match self {
            Self::Div => one.wrapping_div(other),
            Self::Fmod => one.wrapping_rem(other),
            _ => match one.wrapping_rem(other) {
                rest if rest != 0 && (rest < 0) != (other < 0) => rest + other,
                rest => rest,
            },
        })
    }

    /// The remainder of floating-point numbers.
    fn rest<T: Float>(self, one: T, other: T) -> T {
        let rest = one % other;
        let changes_sign =
            self == Self::Mod && rest != T::zero() && (rest < T::zero()) != (other < T::zero());
        if changes_sign { rest + other } else { rest }
    }

    fn of_unsigned(self, one: u64, other: u64) -> TractResult<u64> {
        if self == Self::Pow {
            return Ok(one.wrapping_pow(u32::try_from(other).unwrap_or(u32::MAX)));
        }
        ensure!(other != 0, "{one} is divided by 0");
        Ok(if self == Self::Div { one / other } else { one % other })
    }
}

/// Wires a power of floating-point numbers. The optimiser would take a root for one with the exponent 0.5.
fn wire_power(name: &str, model: &mut TypedModel, pair: &[OutletId]) -> TractResult<TVec<OutletId>> {
    let exponent = model.outlet_fact(pair[1])?.uniform.clone();
    if exponent.is_some_and(|exponent| exponent.cast_to_scalar::<f64>().is_ok_and(|exponent| exponent == 0.5))
    {
        let shape =
            multi_broadcast(&[&*model.outlet_fact(pair[0])?.shape, &*model.outlet_fact(pair[1])?.shape])?;
        let base =
            model.wire_node(format!("{name}.base"), MultiBroadcastTo::new(shape.into()), &pair[..1])?;
        return model.wire_node(name, functions::Function::Root.op(), &base);
    }
    model.wire_node(name, math::pow(), pair)
}

/// A power as an integer, towards 0. Larger ones than the type has are wrapped.
fn power(base: i64, exponent: i64) -> TractResult<i64> {
    match (base, exponent) {
        (0, ..0) => bail!("0 has no power of {exponent}"),
        (1, _) => Ok(1),
        (-1, _) => Ok(if exponent % 2 == 0 { 1 } else { -1 }),
        (_, ..0) => Ok(0),
        _ => Ok(base.wrapping_pow(u32::try_from(exponent).unwrap_or(u32::MAX))),
    }
}

/// A function of each two elements of tensors that are broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pairs(Function);

impl Pairs {
    fn output_type(&self, one: DatumType, other: DatumType) -> TractResult<DatumType> {
        if self.0 == Function::Pow {
            return Ok(one);
        }
        one.common_super_type(other).with_context(|| format!("{one:?} and {other:?} have no common type"))
    }

    fn each<T: Datum + Copy>(
        inputs: &[TValue],
        function: impl Fn(T, T) -> TractResult<T>,
    ) -> TractResult<TValue> {
        let shape = multi_broadcast(&[inputs[0].shape(), inputs[1].shape()])?;
        let one = inputs[0].to_plain_array_view::<T>()?;
        let other = inputs[1].to_plain_array_view::<T>()?;
        let (Some(one), Some(other)) = (one.broadcast(&*shape), other.broadcast(&*shape)) else {
            bail!("{:?} and {:?} cannot be broadcast", inputs[0].shape(), inputs[1].shape());
        };
        let values = one.iter().zip(other).map(|(&one, &other)| function(one, other));
        let values = values.collect::<TractResult<Vec<T>>>()?;
        Ok(Tensor::from_shape(&shape, &values)?.into_tvalue())
    }
}

impl Expansion for Pairs {
    fn name(&self) -> StaticName {
        Op::name(self)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        binary::rules(solver, inputs, outputs, move |one, other| self.output_type(one, other))
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let (one, other) =
            (model.outlet_fact(inputs[0])?.datum_type, model.outlet_fact(inputs[1])?.datum_type);
        let output = self.output_type(one, other)?;
        let pair = wire_rank_broadcast(prefix, model, inputs)?;
        if output.is_float() || other.is_float() {
            let computed = if output.is_float() { output } else { DatumType::F64 };
            let pair = wire_cast(prefix, model, &pair, computed)?;
            return match self.0 {
                Function::Div => model.wire_node(prefix, math::div(), &pair),
                Function::Pow => {
                    let power = wire_power(&format!("{prefix}.power"), model, &pair)?;
                    model.wire_node(prefix, cast(output), &power)
                }
                _ => model.wire_node(prefix, self.clone(), &pair),
            };
        }
        let computed = if output == DatumType::U64 { output } else { DatumType::I64 };
        let pair = wire_cast(prefix, model, &pair, computed)?;
        let result = model.wire_node(format!("{prefix}.pairs"), self.clone(), &pair)?;
        model.wire_node(prefix, cast(output), &result)
    }
}

impl Op for Pairs {
    fn name(&self) -> StaticName {
        format!("{:?}", self.0).into()
    }

    op_as_typed_op!();
}

impl EvalOp for Pairs {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let function = self.0;
        let result = match inputs[0].datum_type() {
            DatumType::I64 => Self::each(&inputs, |one, other| function.of_integers(one, other)),
            DatumType::U64 => Self::each(&inputs, |one, other| function.of_unsigned(one, other)),
            DatumType::F32 => Self::each(&inputs, |one: f32, other: f32| Ok(function.rest(one, other))),
            DatumType::F64 => Self::each(&inputs, |one: f64, other: f64| Ok(function.rest(one, other))),
            other => bail!("{function:?} of {other:?} is not supported"),
        };
        Ok(tvec!(result?))
    }
}

impl TypedOp for Pairs {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let shape = multi_broadcast(&[&*inputs[0].shape, &*inputs[1].shape])?;
        Ok(tvec!(inputs[0].datum_type.fact(&*shape)))
    }

    as_op!();
}

/// The logarithm of 1 + e^x.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Softplus;

impl Softplus {
    fn of(x: f64) -> f64 {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    }
}

impl Expansion for Softplus {
    fn name(&self) -> StaticName {
        Op::name(self)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        same_as_input(solver, inputs, outputs)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        model.wire_node(prefix, self.clone(), inputs)
    }
}

impl Op for Softplus {
    fn name(&self) -> StaticName {
        "Softplus".into()
    }

    op_as_typed_op!();
}

impl EvalOp for Softplus {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = &inputs[0];
        let wide = x.cast_to::<f64>()?;
        let values: Vec<f64> =
            wide.try_as_plain_ram()?.as_slice::<f64>()?.iter().map(|x| Self::of(*x)).collect();
        let values = Tensor::from_shape(x.shape(), &values)?;
        Ok(tvec!(values.cast_to_dt(x.datum_type())?.into_owned().into_tvalue()))
    }
}

impl TypedOp for Softplus {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].datum_type.fact(inputs[0].shape.clone())))
    }

    as_op!();
}

fn same_as_input<'r, 'p: 'r>(
    solver: &mut Solver<'r>,
    inputs: &'p [TensorProxy],
    outputs: &'p [TensorProxy],
) -> InferenceResult {
    check_input_arity(inputs, 1)?;
    check_output_arity(outputs, 1)?;
    solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
    solver.equals(&inputs[0].shape, &outputs[0].shape)
}

fn log_softmax(
    context: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let single = context.onnx_operator_set_version >= SINGLE_AXIS;
    let axis = node.get_attr_opt("axis")?.unwrap_or(if single { -1 } else { 1 });
    Ok((expand(LogSoftmax { axis, single }), vec![]))
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LogSoftmax {
    axis: i64,
    /// Whether only this axis counts, and not those behind it.
    single: bool,
}

impl Expansion for LogSoftmax {
    fn name(&self) -> StaticName {
        "LogSoftmax".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        same_as_input(solver, inputs, outputs)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let rank = model.outlet_fact(inputs[0])?.rank();
        let first = if self.axis < 0 { self.axis + rank as i64 } else { self.axis } as usize;
        let axes: TVec<usize> = if self.single { tvec![first] } else { (first..rank).collect() };
        let reduced = |reducer| Reduce::new(axes.clone(), reducer);
        let greatest = model.wire_node(format!("{prefix}.greatest"), reduced(Reducer::Max), inputs)?[0];
        let rest = model.wire_node(format!("{prefix}.rest"), sub(), &[inputs[0], greatest])?[0];
        let powers = model.wire_node(format!("{prefix}.powers"), exp(), &[rest])?;
        let sum = model.wire_node(format!("{prefix}.total"), reduced(Reducer::Sum), &powers)?;
        let log = model.wire_node(format!("{prefix}.log"), ln(), &sum)?[0];
        model.wire_node(prefix, sub(), &[rest, log])
    }
}

/// The mean of tensors that are broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mean;

impl Expansion for Mean {
    fn name(&self) -> StaticName {
        "Mean".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_output_arity(outputs, 1)?;
        for input in inputs {
            solver.equals(&input.datum_type, &outputs[0].datum_type)?;
        }
        solver.given_all(inputs.iter().map(|input| &input.shape), move |solver, shapes: Vec<TVec<TDim>>| {
            solver.equals(&outputs[0].shape, multi_broadcast(&shapes)?)
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let mut sum = inputs[0];
        for (at, input) in inputs.iter().enumerate().skip(1) {
            let name = format!("{prefix}.sum{at}");
            let pair = wire_rank_broadcast(&name, model, &[sum, *input])?;
            sum = model.wire_node(name, math::add(), &pair)?[0];
        }
        let datum_type = model.outlet_fact(sum)?.datum_type;
        let count = tensor0(inputs.len() as f64).cast_to_dt(datum_type)?.into_owned();
        let count = model.add_const(format!("{prefix}.count"), count)?;
        let pair = wire_rank_broadcast(prefix, model, &[sum, count])?;
        model.wire_node(prefix, math::div(), &pair)
    }
}
