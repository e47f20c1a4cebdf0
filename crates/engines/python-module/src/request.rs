//! `InferenceRequest`: a received request, or a request to another model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nereid_worker_protocol::tensor as wire;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PySet, PyString};

use crate::constants::{MemoryType, exception};
use crate::exchange::{Exchange, ResponseSender};
use crate::inner::InnerCall;
use crate::parameters::Parameters;
use crate::response::Tensors;
use crate::runner;
use crate::tensor::Tensor;

/// Returns a request to its scheduler.
const RELEASE_RESCHEDULE: u32 = 2;

/// The sequence of a request.
pub enum Correlation {
    Number(u64),
    Text(String),
}

/// A request, as models see it.
#[pyclass(module = "c_python_backend_utils", frozen, subclass)]
pub struct InferenceRequest {
    pub id: String,
    pub correlation: Correlation,
    pub flags: AtomicU32,
    pub timeout: u64,
    pub parameters: Parameters,
    pub outputs: Vec<String>,
    pub inputs: Vec<Py<Tensor>>,
    pub trace: Option<String>,
    /// The model to call; empty for a received request.
    pub model: String,
    pub version: i64,
    /// The handle of the request whose trace this one continues, or 0.
    pub parent: u64,
    /// The GPU on which the called model's outputs are preferred.
    pub preferred_gpu: Option<i32>,
    /// Answers the request, if it was received.
    pub exchange: Option<Arc<Exchange>>,
    /// The sender of its responses.
    pub sender: PyOnceLock<Py<ResponseSender>>,
}

impl InferenceRequest {
    /// A received request, and the exchange that answers it.
    pub fn received(
        python: Python<'_>,
        request: wire::Request<'_>,
        inputs: Vec<wire::Tensor<'_>>,
        exchange: Arc<Exchange>,
    ) -> PyResult<Self> {
        let inputs = inputs.into_iter().map(|input| Py::new(python, Tensor::received(python, input)?));
        let inputs = inputs.collect::<PyResult<_>>()?;
        Ok(Self {
            id: request.id.to_owned(),
            correlation: match request.correlation {
                wire::Correlation::None => Correlation::Number(0),
                wire::Correlation::Number(number) => Correlation::Number(number),
                wire::Correlation::Text(text) => Correlation::Text(text.to_owned()),
            },
            flags: request.flags.into(),
            timeout: request.timeout,
            parameters: Parameters::received(request.parameters),
            outputs: exchange.outputs().to_vec(),
            inputs,
            trace: request.trace.map(str::to_owned),
            model: String::new(),
            version: -1,
            parent: 0,
            preferred_gpu: None,
            exchange: Some(exchange),
            sender: PyOnceLock::new(),
        })
    }

    /// The server's handle of the request; 0 for a request to another model.
    pub fn handle(&self) -> u64 {
        self.exchange.as_ref().map_or(0, |exchange| exchange.handle())
    }
}

/// The flags of a request: [`wire::SEQUENCE_START`] and [`wire::SEQUENCE_END`].
struct Flags(u32);

impl<'py> FromPyObject<'_, 'py> for Flags {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let flags =
            object.extract().map_err(|_| PyTypeError::new_err("flags must be an int from 0 to 2^32 - 1"))?;
        Ok(Self(flags))
    }
}

/// A request's trace.
#[pyclass(module = "c_python_backend_utils", frozen)]
pub struct InferenceTrace {
    context: Option<String>,
    /// The handle of its request.
    handle: u64,
}

#[pymethods]
impl InferenceTrace {
    fn get_context(&self) -> Option<&str> {
        self.context.as_deref().filter(|context| !context.is_empty())
    }
}

/// The preferred memory for another model's outputs: on this GPU, or on the host.
#[pyclass(module = "c_python_backend_utils", frozen)]
pub struct PreferredMemory(Option<i32>);

#[pymethods]
impl PreferredMemory {
    #[new]
    #[pyo3(signature = (preferred_memory_type, preferred_device_id = 0))]
    fn new(preferred_memory_type: MemoryType, preferred_device_id: i64) -> Self {
        // For a GPU that does not exist, the outputs are in CPU memory.
        let gpu =
            (preferred_memory_type == MemoryType::Gpu).then(|| preferred_device_id.try_into().unwrap_or(-1));
        Self(gpu)
    }
}

