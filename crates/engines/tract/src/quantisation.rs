//! QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, in place of the engine's own.
//!
//! The engine takes any operators between a DequantizeLinear and a QuantizeLinear that keep the shape for element-wise, and
//! replaces them all by a table of 256 values: a Softmax in between came out as ones. Its table also expects inputs of the
//! type of the outputs, and its QuantizeLinear multiplies by the reciprocal of the scale, which rounds other values up, and
//! overflows for large ones; so does its DynamicQuantizeLinear, whose scale of zeros is 0. The operators here have no such
//! rewrites, divide, and saturate.

use std::fmt::Debug;

use tract_hir::internal::*;
use tract_hir::ops::cast::cast;
use tract_hir::ops::math::{add, div, max, min, mul, round_half_to_even, sub};
use tract_onnx::model::OnnxOpRegister;
use tract_onnx::pb::NodeProto;

/// Replaces the engine's operators.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("QuantizeLinear", |_, node| builder(node, Direction::Quantize));
    operators.insert("DequantizeLinear", |_, node| builder(node, Direction::Dequantize));
    operators.insert("DynamicQuantizeLinear", |_, _| Ok((expand(Dynamic), vec![])));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    Quantize,
    Dequantize,
}

fn builder(node: &NodeProto, direction: Direction) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let block_size = node.get_attr_opt::<i64>("block_size")?.unwrap_or(0);
    ensure!(block_size == 0, "{}: blocked quantization is not supported", node.op_type);
    let axis = node.get_attr_opt("axis")?.unwrap_or(1);
    let has_zero_point = node.input.get(2).is_some_and(|name| !name.is_empty());
    Ok((expand(Linear { direction, has_zero_point, axis }), vec![]))
}

/// Either operator, before the types and shapes of its inputs are known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Linear {
    direction: Direction,
    has_zero_point: bool,
    axis: i64,
}

impl Expansion for Linear {
    fn name(&self) -> StaticName {
        match self.direction {
            Direction::Quantize => "QuantizeLinear".into(),
            Direction::Dequantize => "DequantizeLinear".into(),
        }
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2 + usize::from(self.has_zero_point))?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[1].datum_type, f32::datum_type())?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)?;
        match (self.direction, self.has_zero_point) {
            (Direction::Quantize, true) => {
                solver.equals(&outputs[0].datum_type, &inputs[2].datum_type)?;
            }
            (Direction::Quantize, false) => solver.equals(&outputs[0].datum_type, u8::datum_type())?,
            (Direction::Dequantize, _) => {
                solver.equals(&outputs[0].datum_type, f32::datum_type())?;
                if self.has_zero_point {
                    solver.equals(&inputs[0].datum_type, &inputs[2].datum_type)?;
                }
            }
        }
        Ok(())
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let constant = |input: usize, what: &str| {
            let constant = model.outlet_fact(inputs[input])?.konst.clone();
            constant.with_context(|| format!("{}: the {what} must be constant", self.name()))
        };
        let scale = constant(1, "scale")?;
        let zero_point = match self.has_zero_point {
            true => constant(2, "zero point")?,
            false => rctensor0(0_u8),
        };
        let quantised = match self.direction {
            Direction::Quantize => zero_point.datum_type(),
            Direction::Dequantize => model.outlet_fact(inputs[0])?.datum_type,
        };
        let range = Range::of(quantised)
            .with_context(|| format!("{}: type {quantised:?} is not supported", self.name()))?;
        if scale.len() > 1 || zero_point.len() > 1 {
            let parameters = (scale.as_ref(), zero_point.as_ref());
            return self.wire_per_axis(prefix, model, inputs[0], parameters, quantised, range);
        }
        let (Some(&scale), Some(&zero_point)) = (
            scale.cast_to::<f32>()?.try_as_plain_ram()?.as_slice::<f32>()?.first(),
            zero_point.cast_to::<f32>()?.try_as_plain_ram()?.as_slice::<f32>()?.first(),
        ) else {
            bail!("{}: the scale or the zero point is empty", self.name());
        };
        let operator = Scalar { direction: self.direction, scale, zero_point, quantised };
        model.wire_node(prefix, operator, &[inputs[0]])
    }
}

