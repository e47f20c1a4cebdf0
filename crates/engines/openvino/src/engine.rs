//! Runs a compiled network on a batch's inputs.
//!
//! Fixed-size inputs are read in the memory that they are in. Outputs are copied once, to where the client wants them if that is
//! known, because the library uses their memory for the next run. Knows nothing of how requests make a batch.

use std::cell::RefCell;
use std::ffi::{CString, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use nereid_backend_api::{BytesElements, DataType, Error, Result, Shape, Tensor};
use nereid_graph_executor::{Contents, Elements, Engine, GraphModel, Port, RunInput, Target, Words};

use crate::api::{ElementType, INVALID_PARAMETER, RawShape, Request, TensorObject};
use crate::objects::{CompiledNetwork, Handle};

/// One instance: a place to run a compiled network in.
pub(crate) struct OvEngine {
    request: Handle<Request>,
    /// Set if the network keeps values between runs: each run then has a place of its own, which begins without any.
    afresh: Option<Arc<CompiledNetwork>>,
    model: Arc<GraphModel>,
    /// The index of each input and output of the model among the network's.
    places: Places,
    /// Memory of earlier copies, for the next. No more than a run has inputs.
    spare: RefCell<Vec<Words>>,
}

/// The indexes of the model's inputs and outputs in the network.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
}

/// An input, ready to be run on.
pub(crate) enum Value {
    Fixed(Elements),
    Strings(Vec<CString>),
}

impl OvEngine {
    /// # Errors
    /// The library failed.
    pub(crate) fn new(
        compiled: &Arc<CompiledNetwork>,
        model: &Arc<GraphModel>,
        places: Places,
        keeps_values: bool,
    ) -> Result<Self> {
        let request = compiled.request().map_err(|why| failed(&why))?;
        let afresh = keeps_values.then(|| Arc::clone(compiled));
        Ok(Self { request, afresh, model: Arc::clone(model), places, spare: RefCell::default() })
    }

    fn set(&self, at: usize, given: &RunInput<Value>) -> Result<(), String> {
        let data_type = self.model.inputs[at].port.data_type;
        let tensor = self.tensor(data_type, given)?;
        let set = self.request.library.api.request_set_input;
        // SAFETY: request and tensor live; the request shares what the tensor refers to, which outlives the run.
        self.request.library.check(unsafe { set(self.request.ptr(), self.places.inputs[at], tensor.ptr()) })
    }

    /// The input in the library's form, over the same memory.
    fn tensor(&self, data_type: DataType, given: &RunInput<Value>) -> Result<Handle<TensorObject>, String> {
        let library = &self.request.library;
        let api = &library.api;
        let mut dims = given.shape.to_vec();
        let shape = RawShape { rank: dims.len() as i64, dims: dims.as_mut_ptr() };
        match &given.value {
            Value::Fixed(elements) => {
                let data: *const u8 = elements.as_bytes().as_ptr();
                let number = library.types.number(data_type);
                // SAFETY: shape and contents live, the contents fit the shape, as was checked, and are aligned. The
                // library does not write to an input.
                Handle::make(library, api.tensor_free, |tensor| unsafe {
                    (api.tensor_over)(number, shape, data.cast::<c_void>().cast_mut(), tensor)
                })
            }
            Value::Strings(strings) => {
                let create = library.optional(api.tensor_of_strings, "ov_tensor_create_from_string_array")?;
                let pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
                // SAFETY: shape and strings live, their number fits the shape, and the library copies them.
                Handle::make(library, api.tensor_free, |tensor| unsafe {
                    create(pointers.as_ptr(), pointers.len(), shape, tensor)
                })
            }
        }
    }

    /// An output; `None` if it was written to its target.
    fn output(&self, at: usize, target: Option<&mut Target>) -> Result<Option<Raw>, String> {
        let library = &self.request.library;
        let api = &library.api;
        let get = api.request_output;
        // SAFETY: the request lives, and the place is valid to write.
        let tensor = Handle::make(library, api.tensor_free, |tensor| unsafe {
            get(self.request.ptr(), self.places.outputs[at], tensor)
        })?;
        let (mut number, mut size, mut data) = (ElementType::default(), 0, ptr::null_mut());
        let mut raw = RawShape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the tensor lives, and the places are valid to write. The library reports the number of
        // dimensions with them; they are freed after they were read.
        let shape: Shape = unsafe {
            library.check((api.tensor_type)(tensor.ptr(), &raw mut number))?;
            library.check((api.tensor_byte_size)(tensor.ptr(), &raw mut size))?;
            match (api.tensor_shape)(tensor.ptr(), &raw mut raw) {
                // The interface has no shape without dimensions, and with valid places it refuses nothing else.
                INVALID_PARAMETER => Shape::scalar(),
                status => {
                    library.check(status)?;
                    let dims = if raw.dims.is_null() { 0 } else { raw.rank };
                    let shape = (0..dims).map(|at| *raw.dims.offset(at as isize)).collect();
                    (api.shape_free)(&raw mut raw);
                    shape
                }
            }
        };
        if size > 0 {
            // SAFETY: as above.
            library.check(unsafe { (api.tensor_data)(tensor.ptr(), &raw mut data) })?;
        }
        let contents: &[u8] = if data.is_null() {
            &[]
        } else {
            // SAFETY: the library keeps the elements in one run of that size from this address on, for as long as the
            // tensor lives, and writes to them only in the next run.
            unsafe { slice::from_raw_parts(data.cast(), size) }
        };
        let declared = self.model.outputs[at].port.data_type;
        if let Some(Target { shape: expected, memory }) = target
            && *expected == shape
            && number == library.types.number(declared)
            && let Some(place) = memory.as_mut_slice().filter(|place| place.len() == contents.len())
        {
            place.copy_from_slice(contents);
            return Ok(None);
        }
        let contents = match library.types.of_number(number) {
            Some(DataType::Bytes) => Contents::Strings(read_strings(contents, &shape)?),
            _ => Contents::Fixed(Bytes::copy_from_slice(contents)),
        };
        Ok(Some((number, shape, contents)))
    }

