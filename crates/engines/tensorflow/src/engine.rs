//! Runs a session on a batch's inputs.
//!
//! Inputs of a fixed size are read in place: the library's tensor keeps their memory alive. Outputs stay in the
//! library's memory. Does not know how requests form a batch.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use nereid_backend_api::{BytesElements, DataType, Error, Result, Shape, Tensor};
use nereid_graph_executor::{Contents, Elements, Engine, GraphModel, Port, RunInput, Target};

use crate::api::{Output, TString};
use crate::library::TensorFlow;
use crate::session::{OwnTensor, Session};
use crate::types;

/// Where the model's inputs and outputs are in the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) inputs: Vec<Output>,
    pub(crate) outputs: Vec<Output>,
}

// SAFETY: the operations belong to a graph, which is not bound to a thread; they are only used with its session.
unsafe impl Send for Places {}

/// One instance.
pub(crate) struct TfEngine {
    pub(crate) session: Arc<Session>,
    pub(crate) model: Arc<GraphModel>,
    pub(crate) places: Places,
    /// The inputs of the current run in memory.
    pub(crate) addresses: RefCell<Vec<Range<usize>>>,
}

/// An input, ready to run.
pub(crate) enum Value {
    Fixed(Elements),
    Strings(Vec<Vec<u8>>),
}

impl TfEngine {
    fn tensor(&self, data_type: DataType, given: RunInput<Value>) -> Result<OwnTensor, String> {
        let library = &self.session.library;
        let number = types::number(data_type);
        let tensor = match given.value {
            Value::Fixed(elements) => fixed(library, number, &given.shape, elements)?,
            Value::Strings(strings) => strings_tensor(library, number, &given.shape, &strings)?,
        };
        Ok(OwnTensor { tensor, library: Arc::clone(library) })
    }

    fn outputs(&self, inputs: Vec<Option<RunInput<Value>>>) -> Result<Vec<OwnTensor>, String> {
        let mut addresses = self.addresses.borrow_mut();
        addresses.clear();
        let mut tensors = Vec::with_capacity(inputs.len());
        for (at, given) in inputs.into_iter().enumerate() {
            let Some(given) = given else { continue };
            if let Value::Fixed(elements) = &given.value {
                addresses.push(elements.addresses());
            }
            tensors.push((self.places.inputs[at], self.tensor(self.model.inputs[at].port.data_type, given)?));
        }
        self.session.run(&tensors, &self.places.outputs, &[])
    }

    fn contents(&self, output: OwnTensor, is_strings: bool, count: usize) -> Result<Contents, String> {
        let bytes = output.as_ref();
        if is_strings {
            return strings_of(&output, count).map(Contents::Strings);
        }
        // A graph may return an input as an output. That memory is the client's, who may change it.
        let start = bytes.as_ptr().addr();
        if self.addresses.borrow().iter().any(|input| input.contains(&start)) {
            return Ok(Contents::Fixed(Bytes::copy_from_slice(bytes)));
        }
        Ok(Contents::Fixed(Bytes::from_owner(output)))
    }
}

/// The number of dimensions, as C's type.
fn rank(shape: &Shape) -> Result<c_int, String> {
    c_int::try_from(shape.len()).map_err(|error| error.to_string())
}

/// A tensor over the memory of the elements, which it keeps alive.
fn fixed(
    library: &TensorFlow,
    number: c_int,
    shape: &Shape,
    elements: Elements,
) -> Result<*mut crate::api::Tensor, String> {
    // SAFETY: only the library calls it, when it releases the tensor.
    unsafe extern "C" fn free(_: *mut c_void, _: usize, elements: *mut c_void) {
        // SAFETY: the library calls this once, with the pointer that the tensor was created with: a box turned into a
        // raw pointer.
        drop(unsafe { Box::from_raw(elements.cast::<Elements>()) });
    }
    let rank = rank(shape)?;
    let elements = Box::new(elements);
    let (data, len) = (elements.as_bytes().as_ptr(), elements.as_bytes().len());
    let owner = Box::into_raw(elements);
    // SAFETY: the shape is alive and has the stated number of dimensions. The size of the contents was checked against
    // it. They stay in place until `free` is called. The library copies contents that are not aligned as it needs, and
    // does not write to memory that it does not own.
    let tensor = unsafe {
        (library.api.new_tensor)(
            number,
            shape.as_ptr(),
            rank,
            data.cast_mut().cast(),
            len,
            free,
            owner.cast(),
        )
    };
    if tensor.is_null() { Err("an input was refused".to_owned()) } else { Ok(tensor) }
}

