//! Implicit states of sequences: how a backend replaces their values.

mod memory;

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{DataType, Error, InferRequest, Memory, Result, SequenceStates, Shape};
use triton_sys::*;

use self::memory::WritableMemory;
use crate::attributes::BufferAttributes;
use crate::boundary::exports;
use crate::handle::LentHandle;
use crate::names::{data_type_from_c, memory_from_c, memory_to_c};

/// A new value of a state behind a C handle, until its request is released. The request keeps it.
pub(crate) struct State {
    states: Arc<SequenceStates>,
    name: String,
    data_type: DataType,
    shape: Shape,
    contents: Mutex<Option<Contents>>,
}

struct Contents {
    memory: Arc<WritableMemory>,
    attributes: LentHandle<BufferAttributes>,
}

/// Moves states that are updated in place, and the inputs of a request that hold them, to memory that C may write.
///
/// # Errors
/// The memory cannot be allocated.
pub(crate) fn place(states: &SequenceStates, request: &mut InferRequest) -> Result<()> {
    let moved = states.place(|contents| {
        let memory = WritableMemory::copy_of(contents, contents.len())?;
        Ok((memory.buffer(), memory as Arc<dyn Any + Send + Sync>))
    })?;
    for value in moved {
        if let Some(input) = request.inputs.iter_mut().find(|input| input.name == value.name) {
            *input = value;
        }
    }
    Ok(())
}

impl State {
    /// A new value for a state.
    ///
    /// # Errors
    /// `InvalidArg` if no state has that output name.
    pub(crate) fn new(
        states: Arc<SequenceStates>,
        name: String,
        data_type: DataType,
        shape: Shape,
    ) -> Result<Self> {
        if states.has(&name) {
            return Ok(Self { states, name, data_type, shape, contents: Mutex::default() });
        }
        let names: Vec<_> = states.all().into_iter().map(|state| format!("'{}'", state.output)).collect();
        let names = names.join(", ");
        Err(Error::invalid_arg(format!("unknown state '{name}' (the model's states: {names})")))
    }

    fn contents(&self) -> MutexGuard<'_, Option<Contents>> {
        // Each change is one assignment.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for the value. Replaces earlier memory unless the size is the same. If input and output share memory, this
    /// is the input's.
    fn allocate(&self, byte_size: u64) -> Result<*mut c_void> {
        let mut contents = self.contents();
        let fits = |memory: &Arc<WritableMemory>| memory.len() as u64 == byte_size;
        if let Some(contents) = contents.as_ref().filter(|contents| fits(&contents.memory)) {
            return Ok(contents.memory.address());
        }
        let current = self.states.memory(&self.name);
        let current = current.and_then(|memory| memory.downcast::<WritableMemory>().ok()).filter(fits);
        let memory = current.map_or_else(|| self.new_memory(byte_size), Ok)?;
        let address = memory.address();
        let attributes = LentHandle::new(BufferAttributes::new(Memory::HOST, memory.len()))?;
        *contents = Some(Contents { memory, attributes });
        Ok(address)
    }

    /// New memory. If input and output share memory, it begins with the current value.
    fn new_memory(&self, byte_size: u64) -> Result<Arc<WritableMemory>> {
        let size = usize::try_from(byte_size).unwrap_or(usize::MAX);
        let contents = self.states.shared_value(&self.name).unwrap_or_default();
        WritableMemory::copy_of(&contents, size)
            .map_err(|error| error.context(format_args!("state '{}'", self.name)))
    }

    /// Commits the value for the sequence's next request.
    fn update(&self) -> Result<()> {
        let memory = match self.contents().take() {
            Some(contents) => contents.memory,
            None if self.shape.element_count() == Some(0) => self.new_memory(0)?,
            None => {
                let message = format!("state '{}' has no memory, so nothing was written", self.name);
                return Err(Error::invalid_arg(message));
            }
        };
        let buffer = memory.buffer();
        self.states.update_in_place(&self.name, self.data_type, self.shape.clone(), buffer, memory)
    }
}

exports! {
    fn TRITONBACKEND_StateNew(
        state: *mut *mut TRITONBACKEND_State,
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dims_count: u32,
    ) {
        let request = request.get()?;
        let Some(states) = request.states() else {
            return Err(Error::invalid_arg(format!(
                "unknown state '{}': model '{}' has no states",
                name.read_optional().unwrap_or_default(),
                request.model_name(),
            )));
        };
        let shape = shape.elements(dims_count.into())?.into_iter().collect();
        let new = State::new(states, name.read()?.into_owned(), data_type_from_c(datatype)?, shape)?;
        state.get()?;
        state.set(request.keep_state(new)?.as_c())?;
    }

    fn TRITONBACKEND_StateUpdate(state: *mut TRITONBACKEND_State) {
        state.get()?.update()?;
    }

    fn TRITONBACKEND_StateBuffer(
        state: *mut TRITONBACKEND_State,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let state = state.get()?;
        buffer.set(ptr::null_mut())?;
        memory_from_c(memory_type.get()?, memory_type_id.get()?)?;
        buffer.set(state.allocate(buffer_byte_size)?)?;
        memory_type.set(memory_to_c(Memory::HOST))?;
        memory_type_id.set(Memory::HOST.device)?;
    }

    fn TRITONBACKEND_StateBufferAttributes(
        state: *mut TRITONBACKEND_State,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        let state = state.get()?;
        let contents = state.contents();
        let contents = contents
            .as_ref()
            .ok_or_else(|| Error::invalid_arg(format!("state '{}' has no memory yet", state.name)))?;
        buffer_attributes.set(contents.attributes.handle().as_c())?;
    }
}
