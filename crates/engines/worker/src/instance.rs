//! Executes batches in a process.

use std::sync::Arc;
use std::time::Instant;

use nereid_backend_api::{Batch, BatchMonitor, Error, ExecutionTimes, Instance, Intake, Next, Phase, Result};
use nereid_worker_protocol::call::{self, Outcome};
use nereid_worker_protocol::{Incoming, Malformed, Message};

use crate::convert;
use crate::process::{CallError, Process};
use crate::requests::{HeldRequest, LongExecution};
use crate::worker::{Worker, Workers};

/// An instance that runs in a process, which is restarted when it dies.
pub struct WorkerInstance {
    worker: Arc<Worker>,
    /// The outputs of a request that names none.
    outputs: Vec<String>,
    /// The workers that may execute in place of this one.
    others: Workers,
    takes_states: bool,
    reads_device_memory: bool,
    /// How many requests the process holds, if it executes them continuously.
    capacity: Option<usize>,
}

impl WorkerInstance {
    /// An instance in a worker's process. `outputs` lists the model's outputs: others are dropped.
    pub fn new(worker: Arc<Worker>, outputs: Vec<String>) -> Self {
        let others = Workers::default();
        Self { worker, outputs, others, takes_states: false, reads_device_memory: false, capacity: None }
    }

    /// While its process restarts, the instance executes in the processes of these. For models whose requests may go to
    /// any instance.
    #[must_use]
    pub fn helped_by(mut self, others: Workers) -> Self {
        self.others = others;
        self
    }

    /// The process opens inputs in device memory itself, where it can.
    #[must_use]
    pub fn reading_device_memory(mut self) -> Self {
        self.reads_device_memory = true;
        self
    }

    /// The process executes this many requests while it takes further ones.
    #[must_use]
    pub fn executing_continuously(mut self, capacity: usize) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// Responses have the states of their sequences among their outputs.
    #[must_use]
    pub fn taking_states(mut self) -> Self {
        self.takes_states = true;
        self
    }
}

impl Instance for WorkerInstance {
    fn execute(&mut self, batch: Batch) {
        let process = self.worker.running_now().or_else(|| self.others.running_now());
        match process.map_or_else(|| self.worker.running(), Ok) {
            Ok(process) => {
                let started = Instant::now();
                Execution { process: &process, instance: self, batch, started }.run();
                if process.ended().is_some() {
                    // In the meantime, other instances execute the queued requests.
                    self.worker.await_restart();
                }
            }
            Err(error) => batch.fail(error),
        }
    }

    fn executes_continuously(&self) -> bool {
        self.capacity.is_some()
    }

    fn capacity(&self) -> usize {
        self.capacity.unwrap_or(1)
    }

    fn run(&mut self, mut intake: Intake) {
        loop {
            let process = self.worker.running_now();
            if process.is_none() {
                // In the meantime, other instances execute the queued requests.
                self.worker.await_restart();
            }
            let held = process.map_or(0, |process| process.requests.len());
            match intake.try_next(|_| held < self.capacity()) {
                Next::Request(batch) => self.execute(batch),
                Next::Ended if held == 0 => return,
                Next::Ended | Next::Full | Next::Nothing => intake.wait(),
            }
        }
    }
}

impl Drop for WorkerInstance {
    fn drop(&mut self) {
        self.worker.stop();
    }
}

/// A batch in a process.
struct Execution<'a> {
    process: &'a Process,
    instance: &'a WorkerInstance,
    batch: Batch,
    started: Instant,
}

impl Execution<'_> {
    fn run(self) {
        let Self { process, instance, mut batch, started } = self;
        let WorkerInstance { outputs, takes_states, reads_device_memory, .. } = instance;
        let put = |message: &mut Message<'_>, input| convert::put_input(message, input, *reads_device_memory);
        let mut channel = match process.begin_execution() {
            Ok(channel) => channel,
            Err(error) => return batch.fail(error.into()),
        };
        process.requests.set_outputs(outputs);
        let first = process.requests.reserve(batch.requests().len());
        let mut message = channel.sender.message(call::EXECUTE);
        let place = message.reserve_count();
        let mut refused = Vec::new();
        for (handle, request) in (first..).zip(batch.requests()) {
            let mark = message.mark();
            convert::put_request(&mut message, handle, request, outputs, *takes_states);
            let put = request.inputs.iter().try_for_each(|input| put(&mut message, input));
            if let Err(error) = put {
                message.truncate(mark);
                refused.push((handle, error));
            }
        }
        message.fill_count(place, batch.requests().len() - refused.len());
        batch.inputs_ready();
        let (monitor, size, inputs_ready) = (batch.monitor(), batch.size(), Instant::now());
        let mut handles = Vec::with_capacity(batch.requests().len() - refused.len());
        let mut requests = Vec::with_capacity(handles.capacity());
        let mut refused = refused.into_iter().peekable();
        for (handle, request) in (first..).zip(batch.into_requests()) {
            match refused.next_if(|(refused, _)| *refused == handle) {
                Some((_, error)) => request.answer(Err(error)),
                None => {
                    handles.push(handle);
                    requests.push((handle, request));
                }
            }
        }
        if requests.is_empty() {
            return;
        }
        let execution =
            instance.capacity.map(|_| LongExecution { monitor: Arc::clone(&monitor), started, inputs_ready });
        if let Err((requests, error)) = process.requests.add(requests, execution.as_ref()) {
            requests.into_iter().for_each(|(_, request)| request.answer(Err(error.clone())));
            return;
        }
        let times = Times { started, inputs_ready };
        let answer = match message.send() {
            Ok(()) => process.answer(&mut channel, call::EXECUTED),
            Err(error) => Err(process.lost(Some(error))),
        };
        let takes_states = *takes_states;
        let is_long = instance.capacity.is_some();
        let executed =
            ExecutedBatch { process, outputs, takes_states, is_long, handles, monitor, size, times };
        match answer {
            Ok(answer) => executed.complete(&answer),
            Err(CallError::Failed(error, sent)) => {
                // Answers that it has already sent are valid.
                process.requests.await_side(sent);
                executed.fail(&error);
            }
            // The end of the process has failed its requests.
            Err(CallError::Lost(error)) => executed.fail(&error),
        }
    }
}