impl Linear {
    /// A scale, or a zero point, for each index of an axis.
    fn wire_per_axis(
        &self,
        prefix: &str,
        model: &mut TypedModel,
        x: OutletId,
        (scale, zero_point): (&Tensor, &Tensor),
        quantised: DatumType,
        range: Range,
    ) -> TractResult<TVec<OutletId>> {
        let rank = model.outlet_fact(x)?.rank();
        let axis = if self.axis < 0 { self.axis + rank as i64 } else { self.axis };
        let axis = usize::try_from(axis).ok().filter(|axis| *axis < rank);
        let axis = axis.with_context(|| format!("{}: axis {} of rank {rank}", self.name(), self.axis))?;
        let broadcast = |parameter: &Tensor| {
            let mut shape = vec![1; rank];
            shape[axis] = parameter.len();
            parameter.cast_to::<f32>()?.into_owned().into_shape(&shape)
        };
        let scale = model.add_const(format!("{prefix}.scale"), broadcast(scale)?)?;
        let zero_point = model.add_const(format!("{prefix}.zero_point"), broadcast(zero_point)?)?;
        let x = model.wire_node(format!("{prefix}.real"), cast(f32::datum_type()), &[x])?[0];
        if self.direction == Direction::Dequantize {
            let x = model.wire_node(format!("{prefix}.shifted"), sub(), &[x, zero_point])?[0];
            return model.wire_node(prefix, mul(), &[x, scale]);
        }
        let mut bound = |name: &str, value: f32| {
            model.add_const(format!("{prefix}.{name}"), tensor0(value).broadcast_into_rank(rank)?)
        };
        let (low, high) = (bound("low", range.low)?, bound("high", range.high)?);
        let x = model.wire_node(format!("{prefix}.scaled"), div(), &[x, scale])?[0];
        let x = model.wire_node(format!("{prefix}.rounded"), round_half_to_even(), &[x])?[0];
        let x = model.wire_node(format!("{prefix}.shifted"), add(), &[x, zero_point])?[0];
        let x = model.wire_node(format!("{prefix}.raised"), max(), &[x, low])?[0];
        let x = model.wire_node(format!("{prefix}.saturated"), min(), &[x, high])?[0];
        model.wire_node(prefix, cast(quantised), &[x])
    }
}

/// The smallest and the largest value of a quantised type.
#[derive(Clone, Copy)]
struct Range {
    low: f32,
    high: f32,
}

impl Range {
    fn of(datum_type: DatumType) -> Option<Self> {
        match datum_type {
            DatumType::U8 => Some(Self { low: 0.0, high: 255.0 }),
            DatumType::I8 => Some(Self { low: -128.0, high: 127.0 }),
            // Only dequantised.
            DatumType::I32 => Some(Self { low: f32::MIN, high: f32::MAX }),
            _ => None,
        }
    }
}

/// Either operator with one scale and one zero point for the whole tensor.
#[derive(Clone, Debug)]
struct Scalar {
    direction: Direction,
    scale: f32,
    zero_point: f32,
    quantised: DatumType,
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        let bits = |scalar: &Self| (scalar.scale.to_bits(), scalar.zero_point.to_bits());
        (self.direction, self.quantised, bits(self)) == (other.direction, other.quantised, bits(other))
    }
}

impl Eq for Scalar {}

// The loops below call no function for an element, so that the compiler makes them of vector instructions.
impl Scalar {
    /// `convert` takes the lowest bits of an integer that is in the type's range.
    fn quantise<T: Datum + Copy>(&self, input: &Tensor, convert: impl Fn(i32) -> T) -> TractResult<Tensor> {
        let range = Range::of(self.quantised).context("a quantised type")?;
        let input = input.cast_to::<f32>()?;
        // The zero point is an integer, so it makes no difference whether the value is rounded before it is limited.
        let (low, high) = (range.low - self.zero_point, range.high - self.zero_point);
        let zero_point = self.zero_point as i32;
        let quantised = |value: &f32| {
            let scaled = (value / self.scale).clamp(low, high);
            let nearest = rounded(scaled) + zero_point;
            convert(if scaled.is_nan() { 0 } else { nearest })
        };
        let values: Vec<T> = input.try_as_plain_ram()?.as_slice::<f32>()?.iter().map(quantised).collect();
        Tensor::from_shape(input.shape(), &values)
    }

    fn dequantise<T: Datum + Copy>(&self, input: &Tensor, convert: impl Fn(T) -> f32) -> TractResult<Tensor> {
        let real = |value: &T| (convert(*value) - self.zero_point) * self.scale;
        let values: Vec<f32> = input.try_as_plain_ram()?.as_slice::<T>()?.iter().map(real).collect();
        Tensor::from_shape(input.shape(), &values)
    }
}

impl Op for Scalar {
    fn name(&self) -> StaticName {
        match self.direction {
            Direction::Quantize => "Quantise".into(),
            Direction::Dequantize => "Dequantise".into(),
        }
    }

