//! ONNX Runtime's DynamicQuantizeLSTM: an LSTM whose weights are bytes, and whose inputs and states become bytes when they are
//! multiplied with them.
//!
//! Inputs are scaled over all steps at once, states over one step of the whole batch, as ONNX Runtime does on one thread.

use std::sync::Arc;

use tract_hir::internal::*;
use tract_onnx::model::{OnnxOpRegister, optional_inputs, optional_outputs};
use tract_onnx::pb::NodeProto;

use crate::quantisation::Bytes;

pub(crate) const NAME: &str = "DynamicQuantizeLSTM";

/// The gates of a unit: input, output, forget and cell.
const GATES: usize = 4;

pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert(NAME, |_, node| Ok((expand(Declared::new(node)?), vec![])));
}

/// The operator of a file. Inputs and outputs are places among those that the node has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared {
    /// Whether each direction goes from the last step to the first.
    backwards: Vec<bool>,
    bias: Option<usize>,
    initial: Initial,
    parameters: [usize; 4],
    inputs: usize,
    outputs: Outputs,
}

/// The inputs with the states before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Initial {
    hidden: Option<usize>,
    cell: Option<usize>,
}

/// The outputs: the hidden states of all steps, and the last hidden and cell states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outputs {
    all: Option<usize>,
    hidden: Option<usize>,
    cell: Option<usize>,
}

impl Outputs {
    fn count(self) -> usize {
        [self.all, self.hidden, self.cell].into_iter().flatten().count()
    }
}

impl Declared {
    fn new(node: &NodeProto) -> TractResult<Self> {
        let inputs: Vec<_> = optional_inputs(node).take(12).collect();
        let [_, _, _, bias, lengths, hidden, cell, peepholes, parameters @ ..] = &inputs[..] else {
            bail!("{NAME} has twelve inputs");
        };
        ensure!(lengths.is_none(), "{NAME} with the lengths of sequences is not supported");
        ensure!(peepholes.is_none(), "{NAME} with peepholes is not supported");
        let parameters: Vec<_> = parameters.iter().flatten().copied().collect();
        let parameters =
            parameters.try_into().map_err(|_| anyhow!("{NAME} needs two scales and two zero points"))?;
        let outputs: Vec<_> = optional_outputs(node).take(3).collect();
        let outputs = Outputs { all: outputs[0], hidden: outputs[1], cell: outputs[2] };
        let backwards = match node.get_attr_opt::<String>("direction")?.as_deref() {
            None | Some("forward") => vec![false],
            Some("reverse") => vec![true],
            Some("bidirectional") => vec![false, true],
            Some(other) => bail!("{NAME} has no direction '{other}'"),
        };
        Ok(Self {
            backwards,
            bias: *bias,
            initial: Initial { hidden: *hidden, cell: *cell },
            parameters,
            inputs: node.input.iter().filter(|name| !name.is_empty()).count(),
            outputs,
        })
    }

    /// The weights of a direction: of the input (0) or of the state (1).
    fn weights(&self, constants: &[Arc<Tensor>], of: usize, direction: usize) -> TractResult<Weights> {
        let at = |input: usize| constants[input].as_ref();
        let (weights, scale, zero_point) =
            (at(1 + of), at(self.parameters[2 * of]), at(self.parameters[2 * of + 1]));
        let &[directions, rows, columns] = weights.shape() else { bail!("weights have three dimensions") };
        ensure!(directions == self.backwards.len(), "weights have another number of directions");
        ensure!(rows > 0 && columns > 0, "weights without elements");
        let is_byte = [DatumType::U8, DatumType::I8].contains(&weights.datum_type());
        ensure!(
            is_byte && weights.datum_type() == zero_point.datum_type(),
            "weights and zero points need bytes of one type"
        );
        // Of all columns, or of each.
        let of_direction = |parameters: &Tensor| -> TractResult<Vec<f32>> {
            let all = parameters.cast_to::<f32>()?;
            let all = all.try_as_plain_ram()?.as_slice::<f32>()?;
            let each = all.len() / directions;
            ensure!(
                each * directions == all.len() && [1, columns].contains(&each),
                "scales do not fit weights"
            );
            Ok((0..columns).map(|column| all[direction * each + column % each]).collect())
        };
        let (scales, zero_points) = (of_direction(scale)?, of_direction(zero_point)?);
        let all = weights.cast_to::<i32>()?;
        let all = all.try_as_plain_ram()?.as_slice::<i32>()?;
        let own = all.iter().skip(direction * rows * columns).take(rows * columns);
        let values =
            own.enumerate().map(|(at, value)| (value - zero_points[at % columns] as i32) as i16).collect();
        Ok(Weights { rows, columns, values, scales })
    }
}