    fn outputs(
        &mut self,
        inputs: &[Option<RunInput<Value>>],
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<Raw>>, String> {
        if let Some(compiled) = &self.afresh {
            self.request = compiled.request()?;
        }
        for (at, given) in inputs.iter().enumerate() {
            if let Some(given) = given {
                self.set(at, given)?;
            }
        }
        let infer = self.request.library.api.request_infer;
        // SAFETY: the request lives and is ours alone, and all its inputs are set.
        self.request.library.check(unsafe { infer(self.request.ptr()) })?;
        let mut targets = targets.iter_mut();
        let outputs = 0..self.places.outputs.len();
        outputs.map(|at| self.output(at, targets.next().and_then(Option::as_mut))).collect()
    }
}

/// Type, shape and contents of an output.
type Raw = (ElementType, Shape, Contents);

impl Engine for OvEngine {
    const WRITES_TARGETS: bool = true;
    // Outputs are copied there after the run.
    const READS_TARGETS: bool = false;

    type Value = Value;
    type Raw = Raw;

    fn check(&self, port: &Port, tensor: &Tensor) -> Result<()> {
        if port.data_type != DataType::Bytes {
            return Ok(());
        }
        for element in BytesElements::new(&tensor.contiguous()?) {
            if element?.contains(&0) {
                return Err(Error::invalid_arg(format!(
                    "input '{}' has a string with a zero byte, which OpenVINO does not take",
                    port.name
                )));
            }
        }
        Ok(())
    }

    fn gather(&self, port: &Port, _shape: &Shape, parts: &[&Tensor]) -> Result<Value> {
        if port.data_type != DataType::Bytes {
            let spare = || self.spare.borrow_mut().pop().unwrap_or_default();
            return Elements::join(port.data_type, parts, spare).map(Value::Fixed);
        }
        let mut strings = Vec::new();
        for part in parts {
            for element in BytesElements::new(&part.contiguous()?) {
                let string = CString::new(element?);
                strings
                    .push(string.map_err(|_| Error::internal("a string with a zero byte was not refused"))?);
            }
        }
        Ok(Value::Strings(strings))
    }

    fn run(
        &mut self,
        inputs: Vec<Option<RunInput<Value>>>,
        targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<Raw>>> {
        let outcome = self.outputs(&inputs, targets).map_err(|why| failed(&why));
        let mut spare = self.spare.borrow_mut();
        for given in inputs.into_iter().flatten() {
            if let Value::Fixed(Elements::Copied(words, _)) = given.value
                && spare.len() < self.model.inputs.len()
            {
                spare.push(words);
            }
        }
        outcome
    }

    fn read(&self, port: &Port, (number, shape, contents): Raw) -> Result<(Shape, Contents)> {
        if number == self.request.library.types.number(port.data_type) {
            return Ok((shape, contents));
        }
        let (name, declared) = (&port.name, port.data_type);
        Err(Error::internal(format!("output '{name}' is not {declared}, as the model declares it")))
    }
}

/// A `std::string` of GNU's C++ library, which the wheels and packages of OpenVINO for Linux are built with.
#[repr(C)]
struct CxxString {
    data: *const u8,
    len: usize,
    _rest: [usize; 2],
}

/// The strings of a tensor, which `contents` holds as C++ does.
fn read_strings(contents: &[u8], shape: &Shape) -> Result<Vec<Vec<u8>>, String> {
    let count = shape.element_count().unwrap_or(0);
    if count == 0 {
        return Ok(Vec::new());
    }
    if contents.len() != count * size_of::<CxxString>() {
        return Err("the library keeps strings in an unknown form".to_owned());
    }
    // SAFETY: the tensor has `count` strings, which the library built: an element of this size can only have the form
    // declared above, an address and a length. The strings live as long as the tensor.
    let strings = unsafe { slice::from_raw_parts(contents.as_ptr().cast::<CxxString>(), count) };
    let string = |string: &CxxString| {
        if string.len == 0 || string.data.is_null() {
            return Vec::new();
        }
        // SAFETY: as above.
        unsafe { slice::from_raw_parts(string.data, string.len) }.to_vec()
    };
    Ok(strings.iter().map(string).collect())
}

fn failed(why: &str) -> Error {
    Error::internal(format!("OpenVINO failed: {why}"))
}
