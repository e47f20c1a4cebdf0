//! Answers: from a backend, on any thread, to the client that sent the request.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use crate::{
    Buffer, CancelSignal, Cancellation, Error, ExecutionTimes, Memory, OutputAllocator, OutputBuffer,
    OutputSpec, Response, Result, Tensor,
};

/// One answer of possibly many.
pub type Answer = Result<Response>;

/// Receives a request's answers. Implemented by the server.
pub trait ResponseSink: Any + Send + Sync {
    /// Delivers an answer, or none; after `last` no other follows.
    fn deliver(&self, answer: Option<Answer>, last: bool);

    /// The next sink, if any: receives all calls that this one does not handle.
    fn next(&self) -> Option<&dyn ResponseSink> {
        None
    }

    /// Records the time at which the request reached a phase of its execution.
    fn mark(&self, phase: Phase, at: Instant) {
        if let Some(next) = self.next() {
            next.mark(phase, at);
        }
    }

    /// Whether the client disconnected or cancelled.
    fn is_cancelled(&self) -> bool {
        self.next().is_some_and(|next| next.is_cancelled())
    }

    /// The name of the requested model.
    fn model_name(&self) -> &str {
        self.next().map_or("", |next| next.model_name())
    }

    /// Wakes tasks that wait for the cancellation; `None` if waiting is not supported.
    fn cancel_signal(&self) -> Option<&CancelSignal> {
        self.next()?.cancel_signal()
    }

    /// Announces that the backend will report the times of the execution and its responses, perhaps after the last
    /// answer.
    fn await_report(&self) {
        if let Some(next) = self.next() {
            next.await_report();
        }
    }

    /// Reports the times of the execution.
    fn report(&self, times: ExecutionTimes) {
        if let Some(next) = self.next() {
            next.report(times);
        }
    }

    /// Reports the times of a response, in the order of the responses.
    fn report_response(&self, kind: ResponseKind, times: ResponseTimes) {
        if let Some(next) = self.next() {
            next.report_response(kind, times);
        }
    }
}

/// The contents of a decoupled model's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// Outputs.
    Answer,
    /// An error.
    Error,
    /// Nothing: marks the end.
    Nothing,
    /// A cancellation.
    Cancelled,
}

/// Start of the work on a response, start of its outputs, and time of sending.
#[derive(Clone, Copy, Debug)]
pub struct ResponseTimes {
    /// Time at which the previous response was sent; for the first, the start of the execution.
    pub started: Instant,
    /// Start of sending the outputs, if any.
    pub output_started: Option<Instant>,
    /// Time at which the response was sent.
    pub ended: Instant,
}

/// The phases of an execution, as in the statistics extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The request left the queue: gathering the inputs begins.
    Started,
    /// The inputs are in place: the model runs.
    InputsReady,
    /// The model has finished: sending the outputs begins.
    OutputsReady,
}

/// Answers one request: with no, one or many responses.
///
/// Usable on any thread, and may outlive the request. If it is dropped before the last answer, the client gets an
/// error.
pub struct Responder {
    sink: Arc<dyn ResponseSink>,
    allocator: Option<Arc<dyn OutputAllocator>>,
    finished: AtomicBool,
}

impl Responder {
    /// A responder that delivers to `sink`; `allocator` places outputs.
    pub fn new(sink: Arc<dyn ResponseSink>, allocator: Option<Arc<dyn OutputAllocator>>) -> Self {
        Self { sink, allocator, finished: AtomicBool::new(false) }
    }

    /// Sends one answer of a decoupled model; more may follow. Ignored after the last one.
    pub fn send(&self, answer: Answer) {
        if !self.finished.load(Ordering::Acquire) {
            self.sink.deliver(Some(self.placed(answer)), false);
        }
    }

    /// Sends the last answer. Ignored if the answers have ended.
    pub fn finish_with(&self, answer: Answer) {
        if !self.finished.swap(true, Ordering::AcqRel) {
            self.sink.deliver(Some(self.placed(answer)), true);
        }
    }

    /// Ends the answers without another one. Ignored if they have ended.
    pub fn finish(&self) {
        if !self.finished.swap(true, Ordering::AcqRel) {
            self.sink.deliver(None, true);
        }
    }

    /// Replaces the sink, and returns the new one. For the server.
    pub fn redirect<S: ResponseSink>(
        &mut self,
        redirect: impl FnOnce(Arc<dyn ResponseSink>) -> Arc<S>,
    ) -> Arc<S> {
        let sink = redirect(Arc::clone(&self.sink));
        self.sink = Arc::<S>::clone(&sink);
        sink
    }

    /// The sink. For the server.
    pub fn sink(&self) -> &dyn ResponseSink {
        &*self.sink
    }

    /// Returns the sink; nothing more is sent. For the server.
    pub fn into_sink(self) -> Arc<dyn ResponseSink> {
        self.finished.store(true, Ordering::Release);
        Arc::clone(&self.sink)
    }