impl Expansion for Declared {
    fn name(&self) -> StaticName {
        NAME.into()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.outputs.count())
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, self.inputs)?;
        check_output_arity(outputs, self.outputs.count())?;
        let directions = self.backwards.len().to_dim();
        let states = [self.initial.hidden, self.initial.cell].into_iter().flatten().map(|at| &inputs[at]);
        let last = [self.outputs.hidden, self.outputs.cell].into_iter().flatten().map(|at| &outputs[at]);
        for state in states.chain(last) {
            solver.equals(&state.datum_type, f32::datum_type())?;
            solver.equals(&state.rank, 3)?;
            solver.equals(&state.shape[0], &directions)?;
            solver.equals(&state.shape[1], &inputs[0].shape[1])?;
            solver.equals(&state.shape[2], &inputs[2].shape[1])?;
        }
        solver.equals(&inputs[0].datum_type, f32::datum_type())?;
        for input in &inputs[..3] {
            solver.equals(&input.rank, 3)?;
        }
        if let Some(all) = self.outputs.all.map(|at| &outputs[at]) {
            solver.equals(&all.datum_type, f32::datum_type())?;
            solver.equals(&all.rank, 4)?;
            solver.equals(&all.shape[0], &inputs[0].shape[0])?;
            solver.equals(&all.shape[1], &directions)?;
            solver.equals(&all.shape[2], &inputs[0].shape[1])?;
            solver.equals(&all.shape[3], &inputs[2].shape[1])?;
        }
        Ok(())
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let mut constants = Vec::new();
        for (at, input) in inputs.iter().enumerate() {
            let is_state = at == 0 || [self.initial.hidden, self.initial.cell].contains(&Some(at));
            let constant = model.outlet_fact(*input)?.konst.clone();
            let constant = if is_state { Some(Arc::new(tensor0(0.0_f32))) } else { constant };
            constants.push(constant.with_context(|| format!("{NAME}: input {at} must be constant"))?);
        }
        let directions = self.backwards.iter().enumerate().map(|(direction, &backwards)| {
            let input = self.weights(&constants, 0, direction)?;
            let state = self.weights(&constants, 1, direction)?;
            let columns = GATES * state.rows;
            ensure!([input.columns, state.columns] == [columns; 2], "{NAME}: weights do not fit each other");
            let mut bias = vec![0.0; columns];
            if let Some(at) = self.bias {
                let all = constants[at].cast_to::<f32>()?;
                let all = all.try_as_plain_ram()?.as_slice::<f32>()?;
                ensure!(
                    all.len() == 2 * columns * self.backwards.len(),
                    "{NAME}: the bias does not fit weights"
                );
                let own = &all[direction * 2 * columns..][..2 * columns];
                for (column, bias) in bias.iter_mut().enumerate() {
                    *bias = own[column] + own[columns + column];
                }
            }
            Ok(Direction { backwards, input, state, bias })
        });
        let directions = directions.collect::<TractResult<Vec<_>>>()?;
        let mut wires = vec![inputs[0]];
        let mut wire = |at: Option<usize>| {
            at.map(|at| {
                wires.push(inputs[at]);
                wires.len() - 1
            })
        };
        let initial = Initial { hidden: wire(self.initial.hidden), cell: wire(self.initial.cell) };
        let operator = QuantisedLstm { directions: directions.into(), initial, outputs: self.outputs };
        model.wire_node(prefix, operator, &wires)
    }
}

/// Weights of one direction, without their zero points.
#[derive(Clone, Debug, PartialEq)]
struct Weights {
    rows: usize,
    columns: usize,
    values: Vec<i16>,
    /// One for each column.
    scales: Vec<f32>,
}

impl Weights {
    /// Adds the product of rows of bytes with the weights to the gates.
    fn multiply(&self, bytes: &[u8], scale: f32, zero_point: u8, gates: &mut [f32]) {
        let mut sums = vec![0_i32; self.columns];
        for (bytes, gates) in bytes.chunks_exact(self.rows).zip(gates.chunks_exact_mut(self.columns)) {
            sums.fill(0);
            for (byte, weights) in bytes.iter().zip(self.values.chunks_exact(self.columns)) {
                let value = i32::from(*byte) - i32::from(zero_point);
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += value * i32::from(*weight));
            }
            for ((gate, sum), own) in gates.iter_mut().zip(&sums).zip(&self.scales) {
                *gate += *sum as f32 * (scale * own);
            }
        }
    }
}

/// The weights and the bias of one direction.
#[derive(Clone, Debug, PartialEq)]
struct Direction {
    backwards: bool,
    input: Weights,
    state: Weights,
    /// The sum of the input's and the state's.
    bias: Vec<f32>,
}

