//! Ensures that every request gets exactly one final response.
//!
//! A request, its responses and its responders share one `Answer`. If the last of them is dropped before a final
//! response, it sends an error, so that no client waits forever.
//!
//! After the final response, a server may free the memory of outputs and their allocator. This library touches
//! neither from then on, and sends no final response while another is under construction.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use triton_sys::*;

use crate::error::{Error, ErrorCode, Result, check};
use crate::execution::Execution;
use crate::property::property;
use crate::response::Response;

/// The pending answer to one request.
pub(crate) struct Answer {
    factory: OnceLock<Factory>,
    instance: *mut TRITONBACKEND_ModelInstance,
    progress: Mutex<Progress>,
    pub(crate) has_failed: AtomicBool,
    pub(crate) decoupled: bool,
    /// The time of the last response, or else of the start of the execution.
    last: AtomicU64,
}

#[derive(Default)]
struct Progress {
    /// The final response was sent, or is being sent.
    is_finished: bool,
    /// Responses under construction.
    open: usize,
}

/// Creates responses independently of the request.
struct Factory(*mut TRITONBACKEND_ResponseFactory);

// SAFETY: the interface allows using and deleting the factory on any thread.
unsafe impl Send for Factory {}
// SAFETY: the server creates each response from its own copy of the factory's contents.
unsafe impl Sync for Factory {}
// SAFETY: the instance is only passed to functions that accept it from any thread; it outlives its requests.
unsafe impl Send for Answer {}
// SAFETY: as above; all mutable state is atomic.
unsafe impl Sync for Answer {}

/// The course of one response, for the statistics of decoupled models.
pub(crate) struct ResponseTimes<'e> {
    /// The start of its first output; 0 without outputs.
    pub(crate) output_start: u64,
    pub(crate) error: Option<&'e Error>,
}

impl Answer {
    pub(crate) fn new(execution: &Execution) -> Self {
        Self {
            factory: OnceLock::new(),
            instance: execution.instance(),
            progress: Mutex::default(),
            has_failed: AtomicBool::new(false),
            decoupled: execution.handling.decoupled,
            last: AtomicU64::new(execution.start),
        }
    }

    /// Creates the factory if needed. `request` must be alive.
    pub(crate) fn open(&self, request: *mut TRITONBACKEND_Request) -> Result<()> {
        if self.factory.get().is_some() {
            return Ok(());
        }
        let mut factory = ptr::null_mut();
        // SAFETY: the caller holds the request; the factory is ours.
        unsafe { check(TRITONBACKEND_ResponseFactoryNew(&mut factory, request))? };
        // Called only by the request, which is on one thread at a time, so `set` cannot race.
        drop(self.factory.set(Factory(factory)));
        Ok(())
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.gate().is_finished
    }

    /// Marks the request as one that will be executed again, so that nothing answers it now.
    pub(crate) fn mark_rescheduled(&self) {
        self.gate().is_finished = true;
    }

    /// Claims the right to send the final response, once; `own` is the number of the caller's open responses.
    pub(crate) fn finish(&self, own: usize) -> Result<()> {
        let mut progress = self.gate();
        if progress.is_finished {
            return Err(already_answered());
        }
        if progress.open > own {
            return Err(Error::internal("the last response cannot be sent while another one is being built"));
        }
        progress.is_finished = true;
        Ok(())
    }

