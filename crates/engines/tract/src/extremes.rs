//! Largest and smallest numbers, in place of the engine's own.
//!
//! The engine drops NaN from pairs of numbers and from reductions, reduces minus infinities to the smallest finite number, and sorts
//! NaN by a comparison that is not a total order.

use std::borrow::Cow;
use std::cmp::Ordering;

use tract_hir::internal::*;
use tract_hir::tract_core::ops::array::Topk;
use tract_hir::tract_core::ops::binary::BinMiniOp;
use tract_hir::tract_core::ops::nn::{Reduce, Reducer};
use tract_hir::tract_num_traits::Float;

use crate::pairs;

/// The larger or the smaller one of two numbers, or NaN if one of them is NaN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extreme {
    Max,
    Min,
}

pub(crate) fn larger<T: Float>(one: T, other: T) -> T {
    if one >= other || one.is_nan() { one } else { other }
}

pub(crate) fn smaller<T: Float>(one: T, other: T) -> T {
    if one <= other || one.is_nan() { one } else { other }
}

impl BinMiniOp for Extreme {
    fn name(&self) -> &'static str {
        match self {
            Self::Max => "Max",
            Self::Min => "Min",
        }
    }

    fn result_datum_type(&self, one: DatumType, other: DatumType) -> TractResult<DatumType> {
        self.operating_datum_type(one, other)
    }

    fn eval_in_a(&self, one: &mut Tensor, other: &Tensor) -> TractResult<()> {
        match (self, one.datum_type()) {
            (Self::Max, DatumType::F16) => pairs::combine_in_place::<f16>(one, other, larger),
            (Self::Max, DatumType::F32) => pairs::combine_in_place::<f32>(one, other, larger),
            (Self::Max, DatumType::F64) => pairs::combine_in_place::<f64>(one, other, larger),
            (Self::Min, DatumType::F16) => pairs::combine_in_place::<f16>(one, other, smaller),
            (Self::Min, DatumType::F32) => pairs::combine_in_place::<f32>(one, other, smaller),
            (Self::Min, DatumType::F64) => pairs::combine_in_place::<f64>(one, other, smaller),
            (_, datum_type) => bail!("no {} of {datum_type:?}", self.name()),
        }
    }

    fn eval_out_of_place(&self, result: &mut Tensor, one: &Tensor, other: &Tensor) -> TractResult<()> {
        match (self, result.datum_type()) {
            (Self::Max, DatumType::F16) => pairs::combine::<f16>(result, one, other, larger),
            (Self::Max, DatumType::F32) => pairs::combine::<f32>(result, one, other, larger),
            (Self::Max, DatumType::F64) => pairs::combine::<f64>(result, one, other, larger),
            (Self::Min, DatumType::F16) => pairs::combine::<f16>(result, one, other, smaller),
            (Self::Min, DatumType::F32) => pairs::combine::<f32>(result, one, other, smaller),
            (Self::Min, DatumType::F64) => pairs::combine::<f64>(result, one, other, smaller),
            (_, datum_type) => bail!("no {} of {datum_type:?}", self.name()),
        }
    }
}

/// A reduction to the largest or smallest numbers, or to their places, of floating-point numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reduction(pub(crate) Reduce);

impl Reduction {
    /// The reduction in place of the engine's, if there is one.
    pub(crate) fn in_place_of(op: &Reduce) -> Option<Self> {
        let exchanged = match op.reducer {
            Reducer::Max | Reducer::Min => true,
            Reducer::ArgMax(_) | Reducer::ArgMin(_) => op.axes.len() == 1,
            _ => false,
        };
        exchanged.then(|| Self(op.clone()))
    }

    fn of<T: Datum + Float>(&self, input: &Tensor) -> TractResult<Tensor> {
        match self.0.reducer {
            Reducer::ArgMax(false) => self.places::<T>(input, |one, other| one > other),
            Reducer::ArgMax(true) => self.places::<T>(input, |one, other| one >= other),
            Reducer::ArgMin(false) => self.places::<T>(input, |one, other| one < other),
            Reducer::ArgMin(true) => self.places::<T>(input, |one, other| one <= other),
            Reducer::Max => self.extremes::<T>(input, |one, other| one > other),
            _ => self.extremes::<T>(input, |one, other| one < other),
        }
    }

    fn extremes<T: Datum + Float>(&self, input: &Tensor, wins: impl Fn(T, T) -> bool) -> TractResult<Tensor> {
        let plain = input.try_as_plain_ram()?;
        let mut numbers = Cow::Borrowed(plain.as_slice::<T>()?);
        let mut shape: TVec<usize> = input.shape().into();
        for &axis in self.0.axes.iter().rev() {
            numbers = Cow::Owned(Runs::along(axis, &shape)?.reduce(&numbers, &wins));
            shape[axis] = 1;
        }
        Tensor::from_shape(&shape, &numbers)
    }

    /// The indices of the numbers that beat all before them. A NaN at the start is kept, and any other NaN is skipped.
    fn places<T: Datum + Float>(&self, input: &Tensor, wins: impl Fn(T, T) -> bool) -> TractResult<Tensor> {
        let axis = self.0.axes[0];
        let mut shape: TVec<usize> = input.shape().into();
        let runs = Runs::along(axis, &shape)?;
        let plain = input.try_as_plain_ram()?;
        let places = runs.each(plain.as_slice::<T>()?, |run| {
            let mut best = (0, run[0]);
            for (place, &number) in run.iter().enumerate().skip(1) {
                if wins(number, best.1) {
                    best = (place as i64, number);
                }
            }
            best.0
        });
        shape[axis] = 1;
        Tensor::from_shape(&shape, &places)
    }
}