struct Times {
    started: Instant,
    inputs_ready: Instant,
}

/// An executed batch.
struct ExecutedBatch<'a> {
    process: &'a Process,
    outputs: &'a [String],
    takes_states: bool,
    /// Whether the execution ends with the last response.
    is_long: bool,
    handles: Vec<u64>,
    monitor: Arc<dyn BatchMonitor>,
    size: usize,
    times: Times,
}

impl ExecutedBatch<'_> {
    fn complete(self, answer: &Incoming) {
        let outputs_ready = Instant::now();
        let (sent, outcomes) = match self.outcomes(answer) {
            Ok(outcomes) => outcomes,
            Err(malformed) => {
                let error: Error = self.process.broke_protocol(&malformed).into();
                return self.fail(&error);
            }
        };
        // Earlier messages on the side channel may concern these requests, too.
        if outcomes.iter().any(|outcome| !matches!(outcome, Outcome::Response(_)))
            && !self.process.requests.await_side(sent)
        {
            let error: Error = self.process.broke_protocol(&"messages are missing").into();
            return self.fail(&error);
        }
        let is_later = |outcome: &Outcome<'_>| matches!(outcome, Outcome::Later);
        if outcomes.iter().any(is_later) {
            let executed = self.handles.iter().zip(&outcomes).filter(|(_, outcome)| is_later(outcome));
            self.process.requests.end_turns(executed.map(|(handle, _)| *handle));
        }
        let answered: Vec<_> =
            self.handles.iter().zip(&outcomes).filter(|(_, outcome)| !is_later(outcome)).collect();
        let mut requests =
            self.process.requests.take_all(answered.iter().map(|(handle, _)| **handle)).into_iter();
        // Executions that end with the last response are counted then.
        let succeeded =
            !self.is_long && outcomes.iter().any(|outcome| !matches!(outcome, Outcome::Failure(_)));
        let mut answers = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            if is_later(&outcome) {
                continue;
            }
            let held = requests.next().flatten();
            let wants = |output: &str| {
                held.as_ref().is_some_and(|held| convert::wants(&held.request, self.outputs, output))
            };
            let answer = match outcome {
                Outcome::Response(response) => {
                    let states = held.as_ref().filter(|_| self.takes_states).and_then(HeldRequest::states);
                    Some(convert::response_with_states(response, wants, states))
                }
                Outcome::Failure(failure) => Some(Err(convert::error(failure))),
                Outcome::Later | Outcome::Reschedule => None,
            };
            answers.extend(held.map(|held| (held, answer)));
        }
        for (held, _) in &answers {
            held.request.responder().mark(Phase::OutputsReady, outputs_ready);
        }
        if succeeded {
            let times = ExecutionTimes {
                started: self.times.started,
                inputs_ready: self.times.inputs_ready,
                outputs_ready,
                ended: Instant::now(),
            };
            self.monitor.executed(self.size, times);
        }
        for (held, answer) in answers {
            match answer {
                Some(answer) => held.request.responder().finish_with(answer),
                None => held.reschedule(),
            }
        }
    }

    fn outcomes<'a>(&self, answer: &'a Incoming) -> Result<(u64, Vec<Outcome<'a>>), Malformed> {
        let mut reader = answer.reader();
        let sent = reader.u64()?;
        if reader.count(1)? != self.handles.len() {
            return Err(Malformed("an execution has another number of outcomes than requests"));
        }
        let outcomes = self.handles.iter().map(|_| reader.outcome()).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok((sent, outcomes))
    }

    fn fail(self, error: &Error) {
        for held in self.process.requests.take_all(self.handles.iter().copied()).into_iter().flatten() {
            held.request.responder().finish_with(Err(error.clone()));
        }
    }
}
