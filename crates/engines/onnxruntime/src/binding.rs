//! Runs a session on memory that is bound to its inputs and outputs: ONNX Runtime's IO binding.
//!
//! The `ort` crate's own binding places outputs only in the library's memory. Here an output can be placed anywhere.

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::slice;

use nereid_backend_api::{DataType, Shape};
use ort::AsPointer;
use ort::memory::{Allocator, MemoryInfo};
use ort::session::{RunOptions, SessionInputValue};
use ort::sys::{OrtIoBinding, OrtValue};
use ort::value::DynValue;

use crate::options::OwnSession;
use crate::signature::element_type;

/// A session and the memory bound for its next run.
pub(crate) struct Binding {
    bound: NonNull<OrtIoBinding>,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
    /// Host memory.
    host: MemoryInfo<'static>,
    /// For lists that the library allocates.
    allocator: Allocator,
    /// Dropped last: the binding refers to it.
    session: OwnSession,
}

// SAFETY: the library's binding belongs to no thread, and `&mut` sees to it that only one at a time uses it.
unsafe impl Send for Binding {}

/// Memory for an output.
pub(crate) struct OutputMemory<'a> {
    pub(crate) data_type: DataType,
    pub(crate) shape: &'a Shape,
    /// Exactly the size of these elements, and aligned for them.
    pub(crate) bytes: &'a mut [u8],
}

impl Binding {
    /// A binding of the session's inputs and outputs of these names.
    ///
    /// # Errors
    /// The library failed.
    pub(crate) fn new<'a>(
        session: OwnSession,
        inputs: impl Iterator<Item = &'a str>,
        outputs: impl Iterator<Item = &'a str>,
    ) -> ort::Result<Self> {
        let named = |name: &str| CString::new(name).map_err(|error| ort::Error::new(error.to_string()));
        let inputs = inputs.map(named).collect::<ort::Result<_>>()?;
        let outputs = outputs.map(named).collect::<ort::Result<_>>()?;
        let mut bound = ptr::null_mut();
        // SAFETY: the session lives, and the place for the binding is valid to write. The library changes nothing of the
        // session, though it takes it as mutable.
        unsafe {
            let create = ort::api().CreateIoBinding;
            ort::Error::result_from_status(create(session.ptr().cast_mut(), &raw mut bound))?;
        }
        let bound = NonNull::new(bound).ok_or_else(|| ort::Error::new("there is no binding"))?;
        let (host, allocator) = (MemoryInfo::default(), Allocator::default());
        Ok(Self { bound, inputs, outputs, host, allocator, session })
    }

    /// Runs on these inputs, each with its index among the names. An output is written to its target, or else returned in
    /// the library's memory.
    ///
    /// # Errors
    /// The library failed. What is wanted in memory may then be partly written.
    pub(crate) fn run(
        &mut self,
        options: &RunOptions,
        inputs: &[(usize, SessionInputValue<'_>)],
        wanted: &mut [Option<OutputMemory<'_>>],
    ) -> ort::Result<Vec<Option<DynValue>>> {
        let outcome = self.run_bound(options, inputs, wanted);
        // Even after a failure, nothing in the caller's memory stays bound.
        // SAFETY: the binding lives, and nothing runs on it.
        unsafe {
            (ort::api().ClearBoundInputs)(self.bound.as_ptr());
            (ort::api().ClearBoundOutputs)(self.bound.as_ptr());
        }
        outcome
    }

    fn run_bound(
        &mut self,
        options: &RunOptions,
        inputs: &[(usize, SessionInputValue<'_>)],
        wanted: &mut [Option<OutputMemory<'_>>],
    ) -> ort::Result<Vec<Option<DynValue>>> {
        let (api, bound) = (ort::api(), self.bound.as_ptr());
        for (at, value) in inputs {
            // SAFETY: binding, name and value live. The binding shares the value's tensor, whose memory is borrowed
            // for longer than it stays bound.
            unsafe {
                let status = (api.BindInput)(bound, self.inputs[*at].as_ptr(), value.ptr());
                ort::Error::result_from_status(status)?;
            }
        }
        for (at, name) in self.outputs.iter().enumerate() {
            let target = wanted.get_mut(at).and_then(Option::as_mut);
            let value = target.map(|target| over(&self.host, target)).transpose()?;
            // SAFETY: as above, of the output's memory, which is borrowed mutably and therefore not shared.
            unsafe {
                let status = match &value {
                    Some(value) => (api.BindOutput)(bound, name.as_ptr(), value.ptr()),
                    None => (api.BindOutputToDevice)(bound, name.as_ptr(), self.host.ptr()),
                };
                ort::Error::result_from_status(status)?;
            }
        }
        // SAFETY: all three live. The session is ours alone, and so is the binding.
        unsafe {
            let session = self.session.ptr().cast_mut();
            ort::Error::result_from_status((api.RunWithBinding)(session, options.ptr(), bound))?;
        }
        let values = self.outputs()?;
        let is_wanted = |at: usize| wanted.get(at).is_some_and(Option::is_some);
        Ok(values.into_iter().enumerate().map(|(at, value)| (!is_wanted(at)).then_some(value)).collect())
    }

    /// The outputs of a run that ended, in the order of their names.
    fn outputs(&self) -> ort::Result<Vec<DynValue>> {
        let (mut list, mut count) = (ptr::null_mut::<*mut OrtValue>(), 0);
        // SAFETY: binding and allocator live, and both places are valid to write.
        unsafe {
            let get = ort::api().GetBoundOutputValues;
            let allocator = self.allocator.ptr().cast_mut();
            let status = get(self.bound.as_ptr(), allocator, &raw mut list, &raw mut count);
            ort::Error::result_from_status(status)?;
        }
        if list.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: the library made a list of this many values; the caller releases each, and the list.
        let values = unsafe {
            let values = slice::from_raw_parts(list, count).iter().filter_map(|&value| {
                let value = NonNull::new(value)?;
                Some(DynValue::from_ptr(value, Some(self.session.inner())))
            });
            let values: Vec<_> = values.collect();
            self.allocator.free(list);
            values
        };
        if values.len() == self.outputs.len() {
            Ok(values)
        } else {
            Err(ort::Error::new(format!("{} of {} outputs were given", values.len(), self.outputs.len())))
        }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: made by the library, and released once; the session it refers to is dropped afterwards.
        unsafe { (ort::api().ReleaseIoBinding)(self.bound.as_ptr()) };
    }
}

/// A tensor over the memory, which must not be used once the memory is not borrowed any more.
fn over(host: &MemoryInfo<'static>, target: &mut OutputMemory<'_>) -> ort::Result<DynValue> {
    let (shape, bytes) = (&target.shape[..], &mut *target.bytes);
    let mut value = ptr::null_mut();
    // SAFETY: the memory has the stated length, and the library refuses a shape that needs more. It is aligned for the
    // elements. The value does not own it.
    unsafe {
        let create = ort::api().CreateTensorWithDataAsOrtValue;
        let element = element_type(target.data_type).into();
        let data = bytes.as_mut_ptr().cast();
        let status =
            create(host.ptr(), data, bytes.len(), shape.as_ptr(), shape.len(), element, &raw mut value);
        ort::Error::result_from_status(status)?;
        let value = NonNull::new(value).ok_or_else(|| ort::Error::new("there is no tensor"))?;
        Ok(DynValue::from_ptr(value, None))
    }
}