    /// Runs `act` unless the final response was sent.
    pub(crate) fn while_open<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let progress = self.gate();
        if progress.is_finished { Err(already_answered()) } else { act() }
    }

    /// Creates a response unless the final response was sent.
    pub(crate) fn new_response(
        &self,
        new: impl FnOnce(*mut *mut TRITONBACKEND_Response) -> *mut TRITONSERVER_Error,
    ) -> Result<Response<'_>> {
        let mut progress = self.gate();
        if progress.is_finished {
            return Err(already_answered());
        }
        let mut response = ptr::null_mut();
        // SAFETY: the error is ours; without an error, the response is ours.
        unsafe {
            check(new(&mut response))?;
            progress.open += 1;
            Ok(Response::new(response, self))
        }
    }

    /// Records that the end of a response under construction.
    pub(crate) fn close(&self) {
        self.gate().open -= 1;
    }

    fn gate(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a response of a decoupled model. Other models' responses count with their request.
    pub(crate) fn report(&self, times: &ResponseTimes<'_>) {
        let (true, Some(factory)) = (self.decoupled, self.factory.get()) else { return };
        let end = crate::clock::now();
        let start = self.last.swap(end, Ordering::AcqRel);
        let mut statistics = ptr::null_mut();
        let error = times.error.map_or(ptr::null_mut(), |error| error.clone().into_c());
        // SAFETY: the statistics are ours from `New` to `Delete`; instance, factory and error live in between. The
        // error stays ours.
        let outcome = unsafe {
            check(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&mut statistics)).and_then(|()| {
                let set = [
                    TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, self.instance),
                    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory.0),
                    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, start),
                    TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
                        statistics,
                        times.output_start,
                    ),
                    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, end),
                    TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error),
                ];
                let mut outcome = Ok(());
                for set in set {
                    outcome = outcome.and(check(set));
                }
                let reported = outcome
                    .and_then(|()| check(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics)));
                reported.and(check(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics)))
            })
        };
        if !error.is_null() {
            // SAFETY: the error was made above and is not used any more.
            unsafe { TRITONSERVER_ErrorDelete(error) };
        }
        if let Err(error) = outcome {
            crate::warning!("statistics of a response could not be reported: {error}");
        }
    }

    fn factory(&self) -> Result<*mut TRITONBACKEND_ResponseFactory> {
        self.factory
            .get()
            .map(|factory| factory.0)
            .ok_or_else(|| Error::internal("there is no response factory"))
    }

    fn respond(&self) -> Result<Response<'_>> {
        let factory = self.factory()?;
        // SAFETY: the factory lives as long as this value, and the address may be written.
        self.new_response(|response| unsafe { TRITONBACKEND_ResponseNewFromFactory(response, factory) })
    }
}

fn already_answered() -> Error {
    Error::new(ErrorCode::AlreadyExists, "the request has its last answer already")
}

impl Drop for Answer {
    fn drop(&mut self) {
        let Some(Factory(factory)) = self.factory.get() else { return };
        let factory = *factory;
        if !self.is_finished() {
            let error = Error::internal("the backend dropped the request without a last response");
            if let Err(error) = self.respond().and_then(|response| response.send_error(error)) {
                crate::error!("cannot answer a request: {error}");
            }
        }
        // SAFETY: the factory is ours and not used after this.
        if let Err(error) = unsafe { check(TRITONBACKEND_ResponseFactoryDelete(factory)) } {
            crate::warning!("a response factory could not be deleted: {error}");
        }
    }
}

/// Answers a request independently of it: on any thread, even after the request was released. A decoupled model sends
/// any number of responses and ends with [`finish`](Self::finish) or [`Response::send_last`]. If the last clone is
/// dropped before the end, the client gets an error.
#[derive(Clone)]
pub struct Responder {
    answer: Arc<Answer>,
}

impl Responder {
    pub(crate) fn new(answer: Arc<Answer>) -> Self {
        Self { answer }
    }

    /// A new response.
    ///
    /// # Errors
    /// `AlreadyExists` if a final response was sent; otherwise the server's error.
    pub fn respond(&self) -> Result<Response<'_>> {
        self.answer.respond()
    }

    /// Completes the answer without a further response.
    ///
    /// # Errors
    /// `Unsupported` if the model is not decoupled, `AlreadyExists` if a final response was sent.
    pub fn finish(&self) -> Result<()> {
        if !self.answer.decoupled {
            return Err(Error::unsupported("the model is not decoupled, so each request needs a response"));
        }
        let factory = self.answer.factory()?;
        self.answer.finish(0)?;
        // SAFETY: the factory lives.
        unsafe {
            check(TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL.0))?;
        }
        self.answer.report(&ResponseTimes { output_start: 0, error: None });
        Ok(())
    }

    /// Sends an error as the final response.
    ///
    /// # Errors
    /// `AlreadyExists` if a final response was sent; otherwise the server's error.
    pub fn fail(&self, error: Error) -> Result<()> {
        self.respond()?.send_error(error)
    }

    /// Whether the request was cancelled. A final response is still required.
    pub fn is_cancelled(&self) -> bool {
        // A responder exists only with its factory.
        let Some(Factory(factory)) = self.answer.factory.get() else { return false };
        // SAFETY: the factory lives.
        unsafe { property(false, |cancelled| TRITONBACKEND_ResponseFactoryIsCancelled(*factory, cancelled)) }
    }
}
