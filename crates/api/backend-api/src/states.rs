//! Implicit state that a model keeps between the requests of a sequence (`state` in `sequence_batching`): tensors
//! that are inputs of a request and are replaced by its outputs.
//!
//! Does not know where a sequence begins or which request is next: the sequence scheduler creates the states of each
//! sequence.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_model_config::DataType;

use crate::{Buffer, Buffers, Error, Result, Shape, Tensor};

/// The states of one sequence, shared by its requests.
///
/// A state has two names: the input that holds it, and the output that replaces it.
#[derive(Debug, Default)]
pub struct SequenceStates(Mutex<Vec<PlacedState>>);

/// A state, and the backend's memory that holds its value.
#[derive(Debug)]
struct PlacedState {
    state: SequenceState,
    memory: Option<StateMemory>,
}

/// Memory of a backend that holds the value of a state updated in place. The backend may write it while it executes a
/// request of the sequence.
pub type StateMemory = Arc<dyn Any + Send + Sync>;

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
        Self(Mutex::new(states.into_iter().map(|state| PlacedState { state, memory: None }).collect()))
    }

    /// All states, with their current values.
    pub fn all(&self) -> Vec<SequenceState> {
        self.lock().iter().map(|placed| placed.state.clone()).collect()
    }

    /// The inputs of the next request.
    pub fn inputs(&self) -> Vec<Tensor> {
        self.lock().iter().map(|placed| placed.state.value.clone()).collect()
    }

    /// Whether a state is replaced by the output of that name.
    pub fn has(&self, output: &str) -> bool {
        self.lock().iter().any(|placed| placed.state.output == output)
    }

    /// The contents of the state of an output, if it is updated in place.
    pub fn shared_value(&self, output: &str) -> Option<Vec<u8>> {
        let states = self.lock();
        let placed =
            states.iter().find(|placed| placed.state.output == output && placed.state.shares_memory)?;
        placed.state.value.contiguous().ok().map(|contents| contents.into_owned())
    }

    /// The backend's memory that holds the state of an output, if it is updated in place.
    pub fn memory(&self, output: &str) -> Option<StateMemory> {
        self.lock().iter().find(|placed| placed.state.output == output)?.memory.clone()
    }

    /// Moves the values that are updated in place to memory of the backend, and returns the moved ones. `place` copies
    /// contents to new memory.
    ///
    /// # Errors
    /// The error of `place`, or a value that cannot be read.
    pub fn place(
        &self,
        mut place: impl FnMut(&[u8]) -> Result<(Buffer, StateMemory)>,
    ) -> Result<Vec<Tensor>> {
        let mut moved = Vec::new();
        for placed in self.lock().iter_mut() {
            if placed.state.shares_memory && placed.memory.is_none() {
                let (buffer, memory) = place(&placed.state.value.contiguous()?)?;
                placed.state.value.buffers = [buffer].into_iter().collect();
                placed.memory = Some(memory);
                moved.push(placed.state.value.clone());
            }
        }
        Ok(moved)
    }

    /// Replaces the value of an output's state. The shape includes the batch dimension, if the model has one.
    ///
    /// # Errors
    /// `InvalidArg` if the output has no state, or the contents do not fit type and shape.
    pub fn update(&self, output: &str, data_type: DataType, shape: Shape, buffers: Buffers) -> Result<()> {
        self.replace(output, data_type, shape, buffers, None)
    }

    /// Like [`update`](Self::update), with the backend's `memory` that `buffer` is a view of. A state updated in place
    /// stays there.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn update_in_place(
        &self,
        output: &str,
        data_type: DataType,
        shape: Shape,
        buffer: Buffer,
        memory: StateMemory,
    ) -> Result<()> {
        self.replace(output, data_type, shape, [buffer].into_iter().collect(), Some(memory))
    }

    fn replace(
        &self,
        output: &str,
        data_type: DataType,
        shape: Shape,
        buffers: Buffers,
        memory: Option<StateMemory>,
    ) -> Result<()> {
        let mut states = self.lock();
        let names =
            || states.iter().map(|placed| placed.state.output.as_str()).collect::<Vec<_>>().join("', '");
        let Some(place) = states.iter().position(|placed| placed.state.output == output) else {
            return Err(Error::invalid_arg(format!("unknown state '{output}' (states: '{}')", names())));
        };
        let placed = &mut states[place];
        let value = Tensor { name: placed.state.value.name.clone(), data_type, shape, buffers };
        value.check_contents().map_err(|error| error.context(format_args!("state '{output}'")))?;
        placed.state.value = value;
        placed.memory = memory.filter(|_| placed.state.shares_memory);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PlacedState>> {
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
    fn state_updated_in_place_keeps_the_memory_of_the_backend() {
        for shares_memory in [false, true] {
            let value = Tensor::new("SUM_IN", DataType::Int32, [1], vec![1, 0, 0, 0]);
            let state = SequenceState { output: "SUM_OUT".into(), value, shares_memory };
            let states = SequenceStates::new(vec![state]);
            let memory: StateMemory = Arc::new("of the backend");
            let is_kept = || states.memory("SUM_OUT").is_some_and(|kept| Arc::ptr_eq(&kept, &memory));
            let place = |contents: &[u8]| {
                assert_eq!(contents, [1, 0, 0, 0]);
                Ok((Buffer::host(contents.to_vec()), Arc::clone(&memory)))
            };
            assert_eq!(states.place(place).unwrap().len(), usize::from(shares_memory));
            assert!(states.place(place).unwrap().is_empty(), "a value is moved once");
            assert_eq!(is_kept(), shares_memory);
            let update = |memory: Option<&StateMemory>| {
                let buffer = Buffer::host(vec![2, 0, 0, 0]);
                match memory {
                    Some(memory) => states.update_in_place(
                        "SUM_OUT",
                        DataType::Int32,
                        [1].into(),
                        buffer,
                        Arc::clone(memory),
                    ),
                    None => states.update("SUM_OUT", DataType::Int32, [1].into(), smallvec![buffer]),
                }
            };
            update(Some(&memory)).unwrap();
            assert_eq!(is_kept(), shares_memory);
            update(None).unwrap();
            assert!(states.memory("SUM_OUT").is_none(), "the value is elsewhere now");
        }
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
