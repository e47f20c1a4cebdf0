//! The requests an instance executes together.

use std::sync::Arc;
use std::time::Instant;

use crate::{Error, Phase, Request, Response, Result};

/// Hears of every executed batch. The server implements it, an instance's statistics behind it.
pub trait BatchMonitor: Send + Sync {
    /// A batch of `size` items ran.
    fn executed(&self, size: usize, times: ExecutionTimes);
}

/// When the phases of one execution began and when the last ended.
#[derive(Clone, Copy, Debug)]
pub struct ExecutionTimes {
    /// Gathering of inputs began.
    pub started: Instant,
    /// The model began to run.
    pub inputs_ready: Instant,
    /// The model had run.
    pub outputs_ready: Instant,
    /// The outputs were ready to be sent.
    pub ended: Instant,
}

/// One or more requests that share an execution. They have the same inputs, and shapes that fit together.
///
/// The usual way: read [`requests`](Self::requests), gather, call [`inputs_ready`](Self::inputs_ready), run, call
/// [`outputs_ready`](Self::outputs_ready), then [`complete`](Self::complete) or [`fail`](Self::fail). A decoupled
/// backend takes the requests out with [`into_requests`](Self::into_requests) and answers them on its own.
pub struct Batch {
    requests: Vec<Request>,
    monitor: Arc<dyn BatchMonitor>,
    started: Instant,
    inputs_ready: Option<Instant>,
    outputs_ready: Option<Instant>,
}

impl Batch {
    /// Starts the execution of `requests`. Made by the server.
    pub fn new(requests: Vec<Request>, monitor: Arc<dyn BatchMonitor>) -> Self {
        let mut batch =
            Self { requests, monitor, started: Instant::now(), inputs_ready: None, outputs_ready: None };
        batch.mark(Phase::Started, batch.started);
        batch
    }

    /// The requests, in the order in which [`complete`](Self::complete) takes their answers.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// How many items of the batch dimension all requests hold together.
    pub fn size(&self) -> usize {
        self.requests.iter().map(Request::batch_size).sum()
    }

    /// The inputs are in place; the model runs now.
    pub fn inputs_ready(&mut self) {
        let now = Instant::now();
        self.inputs_ready = Some(now);
        self.mark(Phase::InputsReady, now);
    }

    /// The model has run; its outputs are handed on now.
    pub fn outputs_ready(&mut self) {
        let now = Instant::now();
        self.outputs_ready = Some(now);
        self.mark(Phase::OutputsReady, now);
    }

    /// Answers each request, in order. A request for which no outcome is left is answered with an error.
    pub fn complete(self, outcomes: impl IntoIterator<Item = Result<Response>>) {
        let mut outcomes = outcomes.into_iter();
        let outcomes: Vec<_> = self
            .requests
            .iter()
            .map(|_| {
                outcomes.next().unwrap_or_else(|| Err(Error::internal("the backend gave too few answers")))
            })
            .collect();
        let size = self.size();
        let inputs_ready = self.inputs_ready.unwrap_or(self.started);
        let times = ExecutionTimes {
            started: self.started,
            inputs_ready,
            outputs_ready: self.outputs_ready.unwrap_or(inputs_ready),
            ended: Instant::now(),
        };
        // Before the answers leave: whoever has an answer finds its execution in the statistics.
        self.monitor.executed(size, times);
        for (request, outcome) in self.requests.into_iter().zip(outcomes) {
            request.answer(outcome);
        }
    }

    /// Answers every request with the same error: the execution failed as a whole.
    pub fn fail(self, error: Error) {
        for request in self.requests {
            request.answer(Err(error.clone()));
        }
    }

    /// Takes the requests out, to answer them one by one.
    pub fn into_requests(self) -> Vec<Request> {
        self.requests
    }

    fn mark(&mut self, phase: Phase, at: Instant) {
        for request in &self.requests {
            request.responder().mark(phase, at);
        }
    }
}