    op_as_typed_op!();
}

impl EvalOp for Scalar {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = &inputs[0];
        let output = match (self.direction, self.quantised) {
            (Direction::Quantize, DatumType::U8) => self.quantise(input, |value| value as u8)?,
            (Direction::Quantize, DatumType::I8) => self.quantise(input, |value| value as i8)?,
            (Direction::Dequantize, DatumType::U8) => self.dequantise(input, |value: u8| value.into())?,
            (Direction::Dequantize, DatumType::I8) => self.dequantise(input, |value: i8| value.into())?,
            (Direction::Dequantize, DatumType::I32) => self.dequantise(input, |value: i32| value as f32)?,
            (_, other) => bail!("{}: type {other:?} is not supported", self.name()),
        };
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for Scalar {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let datum_type = match self.direction {
            Direction::Quantize => self.quantised,
            Direction::Dequantize => f32::datum_type(),
        };
        Ok(tvec!(datum_type.fact(inputs[0].shape.clone())))
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        AxesMapping::natural(inputs, outputs)
    }

    fn change_axes(
        &self,
        model: &TypedModel,
        node: &TypedNode,
        _: InOut,
        change: &AxisOp,
    ) -> TractResult<Option<AxisChangeConsequence>> {
        Ok(Some(AxisChangeConsequence::new(model, node, None, change)))
    }

    as_op!();
}

/// The nearest integer, and of two the even one, for numbers of less than 2<sup>22</sup>.
fn rounded(number: f32) -> i32 {
    // Between 2^23 and 2^24, numbers are integers, whose lowest bits are the integer's.
    const INTEGERS: f32 = 1.5 * 8_388_608.0;
    ((number + INTEGERS).to_bits() as i32).wrapping_sub(INTEGERS.to_bits() as i32)
}

/// Numbers as UINT8, with the scale and the zero point that suit them.
pub(crate) struct Bytes {
    pub(crate) values: Vec<u8>,
    pub(crate) scale: f32,
    pub(crate) zero_point: u8,
}

impl Bytes {
    /// For a range that includes 0. Zeros have any scale: this one is ONNX Runtime's.
    pub(crate) fn of(numbers: &[f32]) -> Self {
        let low = numbers.iter().copied().fold(0.0, f32::min);
        let high = numbers.iter().copied().fold(0.0, f32::max);
        let scale = if high == low { 1.0 } else { (high - low) / 255.0 };
        let zero_point = (0.0 - low / scale).clamp(0.0, 255.0).round_ties_even();
        // NaN, which infinities can cause, becomes 0.
        let zero_point = zero_point as u8;
        let (least, most) = (0.0 - f32::from(zero_point), 255.0 - f32::from(zero_point));
        let byte = |value: &f32| {
            let scaled = (value / scale).clamp(least, most);
            if scaled.is_nan() { 0 } else { (rounded(scaled) + i32::from(zero_point)) as u8 }
        };
        Self { values: numbers.iter().map(byte).collect(), scale, zero_point }
    }
}

/// DynamicQuantizeLinear: numbers as UINT8, with the scale and the zero point that suit them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dynamic;

impl Expansion for Dynamic {
    fn name(&self) -> StaticName {
        Op::name(self)
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(3)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 3)?;
        solver.equals(&inputs[0].datum_type, f32::datum_type())?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)?;
        for (output, datum_type) in outputs.iter().zip([DatumType::U8, DatumType::F32, DatumType::U8]) {
            solver.equals(&output.datum_type, datum_type)?;
        }
        solver.equals(&outputs[1].rank, 0)?;
        solver.equals(&outputs[2].rank, 0)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        model.wire_node(prefix, self.clone(), inputs)
    }
}

impl Op for Dynamic {
    fn name(&self) -> StaticName {
        "DynamicQuantise".into()
    }

    op_as_typed_op!();
}

impl EvalOp for Dynamic {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = &inputs[0];
        let Bytes { values, scale, zero_point } = Bytes::of(input.try_as_plain_ram()?.as_slice::<f32>()?);
        let values = Tensor::from_shape(input.shape(), &values)?;
        Ok(tvec!(values.into_tvalue(), tensor0(scale).into_tvalue(), tensor0(zero_point).into_tvalue()))
    }
}

impl TypedOp for Dynamic {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let values = DatumType::U8.fact(inputs[0].shape.clone());
        Ok(tvec!(values, DatumType::F32.scalar_fact(), DatumType::U8.scalar_fact()))
    }

    as_op!();
}