fn strings_tensor(
    library: &TensorFlow,
    number: c_int,
    shape: &Shape,
    strings: &[Vec<u8>],
) -> Result<*mut crate::api::Tensor, String> {
    let api = &library.api;
    let size = strings.len().checked_mul(size_of::<TString>()).ok_or("too many strings")?;
    // SAFETY: the shape is alive and has the stated number of dimensions.
    let tensor = unsafe { (api.allocate_tensor)(number, shape.as_ptr(), rank(shape)?, size) };
    if tensor.is_null() {
        return Err("an input was refused".to_owned());
    }
    // SAFETY: the tensor is alive and has room for all strings: the shape was checked against their number. Each string
    // is initialised before it is written, and the library copies it.
    unsafe {
        let place = (api.tensor_data)(tensor).cast::<TString>();
        for (at, string) in strings.iter().enumerate() {
            (api.string_init)(place.add(at));
            (api.string_copy)(place.add(at), string.as_ptr().cast(), string.len());
        }
    }
    Ok(tensor)
}

fn strings_of(output: &OwnTensor, count: usize) -> Result<Vec<Vec<u8>>, String> {
    let contents = output.as_ref();
    if contents.len() != count * size_of::<TString>() {
        return Err("the library keeps strings in an unknown form".to_owned());
    }
    let (api, first) = (&output.library.api, contents.as_ptr().cast::<TString>());
    let strings = (0..count).map(|at| {
        // SAFETY: the tensor is alive and holds `count` strings. The library reports the length of each.
        unsafe {
            let string = first.add(at);
            let (data, len) = ((api.string_data)(string), (api.string_size)(string));
            let data = if len == 0 || data.is_null() { ptr::dangling() } else { data.cast::<u8>() };
            slice::from_raw_parts(data, len).to_vec()
        }
    });
    Ok(strings.collect())
}

impl Engine for TfEngine {
    type Value = Value;
    type Raw = OwnTensor;

    fn check(&self, _port: &Port, _tensor: &Tensor) -> Result<()> {
        Ok(())
    }

    fn gather(&self, port: &Port, _shape: &Shape, parts: &[&Tensor]) -> Result<Value> {
        if port.data_type != DataType::Bytes {
            return Elements::join(port.data_type, parts, Vec::new).map(Value::Fixed);
        }
        let mut strings = Vec::new();
        for part in parts {
            for element in BytesElements::new(&part.contiguous()?) {
                strings.push(element?.to_vec());
            }
        }
        Ok(Value::Strings(strings))
    }

    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<Value>>>,
        _targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<OwnTensor>>> {
        if self.model.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let outputs = self.outputs(inputs).map_err(|why| failed(&why))?;
        Ok(outputs.into_iter().map(Some).collect())
    }

    fn read(&self, port: &Port, output: OwnTensor) -> Result<(Shape, Contents)> {
        let api = &output.library.api;
        // SAFETY: the tensor is alive, and the index is one of its dimensions.
        let (number, shape) = unsafe {
            let rank = (api.tensor_dim_count)(output.tensor).max(0);
            let dims = (0..rank).map(|at| (api.tensor_dim)(output.tensor, at));
            ((api.tensor_type)(output.tensor), dims.collect::<Shape>())
        };
        let (name, declared) = (&port.name, port.data_type);
        if number != types::number(declared) {
            return Err(Error::internal(format!(
                "output '{name}' is not {declared}, as the model declares it"
            )));
        }
        let count = shape.element_count().unwrap_or(0);
        let contents = self.contents(output, declared == DataType::Bytes, count);
        Ok((shape, contents.map_err(|why| failed(&why))?))
    }
}

fn failed(why: &str) -> Error {
    Error::internal(format!("TensorFlow failed: {why}"))
}