impl Op for Reduction {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Reduction {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let reduced = match inputs[0].datum_type() {
            DatumType::F16 => self.of::<f16>(&inputs[0]),
            DatumType::F32 => self.of::<f32>(&inputs[0]),
            DatumType::F64 => self.of::<f64>(&inputs[0]),
            other => bail!("no {} of {other:?}", self.0.name()),
        };
        Ok(tvec!(reduced?.into_tvalue()))
    }
}

impl TypedOp for Reduction {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.0.output_facts(inputs)
    }

    as_op!();
}

/// The runs of numbers along an axis of a tensor.
struct Runs {
    /// The number of elements of a run.
    length: usize,
    /// The stride of a run, which is also how many runs are interleaved.
    inner: usize,
}

impl Runs {
    fn along(axis: usize, shape: &[usize]) -> TractResult<Self> {
        ensure!(!shape.contains(&0), "a tensor has no elements");
        Ok(Self { length: shape[axis], inner: shape[axis + 1..].iter().product() })
    }

    /// Reduces each run to one number.
    fn reduce<T: Float>(&self, numbers: &[T], wins: impl Fn(T, T) -> bool) -> Vec<T> {
        if self.inner == 1 {
            return numbers.chunks_exact(self.length).map(|run| reduce(run, &wins)).collect();
        }
        let mut results = Vec::with_capacity(numbers.len() / self.length);
        for runs in numbers.chunks_exact(self.length * self.inner) {
            let (first, others) = runs.split_at(self.inner);
            let start = results.len();
            results.extend_from_slice(first);
            for other in others.chunks_exact(self.inner) {
                let results = results[start..].iter_mut();
                results.zip(other).for_each(|(result, number)| {
                    *result = if wins(*result, *number) || result.is_nan() { *result } else { *number }
                });
            }
        }
        results
    }

    /// A result for each run, in the order of the runs' first numbers.
    fn each<T: Float, R>(&self, numbers: &[T], result: impl Fn(&[T]) -> R) -> Vec<R> {
        let mut run = Vec::with_capacity(self.length);
        let mut results = Vec::with_capacity(numbers.len() / self.length);
        for runs in numbers.chunks_exact(self.length * self.inner) {
            for at in 0..self.inner {
                run.clear();
                run.extend(runs[at..].iter().step_by(self.inner));
                results.push(result(&run));
            }
        }
        results
    }
}

/// Independent partial results of a reduction, so that the compiler vectorises it.
const LANES: usize = 16;

fn reduce<T: Float>(run: &[T], wins: impl Fn(T, T) -> bool) -> T {
    // A sum, since the compiler does not vectorise a search.
    if run.iter().map(|number| u32::from(number.is_nan())).sum::<u32>() > 0 {
        return T::nan();
    }
    let extreme = |one: T, other: T| if wins(other, one) { other } else { one };
    let (blocks, rest) = run.as_chunks::<LANES>();
    let Some((first, blocks)) = blocks.split_first() else {
        return run.iter().copied().reduce(extreme).unwrap_or_else(T::nan);
    };
    let mut lanes = *first;
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, number)| *lane = extreme(*lane, *number));
    }
    lanes.iter().chain(rest).copied().reduce(extreme).unwrap_or_else(T::nan)
}

/// A TopK that orders NaN as the largest number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Best(pub(crate) Topk);

impl Best {
    fn of<T: Datum + Float>(&self, input: &Tensor, k: usize) -> TractResult<TVec<TValue>> {
        let axis = self.0.axis;
        let mut shape: TVec<usize> = input.shape().into();
        let runs = Runs::along(axis, &shape)?;
        ensure!(k <= runs.length, "{k} elements are asked of a dimension of {}", runs.length);
        let order = |one: &(usize, T), other: &(usize, T)| {
            let order = compare(one.1, other.1);
            (if self.0.largest { order.reverse() } else { order }).then(one.0.cmp(&other.0))
        };
        let plain = input.try_as_plain_ram()?;
        let best = runs.each(plain.as_slice::<T>()?, |run| {
            let mut numbers: Vec<_> = run.iter().copied().enumerate().collect();
            if 0 < k && k < numbers.len() {
                numbers.select_nth_unstable_by(k - 1, order);
            }
            numbers.truncate(k);
            numbers.sort_unstable_by(order);
            numbers
        });
        shape[axis] = k;
        let inner = runs.inner;
        let place = |at: usize| {
            let (outer, rest) = (at / (k * inner), at % (k * inner));
            &best[outer * inner + rest % inner][rest / inner]
        };
        let count = shape.iter().product();
        let numbers: Vec<T> = (0..count).map(|at| place(at).1).collect();
        let places: Vec<i64> = (0..count).map(|at| place(at).0 as i64).collect();
        Ok(tvec!(
            Tensor::from_shape(&shape, &numbers)?.into_tvalue(),
            Tensor::from_shape(&shape, &places)?.into_tvalue()
        ))
    }
}

/// Orders numbers. NaN is the largest one, of any sign.
fn compare<T: Float>(one: T, other: T) -> Ordering {
    one.partial_cmp(&other).unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()))
}

impl Op for Best {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Best {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let k = usize::try_from(inputs[1].cast_to_scalar::<i64>()?)?;
        match inputs[0].datum_type() {
            DatumType::F16 => self.of::<f16>(&inputs[0], k),
            DatumType::F32 => self.of::<f32>(&inputs[0], k),
            DatumType::F64 => self.of::<f64>(&inputs[0], k),
            other => bail!("no TopK of {other:?}"),
        }
    }
}

impl TypedOp for Best {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.0.output_facts(inputs)
    }

    as_op!();
}
