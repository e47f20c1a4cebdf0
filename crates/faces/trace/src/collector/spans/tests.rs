//! Which spans a request creates, how they nest, and their events.

use std::time::Duration;

use nereid_backend_api::{RequestTrace, TraceLevel, TraceSubject};

use super::super::backoff::RetryRules;
use super::super::batches::Rules;
use super::super::client::Client;
use super::super::messages::{AnyValue, Value as Attribute};
use super::*;

const LEVEL: TraceLevel = TraceLevel { timestamps: true, tensors: false };

struct Setup {
    batches: Arc<Batches>,
}

impl Setup {
    /// Sends nothing: no batch becomes full.
    fn new() -> Self {
        let (delay, retry) = (Duration::from_secs(3600), RetryRules::default());
        let rules = Rules { most_waiting: 1000, batch: 1000, delay, retry };
        let client = Client::new("http://127.0.0.1:9/").unwrap();
        Self { batches: Arc::new(Batches::new(rules, client, Vec::new())) }
    }

    fn begin(&self, parent: Option<TraceParent>) -> Arc<Trace> {
        Trace::new(LEVEL, 0, Arc::new(SpanRecord::begin(parent, Arc::clone(&self.batches))))
    }

    /// The spans that ended, by their names.
    fn ended(&self) -> BTreeMap<String, Span> {
        self.batches.waiting().into_iter().map(|span| (span.name.clone(), span)).collect()
    }
}

fn request(trace: &Arc<Trace>, model: &str, id: &str) -> RequestTrace {
    let mut request = RequestTrace::new(Arc::clone(trace));
    start(&mut request, model, id);
    request
}

fn start(request: &mut RequestTrace, model: &str, id: &str) {
    let subject = TraceSubject {
        model_name: model.into(),
        model_version: 3,
        request_id: id.into(),
        principal: if id.is_empty() { String::new() } else { "ann".into() },
    };
    request.begin(subject, Instant::now());
}

fn compute(trace: &Arc<Trace>) {
    for activity in [Activity::ComputeStart, Activity::ComputeInputEnd, Activity::ComputeEnd] {
        trace.report(activity, Instant::now());
    }
}

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| event.name.as_str()).collect()
}

fn attribute<'s>(span: &'s Span, name: &str) -> Option<&'s Attribute> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    let Some(AnyValue { value }) = &found.value else { return None };
    value.as_ref()
}

#[test]
fn request_span_has_its_parent_and_contains_the_computation() {
    let setup = Setup::new();
    let trace = setup.begin(None);
    trace.stamp("HTTP_RECV_START", Instant::now());
    let request = request(&trace, "m", "id");
    trace.report(Activity::QueueStart, Instant::now());
    compute(&trace);
    drop(request);
    trace.stamp("HTTP_SEND_END", Instant::now());
    drop(trace);
    let ended = setup.ended();
    let (root, model, compute) = (&ended["InferRequest"], &ended["m"], &ended["compute"]);
    assert_eq!(events(root), ["HTTP_RECV_START", "HTTP_SEND_END"]);
    assert_eq!(events(model), ["REQUEST_START", "QUEUE_START", "REQUEST_END"]);
    assert_eq!(events(compute), ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_END"]);
    assert!(root.parent_span_id.is_empty() && root.trace_id.len() == 16);
    assert_eq!(model.parent_span_id, root.span_id);
    assert_eq!(compute.parent_span_id, model.span_id);
    for span in ended.values() {
        assert_eq!((&span.trace_id, span.kind), (&root.trace_id, SERVER));
        assert!(span.start_time_unix_nano > 0 && span.start_time_unix_nano <= span.end_time_unix_nano);
        assert!(span.end_time_unix_nano <= root.end_time_unix_nano);
    }
    assert_eq!(attribute(model, "triton.model_name"), Some(&Attribute::StringValue("m".into())));
    assert_eq!(attribute(model, "triton.model_version"), Some(&Attribute::IntValue(3)));
    assert_eq!(attribute(model, "triton.trace_parent_id"), Some(&Attribute::IntValue(0)));
    assert_eq!(attribute(model, "triton.request_id"), Some(&Attribute::StringValue("id".into())));
    assert_eq!(attribute(model, "enduser.id"), Some(&Attribute::StringValue("ann".into())));
}

#[test]
fn inner_requests_lie_in_the_request_that_makes_them() {
    let setup = Setup::new();
    let trace = setup.begin(None);
    let outer = request(&trace, "outer", "");
    let mut inner = outer.child();
    start(&mut inner, "inner", "");
    compute(inner.trace());
    drop((inner, outer, trace));
    let ended = setup.ended();
    assert_eq!(ended["inner"].parent_span_id, ended["outer"].span_id);
    assert_eq!(ended["compute"].parent_span_id, ended["inner"].span_id);
    assert_eq!(attribute(&ended["inner"], "triton.request_id"), None);
    assert_eq!(attribute(&ended["inner"], "enduser.id"), None);
    assert_ne!(attribute(&ended["inner"], "triton.trace_parent_id"), Some(&Attribute::IntValue(0)));
}

#[test]
fn client_trace_context_propagates_to_backends() {
    let setup = Setup::new();
    let parent = TraceParent { trace_id: [7; 16], span_id: [9; 8], flags: 0, state: "a=1".into() };
    let trace = setup.begin(Some(parent));
    let request = request(&trace, "m", "");
    let context: Value = serde_json::from_str(&trace.context()).unwrap();
    drop((request, trace));
    let ended = setup.ended();
    assert_eq!(ended["InferRequest"].parent_span_id, [9; 8]);
    assert!(ended.values().all(|span| span.trace_id == [7; 16] && span.trace_state == "a=1"));
    let traceparent = format!("00-{}-{}-01", "07".repeat(16), hex(&ended["m"].span_id));
    assert_eq!(context, serde_json::json!({"traceparent": traceparent, "tracestate": "a=1"}));
}

#[test]
fn a_backend_has_spans_of_its_own_but_cannot_end_others() {
    let setup = Setup::new();
    let trace = setup.begin(None);
    let request = request(&trace, "LOAD", "");
    for name in ["LOAD_END", "FETCH_START", "HALF", "FETCH_END", "FETCH_END", "_START", "OPEN_START"] {
        trace.report(Activity::Custom(name), Instant::now());
    }
    drop((request, trace));
    let ended = setup.ended();
    assert_eq!(events(&ended["FETCH"]), ["FETCH_START", "HALF", "FETCH_END"]);
    assert_eq!(ended["FETCH"].parent_span_id, ended["LOAD"].span_id);
    assert_eq!(events(&ended["LOAD"]), ["REQUEST_START", "LOAD_END", "FETCH_END", "_START"]);
    // What it left open ended with the request.
    assert_eq!(events(&ended["OPEN"]), ["OPEN_START", "REQUEST_END"]);
}

#[test]
fn refused_request_has_no_inner_span() {
    let setup = Setup::new();
    let trace = setup.begin(None);
    drop(RequestTrace::new(Arc::clone(&trace)));
    drop(trace);
    assert_eq!(setup.ended().into_keys().collect::<Vec<_>>(), ["InferRequest"]);
}

#[test]
fn events_without_end_are_counted() {
    let setup = Setup::new();
    let trace = setup.begin(None);
    (0..MOST_EVENTS + 5).for_each(|_| trace.stamp("INFER_RESPONSE_COMPLETE", Instant::now()));
    drop(trace);
    let root = &setup.ended()["InferRequest"];
    assert_eq!((root.events.len(), root.dropped_events_count), (MOST_EVENTS, 5));
}
