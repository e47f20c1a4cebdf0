//! Implicit states of sequences: how a backend replaces their values.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nereid_backend_api::{Buffer, DataType, Error, Memory, Result, SequenceStates, Shape};
use triton_sys::*;

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
    bytes: Vec<u8>,
    attributes: LentHandle<BufferAttributes>,
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

    /// Allocates memory for the value. Replaces earlier memory unless the size is the same.
    fn allocate(&self, byte_size: u64) -> Result<*mut c_void> {
        let mut contents = self.contents();
        if let Some(contents) = contents.as_mut().filter(|contents| contents.bytes.len() as u64 == byte_size)
        {
            return Ok(contents.bytes.as_mut_ptr().cast());
        }
        let no_room =
            || Error::unavailable(format!("cannot allocate {byte_size} bytes for state '{}'", self.name));
        let size = usize::try_from(byte_size).map_err(|_| no_room())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| no_room())?;
        // If input and output share memory, the backend expects the current value there.
        bytes.extend(self.states.shared_value(&self.name).into_iter().flatten().take(size));
        bytes.resize(size, 0);
        let address = bytes.as_mut_ptr().cast();
        let attributes = LentHandle::new(BufferAttributes::new(Memory::HOST, size))?;
        *contents = Some(Contents { bytes, attributes });
        Ok(address)
    }

    /// Commits the value for the sequence's next request.
    fn update(&self) -> Result<()> {
        let contents = self.contents().take().map(|contents| contents.bytes);
        if contents.is_none() && self.shape.element_count() != Some(0) {
            return Err(Error::invalid_arg(format!(
                "state '{}' has no memory, so nothing was written",
                self.name
            )));
        }
        let buffers = [Buffer::host(Bytes::from(contents.unwrap_or_default()))].into_iter().collect();
        self.states.update(&self.name, self.data_type, self.shape.clone(), buffers)
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
