//! Executes a batch of the server's requests, and encodes the outcomes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{
    Answer, Batch, BatchMonitor, Error, ExecutionTimes, InferRequest, Instance, ModelConfig, Request,
    Responder, Response, ResponseSink, Result, SequenceState, SequenceStates, Tensor, Turn,
};
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_worker_protocol::{Incoming, Malformed, Message};

use crate::convert;

/// Executes a batch with an instance of a model of that configuration, and appends the outcomes of its requests.
///
/// # Errors
/// The batch is malformed.
pub(super) fn execute(
    config: &ModelConfig,
    instance: &mut dyn Instance,
    incoming: &Incoming,
    message: &mut Message<'_>,
) -> Result<(), Malformed> {
    let mut reader = incoming.reader();
    let count = reader.count(1)?;
    let answers = Arc::new(Answers::default());
    let mut requests = Vec::with_capacity(count);
    let mut states = Vec::with_capacity(count);
    for at in 0..count {
        let (request, inputs) = reader.request()?;
        let sink = answers.sink(at);
        states.push(match convert::inner_request(request, inputs) {
            Ok(request) => {
                let states = states_of(config, &request).map(Arc::new);
                let size = batch_size(config, &request);
                let mut request = Request::new(request, size, Responder::new(sink, None));
                if states.is_some() {
                    request.begin_turn(Turn::new(states.clone()));
                }
                requests.push(request);
                states
            }
            Err(error) => {
                sink.deliver(Some(Err(error)), true);
                None
            }
        });
    }
    reader.end()?;
    if !requests.is_empty() {
        instance.execute(Batch::new(requests, Arc::new(NoExecutionCounts)));
    }
    message.count(count);
    for (answer, states) in answers.wait(count).into_iter().zip(states) {
        let mark = message.mark();
        let written = answer.and_then(|mut response| {
            add_states(&mut response, states.as_deref());
            put(message, &response)
        });
        if let Err(error) = written {
            message.truncate(mark);
            message.failure_outcome(convert::failure(&error));
        }
    }
    Ok(())
}

fn put(message: &mut Message<'_>, response: &Response) -> Result<()> {
    message.response_outcome(convert::values(&response.parameters));
    message.count(response.outputs.len());
    response.outputs.iter().try_for_each(|output| convert::put_tensor(message, output))
}

fn batch_size(config: &ModelConfig, request: &InferRequest) -> usize {
    let first = request.inputs.first().and_then(|input| input.shape.first());
    let size = first.filter(|_| config.max_batch_size > 0).and_then(|&size| usize::try_from(size).ok());
    size.unwrap_or(1)
}

/// The states of the request's sequence, which are among its inputs; `None` if the model has none.
fn states_of(config: &ModelConfig, request: &InferRequest) -> Option<SequenceStates> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return None };
    let states = batching.state.iter().filter_map(|state| {
        let value = request.inputs.iter().find(|input| input.name == state.input_name)?.clone();
        Some(SequenceState { output: state.output_name.clone(), value, shares_memory: false })
    });
    let states: Vec<_> = states.collect();
    (!states.is_empty()).then(|| SequenceStates::new(states))
}

/// The server reads the new states from the outputs.
fn add_states(response: &mut Response, states: Option<&SequenceStates>) {
    for state in states.map(SequenceStates::all).into_iter().flatten() {
        if !response.outputs.iter().any(|output| output.name == state.output) {
            response.outputs.push(Tensor { name: state.output, ..state.value });
        }
    }
}

/// The answers to the requests of a batch.
#[derive(Default)]
struct Answers {
    given: Mutex<BatchAnswers>,
    changed: Condvar,
}

#[derive(Default)]
struct BatchAnswers {
    /// By the position of requests in the batch.
    answers: Vec<Option<Answer>>,
    ended: usize,
}

/// Records the answer to one request.
struct Sink {
    answers: Arc<Answers>,
    at: usize,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, BatchAnswers> {
        // Nothing panics under this lock.
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sink(self: &Arc<Self>, at: usize) -> Arc<dyn ResponseSink> {
        self.lock().answers.push(None);
        Arc::new(Sink { answers: Arc::clone(self), at })
    }

    /// All answers: a backend may answer after `execute` returns, from its own threads.
    fn wait(&self, count: usize) -> Vec<Answer> {
        let waits = |given: &mut BatchAnswers| given.ended < count;
        let waited = self.changed.wait_while(self.lock(), waits);
        let given = std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner));
        let missing = || Err(Error::internal("the backend ended the request without a response"));
        given.answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }
}

impl ResponseSink for Sink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        let mut given = self.answers.lock();
        // An answer after the last one finds no place: the batch was taken.
        if let Some(answer) = answer
            && let Some(place) = given.answers.get_mut(self.at)
        {
            *place = Some(answer);
        }
        given.ended += usize::from(last);
        drop(given);
        self.answers.changed.notify_one();
    }
}

/// The server itself counts executions.
struct NoExecutionCounts;

impl BatchMonitor for NoExecutionCounts {
    fn executed(&self, _: usize, _: ExecutionTimes) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_after_a_batch_was_taken_are_dropped() {
        let answers = Arc::new(Answers::default());
        let sinks = [answers.sink(0), answers.sink(1)];
        let error = |text| Some(Err(Error::internal(text)));
        sinks[1].deliver(error("second"), true);
        sinks[0].deliver(error("first"), true);
        let taken: Vec<_> = answers.wait(2).into_iter().map(|answer| answer.err().unwrap()).collect();
        assert_eq!(taken.iter().map(Error::message).collect::<Vec<_>>(), ["first", "second"]);
        sinks[0].deliver(error("late"), true);
        assert!(answers.wait(1).is_empty());
    }
}
