//! `InferenceRequest`: a received request, or a request to another model.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nereid_worker_protocol::tensor as wire;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PySet, PyString};

use crate::arguments::{Flag, Integer, Left, Names, ServerText, Text};
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

impl Default for Correlation {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl FromPyObject<'_, '_> for Correlation {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            return Err(PyTypeError::new_err("a correlation id must be an int or a str, not None"));
        }
        if object.is_instance_of::<PyInt>() {
            let number = object.extract().map(Self::Number);
            return number
                .map_err(|_| PyRuntimeError::new_err("a correlation id must be from 0 to 2^64 - 1"));
        }
        if object.is_instance_of::<PyString>() {
            let text = object.extract().map(Self::Text);
            return text.map_err(|_| PyRuntimeError::new_err("a correlation id cannot be encoded in UTF-8"));
        }
        Err(exception("Correlation ID must be integer or string"))
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
    #[pyo3(signature = (preferred_memory_type, preferred_device_id = Integer(0)))]
    fn new(preferred_memory_type: MemoryType, preferred_device_id: Integer<i64>) -> Self {
        // For a GPU that does not exist, the outputs are in CPU memory.
        let device = || preferred_device_id.0.try_into().unwrap_or(-1);
        Self((preferred_memory_type == MemoryType::Gpu).then(device))
    }
}

#[pymethods]
impl InferenceRequest {
    #[new]
    #[pyo3(signature = (
        request_id = Text::default(), correlation_id = Correlation::default(), inputs = None,
        requested_output_names = None, model_name = None, model_version = Integer(-1), flags = Integer(0),
        timeout = Integer(0), preferred_memory = Left::default(), trace = Left::default(), parameters = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the models' interface")]
    fn new(
        request_id: Text,
        correlation_id: Correlation,
        inputs: Option<Tensors>,
        requested_output_names: Option<Names>,
        model_name: Option<ServerText>,
        model_version: Integer<i64>,
        flags: Integer<u32>,
        timeout: Integer<u64>,
        preferred_memory: Left<PreferredMemory>,
        trace: Left<InferenceTrace>,
        parameters: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (Some(inputs), Some(Names(outputs)), Some(ServerText(model))) =
            (inputs, requested_output_names, model_name)
        else {
            return Err(PyTypeError::new_err(
                "InferenceRequest() needs inputs, requested_output_names and model_name",
            ));
        };
        let Text(id) = request_id;
        let whose = || format!("for request with id '{id}' and model name '{model}' should not be empty.");
        let inputs: Option<Vec<_>> = inputs.0.into_iter().collect();
        let inputs = inputs.ok_or_else(|| exception(format!("Input tensor {}", whose())))?;
        if outputs.iter().any(String::is_empty) {
            return Err(exception(format!("Requested output name {}", whose())));
        }
        let trace = trace.0.as_ref().map(Py::get);
        Ok(Self {
            correlation: correlation_id,
            flags: flags.0.into(),
            timeout: timeout.0,
            parameters: Parameters::from_python(parameters)?,
            outputs,
            inputs,
            trace: trace.and_then(|trace| trace.context.clone()),
            parent: trace.map_or(0, |trace| trace.handle),
            preferred_gpu: preferred_memory.0.and_then(|memory| memory.get().0),
            version: model_version.0,
            exchange: None,
            sender: PyOnceLock::new(),
            id,
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

    fn set_flags(&self, flags: Integer<u32>) {
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

    fn set_release_flags(&self, flags: Integer<u32>) -> PyResult<()> {
        let exchange = self.exchange()?;
        exchange.set_reschedule(flags.0 == RELEASE_RESCHEDULE);
        Ok(())
    }

    fn get_response_sender(&self, python: Python<'_>) -> PyResult<Py<ResponseSender>> {
        let make = || Py::new(python, ResponseSender::new(Arc::clone(self.exchange()?)));
        Ok(self.sender.get_or_try_init(python, make)?.clone_ref(python))
    }

    fn is_cancelled(&self, python: Python<'_>) -> PyResult<bool> {
        self.exchange.as_ref().map_or(Ok(false), |exchange| exchange.is_cancelled(python))
    }

    #[pyo3(signature = (decoupled = Flag(false)))]
    fn exec(slf: &Bound<'_, Self>, decoupled: Flag) -> PyResult<Option<Py<PyAny>>> {
        let python = slf.py();
        if decoupled.0 {
            return Ok(Some(runner::calls(python)?.call_method1("ResponseIterator", (slf,))?.unbind()));
        }
        let response = InnerCall::new(python, slf, false, None)?.next(python)?;
        response.map(|response| Ok(Py::new(python, response)?.into_any())).transpose()
    }

    #[pyo3(signature = (decoupled = Flag(false)))]
    fn async_exec<'py>(slf: &Bound<'py, Self>, decoupled: Flag) -> PyResult<Bound<'py, PyAny>> {
        runner::calls(slf.py())?.call_method1("async_exec", (slf, decoupled.0))
    }
}

impl InferenceRequest {
    /// Why the request cannot be sent to another model, if it cannot.
    pub fn refusal(&self) -> Option<String> {
        if self.version < -1 {
            return Some(format!("model '{}' has no version {}", self.model, self.version));
        }
        self.parameters.refusal().map(str::to_owned)
    }

    fn exchange(&self) -> PyResult<&Arc<Exchange>> {
        self.exchange.as_ref().ok_or_else(|| exception("only received requests can be answered"))
    }
}

/// The input of that name, if any. The name may be any object, and is compared as Python does.
#[pyfunction]
pub fn get_input_tensor_by_name(
    python: Python<'_>,
    inference_request: &Bound<'_, PyAny>,
    name: &Bound<'_, PyAny>,
) -> PyResult<Option<Py<PyAny>>> {
    if let (Ok(request), Ok(name)) =
        (inference_request.cast::<InferenceRequest>(), name.extract::<Cow<'_, str>>())
    {
        let found = request.get().inputs.iter().find(|input| input.get().name() == &*name);
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
