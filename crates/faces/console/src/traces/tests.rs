//! Captured requests, and the limits of traces.

use nereid_core::backend_api::{RequestTrace, TraceLevel, TraceSubject};

use super::*;

const LEVEL: TraceLevel = TraceLevel { timestamps: true, tensors: false };

fn subject(model: &str, request_id: &str) -> TraceSubject {
    let (model_name, request_id) = (model.to_owned(), request_id.to_owned());
    TraceSubject { model_name, model_version: 3, request_id, principal: String::new() }
}

/// The names of a span's points, with their times in milliseconds.
fn points(span: &Span) -> Vec<(&str, u128)> {
    span.points.iter().map(|(name, at)| (&**name, at.as_millis())).collect()
}

#[test]
fn a_request_and_those_that_it_caused_are_captured_when_all_are_over() {
    // The ends of requests are taken from the clock.
    let (captures, begin) = (Captures::default(), Instant::now() - Duration::from_secs(1));
    let at = |ms| begin + Duration::from_millis(ms);
    let (sink, until) = captures.begin("m", begin);
    assert_eq!(until, begin + WAIT);
    assert_eq!(captures.of("m", at(1000)).left, Some(WAIT - Duration::from_secs(1)));
    assert!(captures.of("other", begin).left.is_none());

    let trace = Trace::new(LEVEL, 0, sink);
    trace.stamp("HTTP_RECV_START", at(10));
    let mut request = RequestTrace::new(Arc::clone(&trace));
    request.begin(subject("m", "id"), at(12));
    let mut inner = request.child();
    inner.begin(subject("inner", ""), at(15));
    inner.trace().report(Activity::Custom("half"), at(16));
    // Reports need not come in order.
    trace.report(Activity::ComputeEnd, at(30));
    trace.report(Activity::ComputeStart, at(14));
    drop((request, trace));
    assert!(captures.of("m", begin).trace.is_none());
    drop(inner);

    let Capture { left, trace } = captures.of("m", at(31));
    let trace = trace.unwrap();
    assert!(left.is_none());
    assert_eq!((trace.number, &*trace.request_id, trace.left_out), (1, "id", 0));
    let [outer, inner] = &trace.spans[..] else { panic!("{trace:?}") };
    assert_eq!((outer.parent, &*outer.model, outer.version), (0, "m", 3));
    assert_eq!((inner.parent, &*inner.model), (outer.id, "inner"));
    let expected = [("HTTP_RECV_START", 0), ("REQUEST_START", 2), ("COMPUTE_START", 4), ("COMPUTE_END", 20)];
    assert_eq!(points(outer)[..4], expected);
    assert_eq!(points(inner)[..2], [("REQUEST_START", 5), ("half", 6)]);
}

#[test]
fn a_capture_without_a_request_ends_and_leaves_the_last_trace() {
    let (captures, begin) = (Captures::default(), Instant::now());
    Trace::new(LEVEL, 0, captures.begin("m", begin).0).stamp("A", begin);
    let (sink, until) = captures.begin("m", begin);
    assert!(captures.of("m", until - Duration::from_millis(1)).left.is_some());
    drop(sink);
    let Capture { left, trace } = captures.of("m", until);
    assert_eq!((left, trace.unwrap().number), (None, 1));
}

#[test]
fn a_trace_of_an_earlier_capture_does_not_end_a_later_one() {
    let (captures, begin) = (Captures::default(), Instant::now());
    let slow = Trace::new(LEVEL, 0, captures.begin("m", begin).0);
    slow.stamp("A", begin);
    let later = captures.begin("m", begin);
    drop(slow);
    let capture = captures.of("m", begin);
    assert!(capture.left.is_some() && capture.trace.unwrap().number == 1);
    drop(later);
}

#[test]
fn traces_and_their_parts_have_limits() {
    let (captures, begin) = (Captures::default(), Instant::now());
    for model in 0..MAX_TRACES + 2 {
        let trace = Trace::new(LEVEL, 0, captures.begin(&model.to_string(), begin).0);
        let mut request = RequestTrace::new(Arc::clone(&trace));
        request.begin(subject("m", &"é".repeat(100)), begin);
        for _ in 0..MAX_POINTS {
            trace.report(Activity::Custom(&"x".repeat(1000)), begin);
        }
    }
    let kept = |model: usize| captures.of(&model.to_string(), begin).trace;
    assert!(kept(0).is_none() && kept(1).is_none());
    for model in 2..MAX_TRACES + 2 {
        let trace = kept(model).unwrap();
        // The start of the request took the place of a point, and its end is there, too.
        assert_eq!((trace.spans[0].points.len(), trace.left_out), (MAX_POINTS + 1, 1));
        assert_eq!(trace.spans[0].points.last().unwrap().0, "REQUEST_END");
        assert!(trace.spans[0].points.iter().all(|(name, _)| name.len() <= MAX_NAME));
        assert_eq!(trace.request_id, "é".repeat(MAX_NAME / 2));
    }
}
