//! Functions of elements that are right for all numbers, in place of the engine's own.
//!
//! Some of the engine's kernels clamp their arguments: NaN becomes a number, and results never reach 0 or 1, which shows in products
//! with large numbers. Others overflow near the ends of their type, or lack FP64.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2};
use std::ops::{Add, Mul};

use tract_hir::internal::tract_linalg::element_wise::ElementWise;
use tract_hir::internal::tract_linalg::routines::Func;
use tract_hir::internal::*;
use tract_hir::ops::math::{Acosh, Asinh, Erf, RoundHalfToEven, Tanh};
use tract_hir::tract_core::ops::element_wise::{ElementWiseMiniOp, ElementWiseOp};
use tract_hir::tract_core::ops::nn::gelu_approximate::gelu_approximate;
use tract_hir::tract_core::ops::nn::gelu_exact::gelu_exact;
use tract_hir::tract_core::ops::nn::{GeluApproximate, HardSwish, LeakyRelu, Sigmoid, Silu};
use tract_hir::tract_num_traits::Float;
use tract_onnx::model::OnnxOpRegister;

/// Elements that a kernel and its correction process before the next ones, so that they stay in the cache.
const CHUNK: usize = 1024;

/// Arguments of Tanh beyond which the result is 1 or -1 in FP32.
const TANH_LIMIT: f32 = 9.1;

/// Arguments of Erf below which the kernel, whose error is absolute, has few digits, or none, that are right.
const ERF_LIMIT: f32 = 0.5;

/// Arguments beyond which a hyperbolic arc is a logarithm to rounding, of any type.
const LARGE: f64 = 1e10;

/// Replaces builders of the engine.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("IsNaN", |_, _| {
        Ok((Test { nan: true, positive: false, negative: false }.op().into_hir(), vec![]))
    });
    operators.insert("IsInf", |_, node| {
        let detects = |name| node.get_attr_opt::<i64>(name).map(|detects| detects.unwrap_or(1) != 0);
        let (positive, negative) = (detects("detect_positive")?, detects("detect_negative")?);
        Ok((Test { nan: false, positive, negative }.op().into_hir(), vec![]))
    });
    operators.insert("Gelu", |_, node| {
        let approximation = node.get_attr_opt::<String>("approximate")?.unwrap_or_default();
        let is_approximate = approximation == "tanh";
        Ok((if is_approximate { gelu_approximate(false).into_hir() } else { expand(Gelu) }, vec![]))
    });
}

/// A Gelu that is not approximated. The engine's takes a factor of FP32 for all types.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gelu;

impl Expansion for Gelu {
    fn name(&self) -> StaticName {
        "Gelu".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let is_double = model.outlet_fact(inputs[0])?.datum_type == DatumType::F64;
        model.wire_node(prefix, if is_double { Function::ExactGelu.op() } else { gelu_exact() }, inputs)
    }
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Acosh,
    Asinh,
    Erf,
    /// x times the normal distribution.
    ExactGelu,
    /// x times the normal distribution, approximated with a hyperbolic tangent of x and this power of x.
    Gelu(i32),
    HardSwish,
    LeakyRelu(f32),
    /// x to the power of 0.5, which differs from the square root at minus infinity.
    Root,
    /// To the nearest integer, and to the even one of two.
    Round,
    Sigmoid,
    /// x times its Sigmoid.
    Swish,
    Tanh,
}

impl Eq for Function {}

impl Function {
    /// The function in place of the engine's, if that is not right for all numbers of a type.
    pub(crate) fn in_place_of(op: &dyn ElementWiseMiniOp, datum_type: DatumType) -> Option<Self> {
        let is_double = datum_type == DatumType::F64;
        Some(match () {
            () if op.is::<Acosh>() => Self::Acosh,
            () if op.is::<Asinh>() => Self::Asinh,
            () if op.is::<Erf>() => Self::Erf,
            () if op.is::<HardSwish>() => Self::HardSwish,
            () if op.is::<Sigmoid>() => Self::Sigmoid,
            () if op.is::<Silu>() => Self::Swish,
            () if op.is::<Tanh>() && !is_double => Self::Tanh,
            () if op.is::<RoundHalfToEven>() && is_double => Self::Round,
            () => {
                if let Some(op) = op.downcast_ref::<GeluApproximate>() {
                    Self::Gelu(if op.fast_impl { 2 } else { 3 })
                } else {
                    Self::LeakyRelu(op.downcast_ref::<LeakyRelu>().filter(|_| is_double)?.alpha)
                }
            }
        })
    }

