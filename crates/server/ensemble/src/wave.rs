//! A wave: the tensors within an ensemble that belong to one response.
//!
//! The request itself is a wave, and so is each response of a decoupled step: the steps after it run once for each.
//! Steps write into the wave that they read from.

use nereid_backend_api::{
    CorrelationId, Error, InferRequest, ParameterValue, Parameters, Result, SequenceFlags, Shape, Tensor,
};

use crate::plan::Plan;

/// The place in a sequence of the request that produced a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub correlation_id: CorrelationId,
    pub flags: SequenceFlags,
}

impl Sequence {
    /// The sequence of a request.
    pub(crate) fn of(request: &InferRequest) -> Self {
        Self { correlation_id: request.correlation_id.clone(), flags: request.sequence }
    }

    /// The sequence of the requests that follow a response: overridden by the response's parameters, or unchanged.
    ///
    /// # Errors
    /// A parameter has the wrong type.
    pub(crate) fn after_response(&self, parameters: &Parameters) -> Result<Self> {
        let mut sequence =
            Self { correlation_id: self.correlation_id.clone(), flags: SequenceFlags::default() };
        let mut overrides = false;
        let flag = |name: &str, value: &ParameterValue| match value {
            ParameterValue::Bool(flag) => Ok(*flag),
            _ => Err(Error::invalid_arg(format!("the response's parameter '{name}' is not true or false"))),
        };
        for (name, value) in parameters.iter() {
            match (name, value) {
                ("sequence_id", ParameterValue::Int(0)) => sequence.correlation_id = CorrelationId::None,
                // IDs above the largest INT64 are encoded as negative numbers.
                ("sequence_id", ParameterValue::Int(id)) => {
                    sequence.correlation_id = CorrelationId::Number(*id as u64);
                }
                ("sequence_id", ParameterValue::String(id)) => {
                    sequence.correlation_id = CorrelationId::Text(id.clone().into_owned());
                }
                ("sequence_id", _) => {
                    return Err(Error::invalid_arg(
                        "the response's parameter 'sequence_id' is neither a whole number nor a string",
                    ));
                }
                ("sequence_start", value) => sequence.flags.start = flag(name, value)?,
                ("sequence_end", value) => sequence.flags.end = flag(name, value)?,
                _ => continue,
            }
            overrides = true;
        }
        Ok(if overrides { sequence } else { self.clone() })
    }

    /// Writes the sequence into the parameters of a response.
    pub(crate) fn write_to(&self, parameters: &mut Parameters) {
        let id = match &self.correlation_id {
            CorrelationId::None => ParameterValue::Int(0),
            CorrelationId::Number(id) => ParameterValue::Int(*id as i64),
            CorrelationId::Text(id) => ParameterValue::String(id.clone().into()),
        };
        parameters.set("sequence_id", id);
        parameters.set("sequence_start", ParameterValue::Bool(self.flags.start));
        parameters.set("sequence_end", ParameterValue::Bool(self.flags.end));
    }
}

/// The contents of an available tensor.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// `None` for an omitted tensor: steps that read it run without it.
    pub tensor: Option<Tensor>,
    /// Batch size of the request that produced it; 0 without a batch dimension.
    pub batch: usize,
    /// The sequence of the request that produced it, if that was a request to a member.
    pub sequence: Option<Sequence>,
}

impl Value {
    /// The tensor in the shape of a model with these dimensions. A batch dimension is added or removed where only one side
    /// has one.
    pub(crate) fn shaped_for(mut self, dims: &[i64], batches: bool) -> Self {
        let Some(tensor) = &mut self.tensor else { return self };
        if batches && self.batch == 0 {
            if fits(dims, &tensor.shape) {
                tensor.shape.push_front(1);
            }
        } else if !batches && self.batch == 1 && !fits(dims, &tensor.shape) && !tensor.shape.is_empty() {
            tensor.shape = Shape::from(&tensor.shape[1..]);
        }
        self
    }
}

fn fits(dims: &[i64], shape: &[i64]) -> bool {
    dims.len() == shape.len() && dims.iter().zip(shape).all(|(dim, size)| *dim < 0 || dim == size)
}

/// The tensors of a wave, and the steps that still wait for them.
pub(crate) struct Wave {
    cells: Vec<Cell>,
    /// Number of missing inputs, by step.
    missing: Vec<usize>,
    /// Number of missing requested outputs.
    outputs_missing: usize,
    /// Number of requests to members that were scheduled in this wave and have not ended.
    pub open: usize,
}

#[derive(Clone, Default)]
struct Cell {
    value: Option<Value>,
    /// Number of reads left.
    reads: usize,
}

