//! Chains of arithmetic with extremes, in place of the engine's own, which drop NaN.

use tract_hir::internal::tract_linalg::BinOp;
use tract_hir::internal::tract_linalg::multithread::BShare;
use tract_hir::internal::*;
use tract_hir::tract_core::ops::binary::OptBinChain;
use tract_hir::tract_num_traits::Float;

use crate::extremes::{larger, smaller};

/// Elements that all steps process before the next ones, so that they stay in the cache.
const CHUNK: usize = 1024;

/// Arithmetic steps that are applied to a tensor in one pass, each with its own operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain(OptBinChain);

impl Chain {
    /// The chain in place of the engine's, if one of its steps is an extreme.
    pub(crate) fn in_place_of(op: &OptBinChain) -> Option<Self> {
        let is_extreme = |op: BinOp| matches!(op, BinOp::Max | BinOp::Min);
        op.steps.iter().any(|step| is_extreme(step.linalg_op)).then(|| Self(op.clone()))
    }

    fn of<T: Datum + Float>(&self, mut inputs: TVec<TValue>) -> TractResult<TValue> {
        let mut results = inputs.remove(0).into_tensor();
        let operands = inputs
            .iter()
            .map(|operand| Ok(operand.to_plain_array_view::<T>()?.as_standard_layout().into_owned()));
        let operands = operands.collect::<TractResult<TVec<_>>>()?;
        let operands: TVec<&[T]> = operands.iter().filter_map(|operand| operand.as_slice()).collect();
        ensure!(operands.len() == self.0.steps.len(), "a chain has an operand for each step");
        let mut plain = results.try_as_plain_ram_mut()?;
        let numbers = plain.as_slice_mut::<T>()?;
        let size = numbers.len();
        for (chunk, numbers) in numbers.chunks_mut(CHUNK).enumerate() {
            for (step, operand) in self.0.steps.iter().zip(&operands) {
                let share = Share { step: step.share, size, operand };
                let at = chunk * CHUNK;
                match step.linalg_op {
                    BinOp::Add => share.each(numbers, at, |one, other| one + other),
                    BinOp::Mul => share.each(numbers, at, |one, other| one * other),
                    BinOp::Sub => share.each(numbers, at, |one, other| one - other),
                    BinOp::SubF => share.each(numbers, at, |one, other| other - one),
                    BinOp::Max => share.each(numbers, at, larger),
                    BinOp::Min => share.each(numbers, at, smaller),
                }
            }
        }
        Ok(results.into_tvalue())
    }
}

/// The operand of a step, and how its elements are shared among those of a tensor.
struct Share<'a, T> {
    step: BShare,
    /// The number of elements of the tensor.
    size: usize,
    operand: &'a [T],
}

impl<T: Float> Share<'_, T> {
    /// Combines `numbers`, which start at this index of the tensor, with the operand's elements.
    fn each(&self, numbers: &mut [T], start: usize, combine: impl Fn(T, T) -> T) {
        let period = match self.step {
            BShare::Lockstep => self.operand.len(),
            BShare::PerBlock => self.size / self.operand.len(),
        };
        let (mut rest, mut at) = (numbers, start);
        while !rest.is_empty() {
            let length = (period - at % period).min(rest.len());
            let (run, behind) = rest.split_at_mut(length);
            match self.step {
                BShare::Lockstep => {
                    let others = &self.operand[at % period..];
                    run.iter_mut().zip(others).for_each(|(number, other)| *number = combine(*number, *other));
                }
                BShare::PerBlock => {
                    let other = self.operand[at / period];
                    run.iter_mut().for_each(|number| *number = combine(*number, other));
                }
            }
            (rest, at) = (behind, at + length);
        }
    }
}

impl Op for Chain {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Chain {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let result = match inputs[0].datum_type() {
            DatumType::F16 => self.of::<f16>(inputs),
            DatumType::F32 => self.of::<f32>(inputs),
            DatumType::F64 => self.of::<f64>(inputs),
            other => bail!("no {} of {other:?}", self.0.name()),
        };
        Ok(tvec!(result?))
    }
}

impl TypedOp for Chain {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.0.output_facts(inputs)
    }

    as_op!();
}