    /// Records the time at which the request reached a phase.
    pub fn mark(&self, phase: Phase, at: Instant) {
        self.sink.mark(phase, at);
    }

    /// Whether the answers have ended, so that further ones are ignored.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// See [`ResponseSink::await_report`].
    pub fn await_report(&self) {
        self.sink.await_report();
    }

    /// See [`ResponseSink::report`].
    pub fn report(&self, times: ExecutionTimes) {
        self.sink.report(times);
    }

    /// See [`ResponseSink::report_response`].
    pub fn report_response(&self, kind: ResponseKind, times: ResponseTimes) {
        self.sink.report_response(kind, times);
    }

    /// Begins another response whose outputs are allocated before it is sent.
    ///
    /// # Errors
    /// The caller's allocator failed.
    pub fn begin_response(&self) -> Result<()> {
        self.allocator.as_ref().map_or(Ok(()), |allocator| allocator.begin_response())
    }

    /// Whether the request was cancelled. Long-running backends should check from time to time.
    pub fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }

    /// A handle to wait for the cancellation of the request. It may outlive the request.
    pub fn cancellation(&self) -> Cancellation {
        Cancellation::of(Arc::clone(&self.sink))
    }

    /// Memory for an output: the caller's, or else the server's.
    ///
    /// A backend that has the output in its own memory may put that into the response instead. It is then copied only
    /// if the caller wants it elsewhere.
    ///
    /// # Errors
    /// The caller's allocator failed.
    pub fn allocate(&self, output: &OutputSpec<'_>) -> Result<OutputBuffer> {
        Ok(self.place(output)?.unwrap_or_else(|| OutputBuffer::own(output.byte_size)))
    }

    /// Whether the caller may provide memory for outputs.
    pub fn places_outputs(&self) -> bool {
        self.allocator.is_some()
    }

    /// The caller's memory for an output; `None` if any memory will do. For a backend that otherwise writes its own
    /// memory.
    ///
    /// # Errors
    /// The caller's allocator failed.
    pub fn place(&self, output: &OutputSpec<'_>) -> Result<Option<OutputBuffer>> {
        let Some(allocator) = &self.allocator else { return Ok(None) };
        Ok(allocator.allocate(output)?.map(OutputBuffer::placed))
    }

    /// The memory in which [`allocate`](Self::allocate) would place an output.
    pub fn preferred_memory(&self, output: &str, byte_size: Option<usize>) -> Memory {
        self.allocator
            .as_ref()
            .map_or(Memory::HOST, |allocator| allocator.preferred_memory(output, byte_size))
    }

    /// The answer with its outputs in the caller's memory, or else in host memory.
    fn placed(&self, answer: Answer) -> Answer {
        let mut response = answer?;
        self.place_all(&mut response)?;
        for output in &mut response.outputs {
            if !output.buffers.iter().any(Buffer::is_placed) {
                output.copy_to_host()?;
            }
        }
        Ok(response)
    }

    fn place_all(&self, response: &mut Response) -> Result<()> {
        let Some(allocator) = &self.allocator else { return Ok(()) };
        let placed = |output: &Tensor| output.buffers.iter().any(Buffer::is_placed);
        if !response.outputs.iter().any(placed) {
            allocator.begin_response()?;
        }
        response.outputs.iter_mut().try_for_each(|output| place(output, allocator.as_ref()))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.finish_with(Err(Error::internal("the backend released the request without answering it")));
    }
}

fn place(output: &mut Tensor, allocator: &dyn OutputAllocator) -> Result<()> {
    if output.buffers.iter().any(Buffer::is_placed) {
        return Ok(());
    }
    let spec = OutputSpec {
        name: &output.name,
        data_type: output.data_type,
        shape: &output.shape,
        byte_size: output.byte_size(),
        // The CPU copies it there.
        preferred: output
            .buffers
            .first()
            .map(Buffer::memory)
            .filter(|it| it.is_host())
            .unwrap_or(Memory::HOST),
        is_read_back: false,
    };
    let Some(mut memory) = allocator.allocate(&spec)? else { return Ok(()) };
    let contents = output.contiguous()?;
    match memory.as_mut_slice() {
        Some(target) if target.len() == contents.len() => target.copy_from_slice(&contents),
        Some(target) => {
            return Err(Error::internal(format!(
                "output '{}' has {} bytes, but {} were allocated for it",
                output.name,
                contents.len(),
                target.len(),
            )));
        }
        None => {
            return Err(Error::unsupported(format!(
                "output '{}' is requested in device memory that the CPU cannot write",
                output.name
            )));
        }
    }
    drop(contents);
    output.buffers = SmallVec::from_buf([memory.freeze()?.into_placed()]);
    Ok(())
}

#[cfg(test)]
mod tests;