    pub(crate) fn op(self) -> ElementWiseOp {
        ElementWiseOp(Box::new(self), None)
    }

    fn of_double(self, x: f64) -> f64 {
        let logarithm = |x: f64| x.ln() + LN_2;
        match self {
            Self::Acosh if x > LARGE => logarithm(x),
            Self::Acosh => x.acosh(),
            Self::Asinh if x.abs() > LARGE => logarithm(x.abs()).copysign(x),
            Self::Asinh => x.asinh(),
            Self::Erf => libm::erf(x),
            Self::ExactGelu => 0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2),
            Self::Gelu(power) => x / (1.0 + (-2.0 * gelu_argument(x, power, GELU)).exp()),
            Self::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
            Self::LeakyRelu(alpha) => {
                if x < 0.0 {
                    x * f64::from(alpha)
                } else {
                    x
                }
            }
            Self::Root if x == f64::NEG_INFINITY => f64::INFINITY,
            Self::Root => x.sqrt() + 0.0,
            Self::Round => x.round_ties_even(),
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Swish => x / (1.0 + (-x).exp()),
            Self::Tanh => x.tanh(),
        }
    }

    fn of_floats(self, xs: &mut [f32], kernels: &Kernels) -> TractResult<()> {
        let mut scratch = [0.0; CHUNK];
        for xs in xs.chunks_mut(CHUNK) {
            let scratch = &mut scratch[..xs.len()];
            match self {
                Self::Sigmoid => {
                    xs.iter_mut().for_each(|x| *x = -*x);
                    kernels.exp.run(xs)?;
                    xs.iter_mut().for_each(|x| *x = 1.0 / (1.0 + *x));
                }
                Self::Swish => {
                    map(xs, scratch, |x| -x);
                    kernels.exp.run(scratch)?;
                    join(xs, scratch, |x, power| x / (1.0 + power));
                }
                Self::Gelu(power) => {
                    let factors = (GELU.0 as f32, GELU.1 as f32);
                    map(xs, scratch, |x| -2.0 * gelu_argument(x, power, factors));
                    kernels.exp.run(scratch)?;
                    join(xs, scratch, |x, power| x / (1.0 + power));
                }
                Self::Tanh
                    if xs.iter().map(|x| u32::from(x.is_nan() | (x.abs() >= TANH_LIMIT))).sum::<u32>()
                        == 0 =>
                {
                    kernels.tanh.run(xs)?;
                }
                Self::Tanh => {
                    map(xs, scratch, |x| x);
                    kernels.tanh.run(xs)?;
                    join(xs, scratch, |tanh, x| {
                        let limit = if x.is_nan() { x } else { 1_f32.copysign(x) };
                        if x.abs() < TANH_LIMIT { tanh } else { limit }
                    });
                }
                Self::Erf => {
                    map(xs, scratch, |x| x);
                    kernels.erf.run(xs)?;
                    join(xs, scratch, |erf, x| if x.abs() < ERF_LIMIT { erf_near_zero(x) } else { erf });
                }
                Self::HardSwish => xs.iter_mut().for_each(|x| {
                    // Comparisons that the compiler turns into single instructions. The product keeps NaN.
                    let share = *x * (1.0 / 6.0) + 0.5;
                    let share = if share > 0.0 { share } else { 0.0 };
                    *x *= if share < 1.0 { share } else { 1.0 };
                }),
                Self::Root => {
                    let root = |x: f32| if x == f32::NEG_INFINITY { f32::INFINITY } else { x.sqrt() + 0.0 };
                    xs.iter_mut().for_each(|x| *x = root(*x));
                }
                _ => xs.iter_mut().for_each(|x| *x = self.of_double(f64::from(*x)) as f32),
            }
        }
        Ok(())
    }
}

