//! The requests an instance executes together.

use std::sync::Arc;
use std::time::Instant;

use crate::{Error, ModelCapabilities, Phase, Request, Response, Result};

/// Counts executed batches. Implemented by the server for each instance's statistics.
pub trait BatchMonitor: Send + Sync {
    /// A batch of `size` items was executed.
    fn executed(&self, size: usize, times: ExecutionTimes);
}

/// The start of each phase of an execution, and the end of the last one.
#[derive(Clone, Copy, Debug)]
pub struct ExecutionTimes {
    /// Start of gathering the inputs.
    pub started: Instant,
    /// The model began to run.
    pub inputs_ready: Instant,
    /// The model finished.
    pub outputs_ready: Instant,
    /// The outputs were ready to send.
    pub ended: Instant,
}

/// One or more requests that share an execution. They have the same inputs, with compatible shapes.
///
/// Typical use: read [`requests`](Self::requests), gather, call [`inputs_ready`](Self::inputs_ready), run, call
/// [`outputs_ready`](Self::outputs_ready), then [`complete`](Self::complete) or [`fail`](Self::fail). A decoupled
/// backend takes the requests out with [`into_requests`](Self::into_requests) and answers them itself.
pub struct Batch {
    requests: Vec<Request>,
    monitor: Arc<dyn BatchMonitor>,
    started: Instant,
    inputs_ready: Option<Instant>,
    outputs_ready: Option<Instant>,
}

impl Batch {
    /// Starts the execution of `requests`. Called by the server.
    pub fn new(requests: Vec<Request>, monitor: Arc<dyn BatchMonitor>) -> Self {
        let mut batch =
            Self { requests, monitor, started: Instant::now(), inputs_ready: None, outputs_ready: None };
        batch.mark(Phase::Started, batch.started);
        batch
    }

    /// The requests, in the order of the outcomes for [`complete`](Self::complete).
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Number of items in the batch dimension, over all requests.
    pub fn size(&self) -> usize {
        self.requests.iter().map(Request::batch_size).sum()
    }

    /// Copies the inputs that a model with these capabilities does not take where they are: those in device memory, and those
    /// in memory that other processes may write. Requests for which that fails get the error as their answer and leave the
    /// batch. For the server.
    pub fn copy_inputs_for(&mut self, capabilities: &ModelCapabilities) {
        if !self.requests.iter().any(|request| request.has_inputs_to_copy(capabilities)) {
            return;
        }
        let requests = std::mem::take(&mut self.requests);
        for mut request in requests {
            match request.copy_inputs_for(capabilities) {
                Ok(()) => self.requests.push(request),
                Err(error) => request.answer(Err(error)),
            }
        }
    }

    /// Marks the inputs as gathered; the model runs next.
    pub fn inputs_ready(&mut self) {
        let now = Instant::now();
        self.inputs_ready = Some(now);
        self.mark(Phase::InputsReady, now);
    }

    /// Marks the model as finished; its outputs are sent next.
    pub fn outputs_ready(&mut self) {
        let now = Instant::now();
        self.outputs_ready = Some(now);
        self.mark(Phase::OutputsReady, now);
    }

    /// Answers the requests, in order. Requests without an outcome get an error. The batch counts as executed if any
    /// request succeeded.
    pub fn complete(self, outcomes: impl IntoIterator<Item = Result<Response>>) {
        let mut outcomes = outcomes.into_iter();
        let outcomes: Vec<_> = self
            .requests
            .iter()
            .map(|_| {
                outcomes.next().unwrap_or_else(|| {
                    Err(Error::internal("the backend returned fewer answers than the batch has requests"))
                })
            })
            .collect();
        let inputs_ready = self.inputs_ready.unwrap_or(self.started);
        let times = ExecutionTimes {
            started: self.started,
            inputs_ready,
            outputs_ready: self.outputs_ready.unwrap_or(inputs_ready),
            ended: Instant::now(),
        };
        // Before the answers are sent: a client with an answer finds the execution in the statistics.
        if outcomes.iter().any(Result::is_ok) {
            self.monitor.executed(self.size(), times);
        }
        for (request, outcome) in self.requests.into_iter().zip(outcomes) {
            request.answer(outcome);
        }
    }

    /// Answers every request with the same error, because the entire execution failed.
    pub fn fail(self, error: Error) {
        for request in self.requests {
            request.answer(Err(error.clone()));
        }
    }

