//! Ensures that every request gets exactly one final response.
//!
//! A request, its responses and its responders share one `Answer`. If the last of them is dropped before a final
//! response, it sends an error, so that no client waits forever.
//!
//! After the final response, a server may free the memory of outputs and their allocator. So neither is touched then,
//! and no final response is sent while another is under construction.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use triton_sys::*;

use crate::batch::Execution;
use crate::error::{Error, ErrorCode, Result, check};
use crate::response::Response;

/// The answer to one request, under way.
pub(crate) struct Answer {
    factory: OnceLock<Factory>,
    instance: *mut TRITONBACKEND_ModelInstance,
    progress: Mutex<Progress>,
    pub(crate) has_failed: AtomicBool,
    pub(crate) decoupled: bool,
    /// When the last response left, or the execution began.
    last: AtomicU64,
}

#[derive(Default)]
struct Progress {
    /// The last answer was sent, or is being sent.
    is_finished: bool,
    /// Responses under construction.
    open: usize,
}

/// Makes responses apart from the request.
struct Factory(*mut TRITONBACKEND_ResponseFactory);

// SAFETY: the factory is used and deleted on any thread, as the interface has it.
unsafe impl Send for Factory {}
// SAFETY: the server makes each response from its own copy of what the factory holds.
unsafe impl Sync for Factory {}
// SAFETY: the instance is only handed to functions that take it from any thread; it outlives its requests.
unsafe impl Send for Answer {}
// SAFETY: as above; all that changes is atomic.
unsafe impl Sync for Answer {}

/// How one response went, for the statistics of decoupled models.
pub(crate) struct ResponseTimes<'e> {
    /// When its first output was begun; 0 where it has none.
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

    /// Makes the factory if needed. `request` lives.
    pub(crate) fn open(&self, request: *mut TRITONBACKEND_Request) -> Result<()> {
        if self.factory.get().is_some() {
            return Ok(());
        }
        let mut factory = ptr::null_mut();
        // SAFETY: the caller holds the request; the factory is ours.
        unsafe { check(TRITONBACKEND_ResponseFactoryNew(&mut factory, request))? };
        // Only the request calls this, and it is on one thread at a time: nobody was faster.
        drop(self.factory.set(Factory(factory)));
        Ok(())
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.gate().is_finished
    }

    /// Nobody answers any more: the request will be executed again.
    pub(crate) fn leave_open(&self) {
        self.gate().is_finished = true;
    }

    /// Claims the right to send the last answer, once; `own` is the number of its responses.
    pub(crate) fn finish(&self, own: usize) -> Result<()> {
        let mut progress = self.gate();
        if progress.is_finished {
            return Err(answered());
        }
        if progress.open > own {
            return Err(Error::internal("the last response cannot be sent while another one is being built"));
        }
        progress.is_finished = true;
        Ok(())
    }

    /// Does what may only be done before the last answer.
    pub(crate) fn while_open<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let progress = self.gate();
        if progress.is_finished { Err(answered()) } else { act() }
    }

    /// Makes a response, unless the last answer was sent.
    pub(crate) fn make(
        &self,
        new: impl FnOnce(*mut *mut TRITONBACKEND_Response) -> *mut TRITONSERVER_Error,
    ) -> Result<Response<'_>> {
        let mut progress = self.gate();
        if progress.is_finished {
            return Err(answered());
        }
        let mut response = ptr::null_mut();
        // SAFETY: the error is ours; so is the response where there is no error.
        unsafe {
            check(new(&mut response))?;
            progress.open += 1;
            Ok(Response::new(response, self))
        }
    }

    /// A response is under construction no longer.
    pub(crate) fn close(&self) {
        self.gate().open -= 1;
    }

    fn gate(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a response of a decoupled model. Those of others are counted with their request.
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
        self.make(|response| unsafe { TRITONBACKEND_ResponseNewFromFactory(response, factory) })
    }
}

fn answered() -> Error {
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

/// Answers a request apart from it: on any thread, also after the request went back to the server. A decoupled
/// model sends as many responses as it likes and ends with [`finish`](Self::finish) or
/// [`Response::send_last`]. If the last holder is dropped before the end, the client gets an error.
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
    /// `AlreadyExists` where the end was said already, or whatever the server says.
    pub fn respond(&self) -> Result<Response<'_>> {
        self.answer.respond()
    }

    /// Says that no more responses follow, without one more.
    ///
    /// # Errors
    /// `Unsupported` where the model is not decoupled, `AlreadyExists` where the end was said already.
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

    /// Answers with an error, as the last answer.
    ///
    /// # Errors
    /// `AlreadyExists` where the end was said already, or whatever the server says.
    pub fn fail(&self, error: Error) -> Result<()> {
        self.respond()?.send_error(error)
    }

    /// Whether the client took its request back. Its answers interest nobody any more, but it must have an end.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn is_cancelled(&self) -> Result<bool> {
        let mut cancelled = false;
        // SAFETY: the factory lives, and the address may be written.
        unsafe { check(TRITONBACKEND_ResponseFactoryIsCancelled(self.answer.factory()?, &mut cancelled))? };
        Ok(cancelled)
    }
}