/// The factors of an approximated Gelu: of the higher power, and of the hyperbolic tangent's argument.
const GELU: (f64, f64) = (0.044715, FRAC_2_SQRT_PI * FRAC_1_SQRT_2);

/// The error function by its series, to rounding.
fn erf_near_zero(x: f32) -> f32 {
    const TERMS: [f32; 7] =
        [1.0 / 9360.0, -1.0 / 1320.0, 1.0 / 216.0, -1.0 / 42.0, 1.0 / 10.0, -1.0 / 3.0, 1.0];
    let square = x * x;
    FRAC_2_SQRT_PI as f32 * x * TERMS.into_iter().fold(0.0, |sum, term| sum * square + term)
}

/// The argument of the hyperbolic tangent in an approximated Gelu.
fn gelu_argument<T: Copy + Add<Output = T> + Mul<Output = T>>(x: T, power: i32, factors: (T, T)) -> T {
    factors.1 * (x + factors.0 * if power == 2 { x * x } else { x * x * x })
}

fn map(xs: &[f32], results: &mut [f32], function: impl Fn(f32) -> f32) {
    results.iter_mut().zip(xs).for_each(|(result, x)| *result = function(*x));
}

fn join(xs: &mut [f32], others: &[f32], function: impl Fn(f32, f32) -> f32) {
    xs.iter_mut().zip(others).for_each(|(x, other)| *x = function(*x, *other));
}

/// The engine's kernels that are right in the ranges for which they are used.
struct Kernels {
    exp: Box<dyn ElementWise<f32>>,
    tanh: Box<dyn ElementWise<f32>>,
    erf: Box<dyn ElementWise<f32>>,
}

impl Kernels {
    fn new() -> TractResult<Self> {
        Ok(Self { exp: Func::Exp.ew_f32()?, tanh: Func::Tanh.ew_f32()?, erf: Func::Erf.ew_f32()? })
    }
}

impl ElementWiseMiniOp for Function {
    fn name(&self) -> String {
        format!("{self:?}")
    }

    fn eval_in_place(&self, tensor: &mut Tensor, _: Option<DatumType>) -> TractResult<()> {
        match tensor.datum_type() {
            DatumType::F64 => {
                let mut plain = tensor.try_as_plain_ram_mut()?;
                plain.as_slice_mut::<f64>()?.iter_mut().for_each(|x| *x = self.of_double(*x));
            }
            DatumType::F32 => {
                self.of_floats(tensor.try_as_plain_ram_mut()?.as_slice_mut()?, &Kernels::new()?)?;
            }
            DatumType::F16 => {
                let mut wide = tensor.cast_to::<f32>()?.into_owned();
                self.eval_in_place(&mut wide, None)?;
                *tensor = wide.cast_to::<f16>()?.into_owned();
            }
            other => bail!("{self:?} of {other:?} is not supported"),
        }
        Ok(())
    }
}

/// Whether a number is NaN, or an infinity.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    nan: bool,
    positive: bool,
    negative: bool,
}

impl Test {
    fn op(self) -> ElementWiseOp {
        ElementWiseOp(Box::new(self), None)
    }

    fn of<T: Datum + Float>(&self, tensor: &Tensor) -> TractResult<Tensor> {
        let holds = |x: &T| {
            self.nan && x.is_nan()
                || self.positive && *x == T::infinity()
                || self.negative && *x == T::neg_infinity()
        };
        let results: Vec<bool> = tensor.try_as_plain_ram()?.as_slice::<T>()?.iter().map(holds).collect();
        Tensor::from_shape(tensor.shape(), &results)
    }
}

impl ElementWiseMiniOp for Test {
    fn name(&self) -> String {
        if self.nan { "IsNaN" } else { "IsInf" }.into()
    }

    fn output_type(&self, _: DatumType) -> Option<DatumType> {
        Some(DatumType::Bool)
    }

    fn eval_out_of_place(&self, tensor: &Tensor, _: Option<DatumType>) -> TractResult<Tensor> {
        match tensor.datum_type() {
            DatumType::F16 => self.of::<f16>(tensor),
            DatumType::F32 => self.of::<f32>(tensor),
            DatumType::F64 => self.of::<f64>(tensor),
            other => bail!("{} of {other:?} is not supported", self.name()),
        }
    }
}
