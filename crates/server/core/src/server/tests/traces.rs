//! The reports of a trace on a request's way through the server.

use std::sync::Mutex;

use nereid_backend_api::{
    Activity, ExecutionTimes, RequestTrace, TensorActivity, Trace, TraceLevel, TraceSink,
};

use super::*;

/// Records the activities of a trace.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Heard {
    fn add(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl TraceSink for Heard {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, _: Instant) {
        let subject = trace.subject().unwrap();
        if activity == Activity::RequestStart {
            self.add(format!("{} {} {}", subject.model_name, subject.model_version, subject.request_id));
        }
        self.add(activity.name().into());
    }

    fn tensor(&self, _: &Arc<Trace>, activity: TensorActivity, tensor: &Tensor) {
        self.add(format!("{} {} {}", activity.name(), tensor.name, tensor.shape));
    }

    fn ended(&self, _: &Arc<Trace>) {
        self.add("ended".into());
    }

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

/// The trace of one request, once it is complete.
async fn reported(script: Script, mut request: InferRequest) -> Vec<String> {
    let server = serving(script);
    let heard = Arc::new(Heard::default());
    let level = TraceLevel { timestamps: true, tensors: true };
    request.trace = Some(RequestTrace::new(Trace::new(level, 0, heard.clone())));
    if let Ok(mut answers) = infer(&server, request) {
        // What comes of it is tested elsewhere.
        while answers.next().await.is_some() {}
    }
    // The instances have ended then, and with them the last who has the request.
    server.unload_all();
    std::mem::take(&mut *heard.0.lock().unwrap())
}

const BEGUN: [&str; 4] = ["m 1 id", "REQUEST_START", "QUEUE_START", "TENSOR_QUEUE_INPUT IN [1,2]"];
const COMPUTED: [&str; 4] = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"];

fn traced_request() -> InferRequest {
    InferRequest { id: "id".into(), ..request() }
}

#[tokio::test]
async fn a_request_is_traced_from_beginning_to_end() {
    let output = ["TENSOR_BACKEND_OUTPUT OUT [1,2,1]"];
    let expected = [&BEGUN[..], &output, &COMPUTED, &["REQUEST_END", "ended"]].concat();
    assert_eq!(reported(echo, traced_request()).await, expected);
}

#[tokio::test]
async fn a_backend_that_reports_times_itself_is_believed_once() {
    fn reporting(batch: Batch) {
        for request in batch.into_requests() {
            request.responder().await_report();
            let output = Tensor { name: "OUT".into(), ..request.inputs[0].clone() };
            request.responder().finish_with(Ok(Response::new(vec![output])));
            let now = Instant::now();
            let times = ExecutionTimes { started: now, inputs_ready: now, outputs_ready: now, ended: now };
            request.responder().report(times);
        }
    }
    let output = ["TENSOR_BACKEND_OUTPUT OUT [1,2,1]"];
    let expected = [&BEGUN[..], &output, &COMPUTED, &["REQUEST_END", "ended"]].concat();
    assert_eq!(reported(reporting, traced_request()).await, expected);
}

#[tokio::test]
async fn a_request_that_fails_has_an_end_too() {
    let expected = [&BEGUN[..], &COMPUTED, &["REQUEST_END", "ended"]].concat();
    assert_eq!(reported(drop, traced_request()).await, expected);
}

#[tokio::test]
async fn a_refused_request_is_not_traced() {
    let wrong = InferRequest { inputs: Vec::new(), ..traced_request() };
    assert_eq!(reported(echo, wrong).await, ["ended"]);
}