/// The operator with its weights, for which the states before the first step are inputs.
#[derive(Clone, Debug, PartialEq)]
struct QuantisedLstm {
    directions: Arc<[Direction]>,
    initial: Initial,
    outputs: Outputs,
}

impl Eq for QuantisedLstm {}

/// The states of a batch.
struct States {
    hidden: Vec<f32>,
    cell: Vec<f32>,
}

impl States {
    /// The states after a step with these gates.
    fn advance(&mut self, gates: &[f32], bias: &[f32]) {
        let size = bias.len() / GATES;
        let states = self.hidden.chunks_exact_mut(size).zip(self.cell.chunks_exact_mut(size));
        for ((hidden, cell), gates) in states.zip(gates.chunks_exact(bias.len())) {
            for unit in 0..size {
                let gate = |gate: usize| gates[gate * size + unit] + bias[gate * size + unit];
                let (input, output, forget) = (sigmoid(gate(0)), sigmoid(gate(1)), sigmoid(gate(2)));
                cell[unit] = forget * cell[unit] + input * gate(3).tanh();
                hidden[unit] = output * cell[unit].tanh();
            }
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Op for QuantisedLstm {
    fn name(&self) -> StaticName {
        NAME.into()
    }

    op_as_typed_op!();
}

impl EvalOp for QuantisedLstm {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let &[steps, batch, features] = inputs[0].shape() else { bail!("{NAME}: X has three dimensions") };
        let (count, size) = (self.directions.len(), self.directions[0].state.rows);
        ensure!(features == self.directions[0].input.rows, "{NAME}: X has {features} features");
        let x = Bytes::of(inputs[0].try_as_plain_ram()?.as_slice::<f32>()?);
        let part = batch * size;
        let initial = |at: Option<usize>| -> TractResult<Vec<f32>> {
            let Some(at) = at else { return Ok(vec![0.0; count * part]) };
            ensure!(inputs[at].shape() == [count, batch, size], "{NAME}: a state does not fit X");
            Ok(inputs[at].try_as_plain_ram()?.as_slice::<f32>()?.to_vec())
        };
        let (mut hidden, mut cell) = (initial(self.initial.hidden)?, initial(self.initial.cell)?);
        let mut all = vec![0.0; if self.outputs.all.is_some() { steps * count * part } else { 0 }];
        for (at, direction) in self.directions.iter().enumerate() {
            let own = at * part..(at + 1) * part;
            let mut states =
                States { hidden: hidden[own.clone()].to_vec(), cell: cell[own.clone()].to_vec() };
            let mut gates = vec![0.0; batch * direction.bias.len()];
            for step in 0..steps {
                let step = if direction.backwards { steps - 1 - step } else { step };
                gates.fill(0.0);
                let row = &x.values[step * batch * features..][..batch * features];
                direction.input.multiply(row, x.scale, x.zero_point, &mut gates);
                let state = Bytes::of(&states.hidden);
                direction.state.multiply(&state.values, state.scale, state.zero_point, &mut gates);
                states.advance(&gates, &direction.bias);
                if self.outputs.all.is_some() {
                    all[(step * count + at) * part..][..part].copy_from_slice(&states.hidden);
                }
            }
            hidden[own.clone()].copy_from_slice(&states.hidden);
            cell[own].copy_from_slice(&states.cell);
        }
        let last = [count, batch, size];
        let outputs = [
            (self.outputs.all, Tensor::from_shape(&[steps, count, batch, size][..], &all)),
            (self.outputs.hidden, Tensor::from_shape(&last[..], &hidden)),
            (self.outputs.cell, Tensor::from_shape(&last[..], &cell)),
        ];
        let outputs = outputs.into_iter().filter(|(place, _)| place.is_some());
        outputs.map(|(_, tensor)| Ok(tensor?.into_tvalue())).collect()
    }
}

impl TypedOp for QuantisedLstm {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [steps, batch, _] = &*inputs[0].shape.to_tvec() else {
            bail!("{NAME}: X has three dimensions");
        };
        let (count, size) = (self.directions.len().to_dim(), self.directions[0].state.rows.to_dim());
        let last = f32::fact([count.clone(), batch.clone(), size.clone()]);
        let all = f32::fact([steps.clone(), count, batch.clone(), size]);
        let facts = [(self.outputs.all, all), (self.outputs.hidden, last.clone()), (self.outputs.cell, last)];
        Ok(facts.into_iter().filter(|(place, _)| place.is_some()).map(|(_, fact)| fact).collect())
    }

    as_op!();
}