impl Wave {
    /// An empty wave, read by the `needed` steps and the `wanted` outputs.
    pub(crate) fn new(plan: &Plan, needed: &[bool], wanted: &[usize]) -> Self {
        let reads = |readers: &Vec<usize>| readers.iter().filter(|&&step| needed[step]).count();
        let mut cells: Vec<_> =
            plan.readers.iter().map(|readers| Cell { value: None, reads: reads(readers) }).collect();
        for &output in wanted {
            cells[plan.outputs[output].tensor].reads += 1;
        }
        let missing = plan.steps.iter().map(|step| step.inputs.len()).collect();
        Self { cells, missing, outputs_missing: wanted.len(), open: 0 }
    }

    /// Sets a tensor. Adds the steps whose inputs are complete now to `ready`.
    pub(crate) fn set(
        &mut self,
        plan: &Plan,
        needed: &[bool],
        tensor: usize,
        value: Value,
        ready: &mut Vec<usize>,
    ) {
        self.cells[tensor].value = Some(value);
        for &step in plan.readers[tensor].iter().filter(|&&step| needed[step]) {
            self.missing[step] -= 1;
            if self.missing[step] == 0 {
                ready.push(step);
            }
        }
    }

    /// Sets the number of requested outputs that are present. Returns whether all are, for the first time.
    pub(crate) fn complete_outputs(&mut self, count: usize) -> bool {
        let before = self.outputs_missing;
        self.outputs_missing -= count;
        before > 0 && self.outputs_missing == 0
    }

    /// Reads an available tensor: the last reader takes it, the others receive a copy that shares its contents.
    pub(crate) fn read(&mut self, tensor: usize) -> Option<Value> {
        let cell = &mut self.cells[tensor];
        cell.reads = cell.reads.saturating_sub(1);
        if cell.reads == 0 { cell.value.take() } else { cell.value.clone() }
    }
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::DataType;

    use super::*;

    fn shaped(shape: &[i64], batch: usize, dims: &[i64], batches: bool) -> Shape {
        let tensor = Tensor::new("x", DataType::Uint8, shape, vec![]);
        let value = Value { tensor: Some(tensor), batch, sequence: None };
        value.shaped_for(dims, batches).tensor.unwrap().shape
    }

    #[test]
    fn batch_dimension_is_added_or_removed_where_one_side_has_none() {
        assert_eq!(shaped(&[2, 3], 0, &[2, -1], true), [1, 2, 3].into());
        assert_eq!(shaped(&[4, 2, 3], 0, &[2, 3], true), [4, 2, 3].into());
        assert_eq!(shaped(&[1, 2, 3], 1, &[2, 3], false), [2, 3].into());
        assert_eq!(shaped(&[1, 2, 3], 1, &[-1, 2, 3], false), [1, 2, 3].into());
        assert_eq!(shaped(&[4, 2, 3], 4, &[2, 3], false), [4, 2, 3].into());
        assert_eq!(shaped(&[4, 2, 3], 4, &[2, 3], true), [4, 2, 3].into());
        assert_eq!(shaped(&[], 1, &[2], false), Shape::scalar());
    }

    #[test]
    fn response_overrides_the_sequence_of_the_next_requests() {
        let before = Sequence {
            correlation_id: CorrelationId::Number(3),
            flags: SequenceFlags { start: true, end: false },
        };
        let given = |parameters: &[(&'static str, ParameterValue)]| {
            let mut all = Parameters::default();
            parameters.iter().for_each(|(name, value)| all.set(*name, value.clone()));
            before.after_response(&all)
        };
        assert_eq!(given(&[("other", ParameterValue::Int(1))]).unwrap(), before);
        let text = given(&[("sequence_id", ParameterValue::String("s".into()))]).unwrap();
        assert_eq!(text, Sequence { correlation_id: CorrelationId::Text("s".into()), ..Sequence::default() });
        let ended = given(&[("sequence_end", ParameterValue::Bool(true))]).unwrap();
        assert_eq!(
            (ended.correlation_id, ended.flags.start, ended.flags.end),
            (CorrelationId::Number(3), false, true)
        );
        let large = given(&[("sequence_id", ParameterValue::Int(-1))]).unwrap();
        assert_eq!(large.correlation_id, CorrelationId::Number(u64::MAX));
        assert!(given(&[("sequence_id", ParameterValue::Bool(true))]).is_err());
        assert!(given(&[("sequence_start", ParameterValue::Int(1))]).is_err());
    }

    #[test]
    fn a_sequence_id_returns_to_the_client_unchanged() {
        let reported = |correlation_id: CorrelationId| {
            let mut parameters = Parameters::default();
            Sequence { correlation_id, flags: SequenceFlags { start: false, end: true } }
                .write_to(&mut parameters);
            assert_eq!(parameters.get("sequence_start"), Some(&ParameterValue::Bool(false)));
            assert_eq!(parameters.get("sequence_end"), Some(&ParameterValue::Bool(true)));
            parameters.get("sequence_id").cloned().unwrap()
        };
        assert_eq!(reported(CorrelationId::None), ParameterValue::Int(0));
        assert_eq!(reported(CorrelationId::Number(7)), ParameterValue::Int(7));
        assert_eq!(reported(CorrelationId::Text("a".into())), ParameterValue::String("a".into()));
    }
}
