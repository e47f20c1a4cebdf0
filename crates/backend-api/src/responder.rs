//! The way an answer takes: from a backend, on any thread, to whoever made the request.

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

/// The receiving end of a request's answers. The server implements it.
pub trait ResponseSink: Any + Send + Sync {
    /// Takes an answer, or none; `last` says that no further one follows.
    fn deliver(&self, answer: Option<Answer>, last: bool);

    /// Notes when the request reached a phase of its execution.
    fn mark(&self, phase: Phase, at: Instant);

    /// Whether the client has gone away or asked to stop.
    fn is_cancelled(&self) -> bool;

    /// The name of the model that was asked.
    fn model_name(&self) -> &str {
        ""
    }

    /// What wakes those who wait for the cancellation; `None` if nobody can.
    fn cancel_signal(&self) -> Option<&CancelSignal> {
        None
    }

    /// The backend says itself how long the execution and its responses took, perhaps only after the last answer.
    fn await_report(&self) {}

    /// How long the execution took.
    fn report(&self, _times: ExecutionTimes) {}

    /// How long a response took, in the order of the responses.
    fn report_response(&self, _kind: ResponseKind, _times: ResponseTimes) {}
}

/// What a response of a decoupled model holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// Outputs.
    Answer,
    /// An error.
    Error,
    /// Nothing but that there are no more.
    Nothing,
    /// That the request was cancelled.
    Cancelled,
}

/// When a response began to be made, when its outputs did, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub struct ResponseTimes {
    /// The response before was sent, or else the execution began.
    pub started: Instant,
    /// The outputs began to be handed on, if there are any.
    pub output_started: Option<Instant>,
    /// It was sent.
    pub ended: Instant,
}

/// The phases of an execution, as the statistics extension tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The request left the queue: gathering of inputs begins.
    Started,
    /// Inputs are in place: the model runs.
    InputsReady,
    /// The model has run: outputs are handed on.
    OutputsReady,
}

/// Answers one request: never, once or many times, and then no more.
///
/// It may be used from any thread and outlive the request. Dropped before the last answer, it answers with an error.
pub struct Responder {
    sink: Arc<dyn ResponseSink>,
    allocator: Option<Arc<dyn OutputAllocator>>,
    finished: AtomicBool,
}

impl Responder {
    /// Answers go to `sink`; outputs lie where `allocator` places them.
    pub fn new(sink: Arc<dyn ResponseSink>, allocator: Option<Arc<dyn OutputAllocator>>) -> Self {
        Self { sink, allocator, finished: AtomicBool::new(false) }
    }

    /// Sends one answer of a decoupled model; more may follow. Ignored after the last one.
    pub fn send(&self, answer: Answer) {
        if !self.finished.load(Ordering::Acquire) {
            self.sink.deliver(Some(self.placed(answer)), false);
        }
    }

    /// Sends the last answer. Ignored if one was sent before.
    pub fn finish_with(&self, answer: Answer) {
        if !self.finished.swap(true, Ordering::AcqRel) {
            self.sink.deliver(Some(self.placed(answer)), true);
        }
    }

    /// Says that no further answer follows. Ignored if that was said before.
    pub fn finish(&self) {
        if !self.finished.swap(true, Ordering::AcqRel) {
            self.sink.deliver(None, true);
        }
    }

    /// Puts another receiving end in the place of the one it has. Made for the server.
    pub fn redirect(&mut self, redirect: impl FnOnce(Arc<dyn ResponseSink>) -> Arc<dyn ResponseSink>) {
        self.sink = redirect(Arc::clone(&self.sink));
    }

    /// The receiving end. Made for the server.
    pub fn sink(&self) -> &dyn ResponseSink {
        &*self.sink
    }

    /// Gives the receiving end back. From here on nothing is answered this way. Made for the server.
    pub fn into_sink(self) -> Arc<dyn ResponseSink> {
        self.finished.store(true, Ordering::Release);
        Arc::clone(&self.sink)
    }

    /// Notes when the request reached a phase.
    pub fn mark(&self, phase: Phase, at: Instant) {
        self.sink.mark(phase, at);
    }

    /// Whether the last answer was given, so that further ones are ignored.
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

    /// Says that outputs are allocated for one more response. Only for who allocates them before they are sent.
    ///
    /// # Errors
    /// What the caller's allocator says.
    pub fn begin_response(&self) -> Result<()> {
        self.allocator.as_ref().map_or(Ok(()), |allocator| allocator.begin_response())
    }

    /// Whether an answer is still wanted. A long-running backend asks now and then.
    pub fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }

    /// The cancellation of the request, to be waited for. It may outlive the request.
    pub fn cancellation(&self) -> Cancellation {
        Cancellation::of(Arc::clone(&self.sink))
    }

    /// Memory to write an output to: where the caller wants it, or else the server's own.
    ///
    /// A backend that has its output in memory of its own may put that into the response instead; it is then copied
    /// only if the caller wants it elsewhere.
    ///
    /// # Errors
    /// What the caller's allocator says.
    pub fn allocate(&self, output: &OutputSpec<'_>) -> Result<OutputBuffer> {
        Ok(self.place(output)?.unwrap_or_else(|| OutputBuffer::own(output.byte_size)))
    }

    /// Whether the caller wants some of the outputs in memory of its own choice, as far as is known beforehand.
    pub fn places_outputs(&self) -> bool {
        self.allocator.is_some()
    }

    /// Memory to write an output to where the caller wants it in memory of its own choice; `None` if any will do. For a
    /// backend that has memory of its own to write to otherwise.
    ///
    /// # Errors
    /// What the caller's allocator says.
    pub fn place(&self, output: &OutputSpec<'_>) -> Result<Option<OutputBuffer>> {
        let Some(allocator) = &self.allocator else { return Ok(None) };
        Ok(allocator.allocate(output)?.map(OutputBuffer::placed))
    }

    /// Where [`allocate`](Self::allocate) would place an output.
    pub fn preferred_memory(&self, output: &str, byte_size: Option<usize>) -> Memory {
        self.allocator
            .as_ref()
            .map_or(Memory::HOST, |allocator| allocator.preferred_memory(output, byte_size))
    }

    /// The answer with its outputs where the caller wants them, and otherwise where the processor can read them.
    fn placed(&self, answer: Answer) -> Answer {
        let mut response = answer?;
        self.place_all(&mut response)?;
        for output in &mut response.outputs {
            if !output.buffers.iter().any(Buffer::is_placed) {
                output.bring_to_host()?;
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
        // It is the processor that copies it there.
        preferred: output
            .buffers
            .first()
            .map(Buffer::memory)
            .filter(|it| it.is_host())
            .unwrap_or(Memory::HOST),
    };
    let Some(mut memory) = allocator.allocate(&spec)? else { return Ok(()) };
    let contents = output.contiguous()?;
    match memory.as_mut_slice() {
        Some(target) if target.len() == contents.len() => target.copy_from_slice(&contents),
        Some(target) => {
            return Err(Error::internal(format!(
                "output '{}' takes {} bytes, but {} were allocated for it",
                output.name,
                contents.len(),
                target.len(),
            )));
        }
        None => {
            return Err(Error::unsupported(format!(
                "output '{}' is wanted in the memory of a device, which the processor does not write",
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
