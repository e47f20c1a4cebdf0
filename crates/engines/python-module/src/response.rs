//! `InferenceResponse`, and the `TritonError` that it may contain.

use nereid_worker_protocol::Message;
use nereid_worker_protocol::tensor::{Failure, Response};
use pyo3::prelude::*;

use crate::arguments::{self, Text};
use crate::constants::{ErrorCode, exception};
use crate::parameters::Parameters;
use crate::tensor::Tensor;

/// An error with a code.
#[pyclass(module = "c_python_backend_utils", frozen, subclass)]
pub struct TritonError {
    pub message: String,
    pub code: ErrorCode,
}

#[pymethods]
impl TritonError {
    #[new]
    #[pyo3(signature = (message, code = ErrorCode::Internal))]
    fn new(message: Text, code: ErrorCode) -> Self {
        Self { message: message.0, code }
    }

    #[pyo3(name = "message")]
    fn py_message(&self) -> &str {
        &self.message
    }

    #[pyo3(name = "code")]
    fn py_code(&self) -> ErrorCode {
        self.code
    }
}

/// A model's response to a request: outputs, or an error.
#[derive(Default)]
#[pyclass(module = "c_python_backend_utils", frozen, subclass)]
pub struct InferenceResponse {
    pub outputs: Vec<Py<Tensor>>,
    pub error: Option<Py<TritonError>>,
    pub parameters: Parameters,
}

impl InferenceResponse {
    /// A received response, with its outputs moved to this GPU, if one is preferred.
    pub fn received(python: Python<'_>, response: Response<'_>, gpu: Option<i32>) -> PyResult<Self> {
        let outputs = response.outputs.into_iter().map(|output| {
            let output = Tensor::received(python, output)?;
            let output = if let Some(gpu) = gpu { output.on_gpu(python, gpu)? } else { output };
            Py::new(python, output)
        });
        let parameters = Parameters::received(response.parameters);
        Ok(Self { outputs: outputs.collect::<PyResult<_>>()?, error: None, parameters })
    }

    /// A received error.
    pub fn failed(python: Python<'_>, failure: Failure<'_>) -> PyResult<Self> {
        let code = ErrorCode::from_number(failure.code.into());
        let error = Py::new(python, TritonError { message: failure.message.to_owned(), code })?;
        Ok(Self { outputs: Vec::new(), error: Some(error), parameters: Parameters::default() })
    }

    /// Appends the response as a reply on the side channel, with the requested outputs; empty for all.
    pub fn write_reply(&self, python: Python<'_>, message: &mut Message<'_>, wanted: &[String]) {
        self.write(python, message, wanted, true);
    }

    /// Appends the response as the outcome of a request, with the requested outputs; empty for all.
    pub fn write_outcome(&self, python: Python<'_>, message: &mut Message<'_>, wanted: &[String]) {
        self.write(python, message, wanted, false);
    }

    /// A response that cannot be written, for example for lack of memory, is replaced by an error.
    fn write(&self, python: Python<'_>, message: &mut Message<'_>, wanted: &[String], reply: bool) {
        let start = message.mark();
        let write_failure = |message: &mut Message<'_>, failure| {
            if reply { message.failure_reply(failure) } else { message.failure_outcome(failure) }
        };
        if let Some(error) = &self.error {
            let error = error.get();
            return write_failure(message, Failure { code: error.code as u8, message: &error.message });
        }
        let parameters = self.parameters.wire();
        if reply {
            message.response_reply(parameters)
        } else {
            message.response_outcome(parameters)
        }
        if let Err(error) = self.write_outputs(python, message, wanted) {
            message.truncate(start);
            let error_text = error.value(python).to_string();
            write_failure(message, Failure { code: ErrorCode::Internal as u8, message: &error_text });
        }
    }

    fn write_outputs(
        &self,
        python: Python<'_>,
        message: &mut Message<'_>,
        wanted: &[String],
    ) -> PyResult<()> {
        let is_wanted =
            |tensor: &Tensor| wanted.is_empty() || wanted.iter().any(|name| name == tensor.name());
        let outputs = || self.outputs.iter().map(Py::get).filter(|tensor| is_wanted(tensor));
        message.count(outputs().count());
        outputs().try_for_each(|tensor| tensor.write(python, message))
    }
}

#[pymethods]
impl InferenceResponse {
    #[new]
    #[pyo3(signature = (output_tensors = Tensors::default(), error = None, parameters = None))]
    fn new(
        output_tensors: Tensors,
        error: Option<Py<TritonError>>,
        parameters: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let outputs: Option<Vec<_>> = output_tensors.0.into_iter().collect();
        let outputs =
            outputs.ok_or_else(|| exception("Output tensor for inference response should not be empty."))?;
        Ok(Self { outputs, error, parameters: Parameters::from_python(parameters)? })
    }

    fn output_tensors(&self, python: Python<'_>) -> Vec<Py<Tensor>> {
        self.outputs.iter().map(|tensor| tensor.clone_ref(python)).collect()
    }

    fn has_error(&self) -> bool {
        self.error.is_some()
    }

    #[pyo3(name = "error")]
    fn py_error(&self, python: Python<'_>) -> Option<Py<TritonError>> {
        self.error.as_ref().map(|error| error.clone_ref(python))
    }

    #[pyo3(name = "parameters")]
    fn py_parameters(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        self.parameters.to_json(python)
    }
}

/// A list of tensors, each of which may be missing.
#[derive(Default)]
pub struct Tensors(pub Vec<Option<Py<Tensor>>>);

impl<'py> FromPyObject<'_, 'py> for Tensors {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let expected = "a list of Tensor objects";
        let tensors = arguments::elements(&object, expected, |tensor| {
            if tensor.is_none() {
                return Ok(None);
            }
            let tensor = tensor.cast_into::<Tensor>().map_err(|error| {
                let found = error.into_inner();
                arguments::refused(&found, expected)
            })?;
            Ok(Some(tensor.unbind()))
        });
        tensors.map(Self)
    }
}
