//! NaN in recurrent operators, whose cells in the engine turn it into numbers.

use tract_hir::internal::*;
use tract_hir::tract_core::ops::gru_cell::GruEpilogue;
use tract_hir::tract_core::ops::gru_seq::GruSeq;
use tract_hir::tract_core::ops::lstm_cell::LstmEpilogue;

/// The cell of an LSTM or a GRU, which makes the states of a step from its gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    engine: Box<dyn TypedOp>,
    /// The size of a state.
    hidden: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Takes the gates i, o, f and c and the cell state; makes the hidden state and the cell state.
    Lstm,
    /// Takes the gates z, r and h as the parts of the input and of the state, and the state; makes the next state.
    Gru,
}

impl Cell {
    /// The cell in place of the engine's, if the operator is one.
    pub(crate) fn in_place_of(node: &TypedNode) -> Option<Self> {
        let lstm = node.op_as::<LstmEpilogue>().map(|op| (op.hidden, Kind::Lstm));
        let (hidden, kind) = lstm.or_else(|| Some((node.op_as::<GruEpilogue>()?.hidden, Kind::Gru)))?;
        Some(Self { engine: node.op.clone(), hidden, kind })
    }

    /// Puts NaN into the states that depend on it.
    fn correct(&self, inputs: &[Vec<f32>], outputs: &mut [Vec<f32>]) {
        let size = self.hidden;
        for at in 0..outputs[0].len() {
            let (row, unit) = (at / size, at % size);
            match self.kind {
                Kind::Lstm => {
                    let gate = |gate: usize| inputs[0][row * 4 * size + gate * size + unit].is_nan();
                    if gate(0) || gate(2) || gate(3) || inputs[1][at].is_nan() {
                        (outputs[0][at], outputs[1][at]) = (f32::NAN, f32::NAN);
                    } else if gate(1) {
                        outputs[0][at] = f32::NAN;
                    }
                }
                Kind::Gru => {
                    let gate = |gate: usize| {
                        let gate = row * 3 * size + gate * size + unit;
                        (inputs[0][gate] + inputs[1][gate]).is_nan()
                    };
                    if (0..3).any(gate) || inputs[2][at].is_nan() {
                        outputs[0][at] = f32::NAN;
                    }
                }
            }
        }
    }
}

impl Op for Cell {
    fn name(&self) -> StaticName {
        self.engine.name()
    }

    op_as_typed_op!();
}

impl EvalOp for Cell {
    op_out_of_plan!();

    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        if inputs.iter().map(is_finite).collect::<TractResult<Vec<_>>>()?.iter().all(|finite| *finite) {
            return self.engine.eval(context, inputs);
        }
        let outputs = self.engine.eval(context, inputs.clone())?;
        let inputs = inputs.iter().map(numbers).collect::<TractResult<Vec<_>>>()?;
        let mut corrected = outputs.iter().map(numbers).collect::<TractResult<Vec<_>>>()?;
        self.correct(&inputs, &mut corrected);
        outputs.iter().zip(&corrected).map(|(output, numbers)| with_numbers(output, numbers)).collect()
    }
}

impl TypedOp for Cell {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.engine.output_facts(inputs)
    }

    as_op!();
}

/// Puts NaN into the outputs of a GRU that depend on it: all states behind one with NaN.
pub(crate) fn correct(op: &GruSeq, inputs: &[TValue], outputs: &mut TVec<TValue>) -> TractResult<()> {
    let last = inputs.len() - 1;
    if is_finite(&inputs[0])? && is_finite(&inputs[last])? {
        return Ok(());
    }
    let size = op.hidden;
    let &[batch, steps, width] = inputs[0].shape() else { bail!("a sequence has three dimensions") };
    let (x, weights, start) = (numbers(&inputs[0])?, numbers(&inputs[1])?, numbers(&inputs[last])?);
    let (mut states, mut ends) = (numbers(&outputs[0])?, numbers(&outputs[1])?);
    for row in 0..batch {
        let mut is_nan: Vec<bool> = start[row * size..][..size].iter().map(|state| state.is_nan()).collect();
        for step in 0..steps {
            let step = if op.chunk < 0 { steps - 1 - step } else { step };
            let x = &x[(row * steps + step) * width..][..width];
            let has_nan = |gate: usize| match op.projected {
                true => x[gate].is_nan(),
                false => {
                    let products = x.iter().zip(&weights[gate * width..]).map(|(x, weight)| x * weight);
                    products.sum::<f32>().is_nan()
                }
            };
            // Each gate depends on the whole previous state.
            is_nan = match is_nan.contains(&true) {
                true => vec![true; size],
                false if x.iter().all(|x| x.is_finite()) => continue,
                false => (0..size).map(|unit| (0..3).any(|gate| has_nan(gate * size + unit))).collect(),
            };
            if op.emit_y {
                put_nan(&mut states[(row * steps + step) * size..], &is_nan);
            }
        }
        put_nan(&mut ends[row * size..], &is_nan);
    }
    for (output, numbers) in outputs.iter_mut().zip([states, ends]) {
        *output = with_numbers(output, &numbers)?;
    }
    Ok(())
}

fn put_nan(states: &mut [f32], is_nan: &[bool]) {
    let states = states.iter_mut().zip(is_nan).filter(|(_, is_nan)| **is_nan);
    states.for_each(|(state, _)| *state = f32::NAN);
}

fn numbers(tensor: &TValue) -> TractResult<Vec<f32>> {
    Ok(tensor.cast_to::<f32>()?.try_as_plain_ram()?.as_slice::<f32>()?.to_vec())
}

/// A tensor of the same type and shape with other numbers.
fn with_numbers(tensor: &TValue, numbers: &[f32]) -> TractResult<TValue> {
    let numbers = Tensor::from_shape(tensor.shape(), numbers)?;
    Ok(numbers.cast_to_dt(tensor.datum_type())?.into_owned().into_tvalue())
}

fn is_finite(tensor: &TValue) -> TractResult<bool> {
    let numbers = tensor.cast_to::<f32>()?;
    let numbers = numbers.try_as_plain_ram()?;
    // Without a branch, so that the compiler vectorises it.
    Ok(numbers.as_slice::<f32>()?.iter().fold(true, |finite, number| finite & number.is_finite()))
}
