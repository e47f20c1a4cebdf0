//! The answers to a received request: returned by `execute`, or sent through its sender, from any thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_worker_protocol::side::{IS_CANCELLED, RELEASE, RESPOND, Reply};
use nereid_worker_protocol::tensor::{Failure, Request};
use pyo3::prelude::*;

use crate::constants::exception;
use crate::response::InferenceResponse;
use crate::side::Side;

/// The last response.
const COMPLETE_FINAL: u32 = 1;

/// The answers to one request. Dropping the last sender notifies the server.
pub struct Exchange {
    handle: u64,
    /// The requested outputs; empty for all.
    outputs: Vec<String>,
    decoupled: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    responded: bool,
    reschedule: bool,
}

impl Exchange {
    /// The exchange of a received request.
    pub fn of(request: &Request<'_>, decoupled: bool) -> Arc<Self> {
        let outputs = request.outputs.iter().map(|name| (*name).to_owned()).collect();
        Arc::new(Self { handle: request.handle, outputs, decoupled, state: Mutex::default() })
    }

    /// The server's handle of the request.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// The requested outputs; empty for all.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether the request returns to its scheduler after `execute`.
    pub fn set_reschedule(&self, reschedule: bool) {
        self.state().reschedule = reschedule;
    }

    /// Whether the model wants the request to return to its scheduler.
    pub fn is_to_be_rescheduled(&self) -> bool {
        self.state().reschedule
    }

    /// Whether the request returns to its scheduler. If so, this exchange has ended. A request that has all its responses
    /// does not return.
    pub fn reschedule(&self) -> bool {
        let mut state = self.state();
        let answered = state.closed || (state.responded && !self.decoupled);
        let returns = state.reschedule && !answered;
        state.closed |= returns;
        returns
    }

    /// Ends the exchange because the server answers the request.
    pub fn close(&self) {
        self.state().closed = true;
    }

    /// Ends the exchange in favour of the value returned by `execute`, unless a response was sent.
    pub fn claim(&self) -> bool {
        let mut state = self.state();
        let open = !state.closed && !state.responded;
        state.closed |= open;
        open
    }

    pub fn is_cancelled(&self, python: Python<'_>) -> PyResult<bool> {
        if self.state().closed {
            return Ok(false);
        }
        let answer = Side::get()?.ask(python, IS_CANCELLED, |message| {
            message.u64(self.handle);
            Ok(())
        })?;
        match answer.reader()?.reply() {
            Ok(Reply::Bool(cancelled)) => Ok(cancelled),
            other => Err(exception(format!("unexpected answer of the server: {other:?}"))),
        }
    }

    /// Answers the request with an error, unless it has been answered.
    pub fn fail(&self, python: Python<'_>, failure: Failure<'_>) -> PyResult<()> {
        if std::mem::replace(&mut self.state().closed, true) {
            return Ok(());
        }
        Side::get()?.send(python, RESPOND, |message| {
            message.u64(self.handle);
            message.bool(true);
            message.failure_reply(failure);
            Ok(())
        })
    }

    fn send(&self, python: Python<'_>, response: Option<&InferenceResponse>, flags: u32) -> PyResult<()> {
        let last = flags == COMPLETE_FINAL;
        {
            let mut state = self.state();
            if state.closed {
                return Err(exception("Unable to send response. Response sender has been closed."));
            }
            if flags != 0 && !last {
                return Err(exception("Unable to send response. Unsupported flag provided."));
            }
            if response.is_none() && !last {
                return Err(exception(
                    "Inference Response object must be provided when the response flags is set to zero.",
                ));
            }
            if !self.decoupled && response.is_some() && state.responded {
                return Err(exception(
                    "Unable to send response. Non-decoupled model cannot send more than one response.",
                ));
            }
            if !self.decoupled && response.is_none() && !state.responded {
                return Err(exception(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
                ));
            }
            state.responded |= response.is_some();
            state.closed |= last;
        }
        Side::get()?.send(python, RESPOND, |message| {
            message.u64(self.handle);
            message.bool(last);
            match response {
                Some(response) => response.write_reply(python, message, &self.outputs),
                None => message.nothing_reply(),
            }
            Ok(())
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A model that is not decoupled has completed its answer with its response.
        let complete = state.responded && !self.decoupled;
        if !state.closed
            && let Ok(side) = Side::get()
        {
            let handle = self.handle;
            let reported = Python::attach(|python| {
                side.send(python, if complete { RESPOND } else { RELEASE }, |message| {
                    message.u64(handle);
                    if complete {
                        message.bool(true);
                        message.nothing_reply();
                    }
                    Ok(())
                })
            });
            // If the server has ended, nothing waits for it.
            drop(reported);
        }
    }
}

/// The sender of a request's responses.
#[pyclass(module = "c_python_backend_utils", name = "InferenceResponseSender", frozen)]
pub struct ResponseSender(Arc<Exchange>);

impl ResponseSender {
    pub fn new(exchange: Arc<Exchange>) -> Self {
        Self(exchange)
    }
}

#[pymethods]
impl ResponseSender {
    #[pyo3(signature = (response = None, flags = 0))]
    fn send(
        &self,
        python: Python<'_>,
        response: Option<&Bound<'_, InferenceResponse>>,
        flags: u32,
    ) -> PyResult<()> {
        self.0.send(python, response.map(Bound::get), flags)
    }

    fn is_cancelled(&self, python: Python<'_>) -> PyResult<bool> {
        self.0.is_cancelled(python)
    }
}