#[pymethods]
impl InferenceRequest {
    #[new]
    #[pyo3(signature = (
        request_id = String::new(), correlation_id = None, inputs = None, requested_output_names = None,
        model_name = None, model_version = -1, flags = Flags(0), timeout = 0, preferred_memory = None, trace = None,
        parameters = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the models' interface")]
    fn new(
        request_id: String,
        correlation_id: Option<&Bound<'_, PyAny>>,
        inputs: Option<Tensors>,
        requested_output_names: Option<Vec<String>>,
        model_name: Option<String>,
        model_version: i64,
        flags: Flags,
        timeout: u64,
        preferred_memory: Option<&Bound<'_, PreferredMemory>>,
        trace: Option<&Bound<'_, InferenceTrace>>,
        parameters: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (Some(inputs), Some(outputs), Some(model)) = (inputs, requested_output_names, model_name) else {
            return Err(PyTypeError::new_err(
                "InferenceRequest() needs inputs, requested_output_names and model_name",
            ));
        };
        let whose =
            || format!("for request with id '{request_id}' and model name '{model}' should not be empty.");
        let inputs: Option<Vec<_>> = inputs.0.into_iter().collect();
        let inputs = inputs.ok_or_else(|| exception(format!("Input tensor {}", whose())))?;
        if outputs.iter().any(String::is_empty) {
            return Err(exception(format!("Requested output name {}", whose())));
        }
        let correlation = match correlation_id {
            None => Correlation::Number(0),
            Some(text) if text.is_instance_of::<PyString>() => Correlation::Text(text.extract()?),
            Some(number) if number.is_instance_of::<PyInt>() => Correlation::Number(
                number
                    .extract()
                    .map_err(|_| PyOverflowError::new_err("a correlation id must be from 0 to 2^64 - 1"))?,
            ),
            Some(_) => return Err(exception("Correlation ID must be integer or string")),
        };
        Ok(Self {
            correlation,
            flags: flags.0.into(),
            timeout,
            parameters: Parameters::from_python(parameters)?,
            outputs,
            inputs,
            trace: trace.and_then(|trace| trace.get().context.clone()),
            parent: trace.map_or(0, |trace| trace.get().handle),
            preferred_gpu: preferred_memory.and_then(|memory| memory.get().0),
            version: model_version,
            exchange: None,
            sender: PyOnceLock::new(),
            id: request_id,
            model,
        })
    }

    #[pyo3(name = "inputs")]
    fn py_inputs(&self, python: Python<'_>) -> Vec<Py<Tensor>> {
        self.inputs.iter().map(|input| input.clone_ref(python)).collect()
    }

    fn request_id(&self) -> &str {
        &self.id
    }

    fn correlation_id(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match &self.correlation {
            Correlation::Number(number) => number.into_pyobject(python)?.into_any().unbind(),
            Correlation::Text(text) => text.into_pyobject(python)?.into_any().unbind(),
        })
    }

    #[pyo3(name = "flags")]
    fn py_flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    fn set_flags(&self, flags: Flags) {
        self.flags.store(flags.0, Ordering::Relaxed);
    }

    #[pyo3(name = "timeout")]
    fn py_timeout(&self) -> u64 {
        self.timeout
    }

    #[pyo3(name = "parameters")]
    fn py_parameters(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        self.parameters.to_json(python)
    }

    #[pyo3(name = "trace")]
    fn py_trace(&self) -> InferenceTrace {
        InferenceTrace { context: self.trace.clone(), handle: self.handle() }
    }

    fn requested_output_names<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PySet>> {
        PySet::new(python, &self.outputs)
    }

    fn set_release_flags(&self, flags: u32) -> PyResult<()> {
        let exchange = self.exchange()?;
        exchange.set_reschedule(flags == RELEASE_RESCHEDULE);
        Ok(())
    }

    fn get_response_sender(&self, python: Python<'_>) -> PyResult<Py<ResponseSender>> {
        let make = || Py::new(python, ResponseSender::new(Arc::clone(self.exchange()?)));
        Ok(self.sender.get_or_try_init(python, make)?.clone_ref(python))
    }

    fn is_cancelled(&self, python: Python<'_>) -> PyResult<bool> {
        self.exchange.as_ref().map_or(Ok(false), |exchange| exchange.is_cancelled(python))
    }

    #[pyo3(signature = (decoupled = false))]
    fn exec(slf: &Bound<'_, Self>, decoupled: bool) -> PyResult<Option<Py<PyAny>>> {
        let python = slf.py();
        if decoupled {
            return Ok(Some(runner::calls(python)?.call_method1("ResponseIterator", (slf,))?.unbind()));
        }
        let response = InnerCall::new(python, slf, false, None)?.next(python)?;
        response.map(|response| Ok(Py::new(python, response)?.into_any())).transpose()
    }

    #[pyo3(signature = (decoupled = false))]
    fn async_exec<'py>(slf: &Bound<'py, Self>, decoupled: bool) -> PyResult<Bound<'py, PyAny>> {
        runner::calls(slf.py())?.call_method1("async_exec", (slf, decoupled))
    }
}

impl InferenceRequest {
    fn exchange(&self) -> PyResult<&Arc<Exchange>> {
        self.exchange.as_ref().ok_or_else(|| exception("only received requests can be answered"))
    }
}

/// The input of that name, if any.
#[pyfunction]
pub fn get_input_tensor_by_name(
    python: Python<'_>,
    inference_request: &Bound<'_, PyAny>,
    name: &str,
) -> PyResult<Option<Py<PyAny>>> {
    if let Ok(request) = inference_request.cast::<InferenceRequest>() {
        let found = request.get().inputs.iter().find(|input| input.get().name() == name);
        return Ok(found.map(|input| input.clone_ref(python).into_any()));
    }
    // A test double of a request.
    for input in inference_request.call_method0("inputs")?.try_iter()? {
        let input = input?;
        if input.call_method0("name")?.eq(name)? {
            return Ok(Some(input.unbind()));
        }
    }
    Ok(None)
}