    /// The counter of executions, for a backend that reports them itself.
    pub fn monitor(&self) -> Arc<dyn BatchMonitor> {
        Arc::clone(&self.monitor)
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;
    use crate::testing::{Card, on_card};
    use crate::{Answer, Buffer, DataType, InferRequest, Responder, ResponseSink, SharedInputs, Tensor};

    /// Records the events of a batch, in order.
    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl BatchMonitor for Log {
        fn executed(&self, size: usize, times: ExecutionTimes) {
            assert!(times.started <= times.inputs_ready && times.inputs_ready <= times.outputs_ready);
            assert!(times.outputs_ready <= times.ended);
            self.0.lock().unwrap().push(format!("executed {size}"));
        }
    }

    impl ResponseSink for Log {
        fn deliver(&self, answer: Option<Answer>, _last: bool) {
            let entry = match answer.unwrap() {
                Ok(_) => "answered".to_owned(),
                Err(error) => error.message().to_owned(),
            };
            self.0.lock().unwrap().push(entry);
        }
        fn mark(&self, phase: Phase, _: Instant) {
            self.0.lock().unwrap().push(format!("{phase:?}"));
        }
        fn is_cancelled(&self) -> bool {
            false
        }
    }

    fn log(requests: usize, act: impl FnOnce(Batch)) -> Vec<String> {
        let log = Arc::new(Log::default());
        let request =
            |_| Request::new(InferRequest::default(), 2, Responder::new(Arc::<Log>::clone(&log), None));
        act(Batch::new((0..requests).map(request).collect(), Arc::<Log>::clone(&log)));
        std::mem::take(&mut log.0.lock().unwrap())
    }

    #[test]
    fn execution_is_counted_before_answers_are_sent() {
        let log = log(1, |mut batch| {
            batch.inputs_ready();
            batch.outputs_ready();
            batch.complete([Ok(Response::default())]);
        });
        assert_eq!(log, ["Started", "InputsReady", "OutputsReady", "executed 2", "answered"]);
    }

    #[test]
    fn failed_device_copy_answers_the_request() {
        let (good, bad, wrong) =
            (Card::holding(b"12345678"), Card::holding(b"12345678"), Card::holding(b"123"));
        bad.fail();
        let log = Arc::new(Log::default());
        let request = |card: &Arc<Card>, data_type| {
            let mut input = Tensor::new("X", data_type, [2], vec![]);
            input.buffers = [on_card(card)].into_iter().collect();
            let request = InferRequest { inputs: vec![input], ..InferRequest::default() };
            Request::new(request, 1, Responder::new(Arc::<Log>::clone(&log), None))
        };
        let requests = vec![
            request(&bad, DataType::Int32),
            request(&good, DataType::Int32),
            request(&wrong, DataType::Bytes),
        ];
        assert!(requests[1].touches_device());
        let mut batch = Batch::new(requests, Arc::<Log>::clone(&log));
        batch.copy_inputs_for(&ModelCapabilities::default());
        assert_eq!(batch.requests().len(), 1);
        let left = &batch.requests()[0];
        assert!(!left.has_inputs_on_device() && !left.touches_device());
        assert_eq!(&*left.input("X").unwrap().contiguous().unwrap(), b"12345678");
        let reported = log.0.lock().unwrap()[3..].to_vec();
        assert_eq!(reported[0], "tensor 'X' in device memory: the card is gone");
        assert!(reported[1].starts_with("tensor 'X': "), "{reported:?}");
    }

    #[test]
    fn inputs_that_other_processes_may_write_are_copied_unless_the_model_takes_them() {
        let client = Buffer::shared(Bytes::from_static(b"12345678"));
        let process = Buffer::shared_with_model(Bytes::from_static(b"12345678"));
        let cases = [
            (SharedInputs::Copied, DataType::Fp32, true),
            (SharedInputs::Copied, DataType::Int64, true),
            (SharedInputs::Numbers, DataType::Fp32, false),
            (SharedInputs::Numbers, DataType::Fp64, false),
            (SharedInputs::Numbers, DataType::Fp16, false),
            (SharedInputs::Numbers, DataType::Bf16, false),
            (SharedInputs::Numbers, DataType::Int64, true),
            (SharedInputs::Numbers, DataType::Uint8, true),
            (SharedInputs::Numbers, DataType::Bool, true),
            (SharedInputs::InPlace, DataType::Int64, false),
        ];
        for (shared_inputs, data_type, is_copied) in cases {
            for buffer in [&client, &process] {
                let count = 8 / data_type.byte_size().unwrap() as i64;
                let mut input = Tensor::new("X", data_type, [count], vec![]);
                input.buffers = [buffer.clone()].into_iter().collect();
                let request = InferRequest { inputs: vec![input], ..InferRequest::default() };
                let log = Arc::new(Log::default());
                let request = Request::new(request, 1, Responder::new(Arc::<Log>::clone(&log), None));
                let mut batch = Batch::new(vec![request], log);
                batch.copy_inputs_for(&ModelCapabilities { shared_inputs, ..ModelCapabilities::default() });
                let input = batch.requests()[0].input("X").unwrap();
                assert_eq!(input.is_shared(), !is_copied, "{shared_inputs:?} {data_type:?}");
                let address = |buffer: &Buffer| buffer.as_host().unwrap().as_ptr();
                assert_eq!(address(&input.buffers[0]) != address(buffer), is_copied);
                assert_eq!(&*input.contiguous().unwrap(), b"12345678");
            }
        }
    }

    #[test]
    fn each_request_has_its_own_outcome_and_none_is_left_without() {
        let log = log(3, |batch| batch.complete([Err(Error::invalid_arg("wrong")), Ok(Response::default())]));
        assert_eq!(
            log[3..],
            [
                "executed 6",
                "wrong",
                "answered",
                "the backend returned fewer answers than the batch has requests"
            ]
        );
    }

    #[test]
    fn failed_batch_is_not_counted_as_executed() {
        let failed = log(2, |batch| batch.fail(Error::internal("broken")));
        assert_eq!(failed[2..], ["broken", "broken"]);
        let failed = log(1, |batch| batch.complete([Err(Error::internal("broken"))]));
        assert_eq!(failed[1..], ["broken"]);
    }
}
