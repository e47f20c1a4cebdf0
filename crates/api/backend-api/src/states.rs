//! Implicit state that a model keeps between the requests of a sequence (`state` in `sequence_batching`): tensors
//! that are inputs of a request and are replaced by its outputs.
//!
//! Does not know where a sequence begins or which request is next: the sequence scheduler creates the states of each
//! sequence.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nereid_model_config::DataType;

use crate::{Buffers, Error, Result, Shape, Tensor};

/// The states of one sequence, shared by its requests.
///
/// A state has two names: the input that holds it, and the output that replaces it.
#[derive(Debug, Default)]
pub struct SequenceStates(Mutex<Vec<SequenceState>>);

/// One state.
#[derive(Clone, Debug)]
pub struct SequenceState {
    /// The output that replaces it.
    pub output: String,
    /// The value, under the name of the input.
    pub value: Tensor,
    /// Whether the value is updated in place instead of being replaced.
    pub shares_memory: bool,
}

impl SequenceStates {
    /// The initial states of a sequence.
    pub fn new(states: Vec<SequenceState>) -> Self {
        Self(Mutex::new(states))
    }

    /// All states, with their current values.
    pub fn all(&self) -> Vec<SequenceState> {
        self.lock().clone()
    }

    /// The inputs of the next request.
    pub fn inputs(&self) -> Vec<Tensor> {
        self.lock().iter().map(|state| state.value.clone()).collect()
    }

    /// Whether a state is replaced by the output of that name.
    pub fn has(&self, output: &str) -> bool {
        self.lock().iter().any(|state| state.output == output)
    }

    /// The contents of the state of an output, if it is updated in place.
    pub fn shared_value(&self, output: &str) -> Option<Vec<u8>> {
        let states = self.lock();
        let state = states.iter().find(|state| state.output == output && state.shares_memory)?;
        state.value.contiguous().ok().map(|contents| contents.into_owned())
    }

    /// Replaces the value of an output's state. The shape includes the batch dimension, if the model has one.
    ///
    /// # Errors
    /// `InvalidArg` if the output has no state, or the contents do not fit type and shape.
    pub fn update(&self, output: &str, data_type: DataType, shape: Shape, buffers: Buffers) -> Result<()> {
        let mut states = self.lock();
        let names = || states.iter().map(|state| state.output.as_str()).collect::<Vec<_>>().join("', '");
        let Some(place) = states.iter().position(|state| state.output == output) else {
            return Err(Error::invalid_arg(format!("unknown state '{output}' (states: '{}')", names())));
        };
        let state = &mut states[place];
        let value = Tensor { name: state.value.name.clone(), data_type, shape, buffers };
        value.check_contents().map_err(|error| error.context(format_args!("state '{output}'")))?;
        state.value = value;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SequenceState>> {
        // Each change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::Buffer;

    fn states() -> SequenceStates {
        let value = Tensor::new("SUM_IN", DataType::Int32, [1], vec![0; 4]);
        SequenceStates::new(vec![SequenceState { output: "SUM_OUT".into(), value, shares_memory: false }])
    }

    #[test]
    fn output_replaces_type_shape_and_contents_of_its_state() {
        let states = states();
        states
            .update("SUM_OUT", DataType::Int16, [2].into(), smallvec![Buffer::host(vec![1, 0, 2, 0])])
            .unwrap();
        let [value] = &states.inputs()[..] else { panic!("one state") };
        assert_eq!((value.name.as_str(), value.data_type), ("SUM_IN", DataType::Int16));
        assert_eq!(
            (&value.shape[..], &*value.contiguous().unwrap()),
            ([2].as_slice(), [1, 0, 2, 0].as_slice())
        );
    }

    #[test]
    fn refused_state_update_changes_nothing() {
        let states = states();
        let refused = |name: &str, size: usize| {
            let buffers = smallvec![Buffer::host(vec![7; size])];
            states.update(name, DataType::Int32, [1].into(), buffers).unwrap_err().message().to_owned()
        };
        assert_eq!(refused("SUM_IN", 4), "unknown state 'SUM_IN' (states: 'SUM_OUT')");
        assert!(refused("SUM_OUT", 3).starts_with("state 'SUM_OUT': tensor 'SUM_IN' has 3 bytes"));
        assert_eq!(&*states.inputs()[0].contiguous().unwrap(), [0; 4]);
        assert!(states.has("SUM_OUT") && !states.has("SUM_IN"));
    }
}
