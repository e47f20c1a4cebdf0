//! Requests from a model to another model.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use nereid_worker_protocol::side::{CANCEL, INFER, Reply};
use nereid_worker_protocol::tensor::{Correlation as WireCorrelation, Failure, Request};
use pyo3::prelude::*;

use crate::constants::{ErrorCode, exception};
use crate::request::{Correlation, InferenceRequest};
use crate::response::InferenceResponse;
use crate::runner;
use crate::side::Side;

/// A sent request, and its responses. Dropping it cancels the request unless all responses have arrived.
#[pyclass(frozen)]
pub struct InnerCall {
    /// The number of the call; `None` if the request was not sent.
    number: Option<u64>,
    /// Why the request was not sent, until it was reported.
    refusal: Mutex<Option<String>>,
    /// The GPU on which the outputs are preferred.
    gpu: Option<i32>,
}

#[pymethods]
impl InnerCall {
    /// Sends a request. `notify` is called, without arguments and on a thread of the module, when responses have arrived.
    #[new]
    #[pyo3(signature = (request, decoupled, notify = None))]
    pub fn new(
        python: Python<'_>,
        request: &Bound<'_, InferenceRequest>,
        decoupled: bool,
        notify: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        if !runner::is_initialised() {
            return Err(exception("inner requests are for models that are initialised"));
        }
        let request = request.get();
        let gpu = request.preferred_gpu;
        if let Some(reason) = request.refusal() {
            notify.map_or(Ok(()), |notify| notify.call0(python).map(drop))?;
            return Ok(Self { number: None, refusal: Mutex::new(Some(reason)), gpu });
        }
        let number = Side::get()?.begin(python, INFER, notify, |message| {
            message.u64(request.parent);
            message.text(&request.model);
            message.i64(request.version);
            message.bool(decoupled);
            message.request(&Request {
                handle: 0,
                id: &request.id,
                correlation: match &request.correlation {
                    Correlation::Number(0) => WireCorrelation::None,
                    Correlation::Number(number) => WireCorrelation::Number(*number),
                    Correlation::Text(text) if text.is_empty() => WireCorrelation::None,
                    Correlation::Text(text) => WireCorrelation::Text(text),
                },
                flags: request.flags.load(Ordering::Relaxed),
                priority: 0,
                timeout: request.timeout,
                flow: 0,
                trace: request.trace.as_deref(),
                outputs: request.outputs.iter().map(String::as_str).collect(),
                parameters: request.parameters.wire().collect(),
            });
            message.count(request.inputs.len());
            request.inputs.iter().try_for_each(|input| input.get().write(python, message))
        })?;
        Ok(Self { number: Some(number), refusal: Mutex::default(), gpu })
    }

    /// Waits for the next response; `None` after the last.
    pub fn next(&self, python: Python<'_>) -> PyResult<Option<InferenceResponse>> {
        let Some(number) = self.number else {
            let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
            let failed = |message: String| {
                let failure = Failure { code: ErrorCode::Internal as u8, message: &message };
                InferenceResponse::failed(python, failure)
            };
            return refusal.map(failed).transpose();
        };
        let Some(answer) = Side::get()?.wait(python, number)? else { return Ok(None) };
        let reply = answer.reader()?.reply().map_err(|error| exception(error.to_string()))?;
        match reply {
            Reply::Response(response) => InferenceResponse::received(python, response, self.gpu).map(Some),
            Reply::Failure(failure) => InferenceResponse::failed(python, failure).map(Some),
            // An end of the responses without a response.
            Reply::Nothing | Reply::Done => Ok(Some(InferenceResponse::default())),
            other => Err(exception(format!("unexpected answer of the server: {other:?}"))),
        }
    }

    /// Whether the next response has not arrived yet.
    fn would_wait(&self) -> PyResult<bool> {
        self.number.map_or(Ok(false), |number| Ok(Side::get()?.would_wait(number)))
    }

    /// Whether all responses have been read.
    fn is_over(&self) -> PyResult<bool> {
        self.number.map_or(Ok(false), |number| Ok(Side::get()?.is_over(number)))
    }

    /// Waits for the next response without reading it.
    fn wait(&self, python: Python<'_>) -> PyResult<()> {
        self.number.map_or(Ok(()), |number| Side::get()?.wait_for_arrival(python, number))
    }

    /// Cancels the request. Responses that still arrive, usually an error, can be read.
    fn cancel(&self, python: Python<'_>) -> PyResult<()> {
        let Some(number) = self.number else { return Ok(()) };
        Side::get()?.send(python, CANCEL, |message| {
            message.u64(number);
            Ok(())
        })
    }
}

impl Drop for InnerCall {
    fn drop(&mut self) {
        if let (Ok(side), Some(number)) = (Side::get(), self.number)
            && side.forget(number)
        {
            // If the server has ended, so has the request.
            let _ = Python::attach(|python| self.cancel(python));
        }
    }
}
