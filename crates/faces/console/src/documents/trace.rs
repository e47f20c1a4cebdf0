//! The trace of a request as pages draw it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::traces::{Capture, CapturedTrace, Span};

/// The last capture of a model.
#[derive(Serialize)]
pub(crate) struct TraceDocument {
    /// Seconds until the capture ends without a trace; `None` if it does not wait.
    waits: Option<f64>,
    trace: Option<Trace>,
}

#[derive(Serialize)]
struct Trace {
    /// Unique among the traces of the model.
    number: u64,
    /// Milliseconds since the Unix epoch.
    at: u64,
    request_id: String,
    spans: Vec<SpanDocument>,
    left_out: usize,
}

#[derive(Serialize)]
struct SpanDocument {
    id: u64,
    parent: u64,
    /// `None` for a model that the caller may not see.
    model: Option<String>,
    version: String,
    /// Names, and microseconds since the first point of the trace.
    points: Vec<(String, f64)>,
}

impl TraceDocument {
    pub(crate) fn of(capture: &Capture, may_see: impl Fn(&str) -> bool) -> Self {
        Self {
            waits: capture.left.map(|left| left.as_secs_f64()),
            trace: capture.trace.as_deref().map(|trace| Trace::of(trace, may_see)),
        }
    }
}

impl Trace {
    fn of(trace: &CapturedTrace, may_see: impl Fn(&str) -> bool) -> Self {
        let micros = |at: Duration| at.as_nanos() as f64 / 1e3;
        let span = |span: &Span| SpanDocument {
            id: span.id,
            parent: span.parent,
            model: may_see(&span.model).then(|| span.model.clone()),
            version: span.version.to_string(),
            points: span.points.iter().map(|(name, at)| (name.to_string(), micros(*at))).collect(),
        };
        Self {
            number: trace.number,
            at: unix_ms(trace.at),
            request_id: trace.request_id.clone(),
            spans: trace.spans.iter().map(span).collect(),
            left_out: trace.left_out,
        }
    }
}

fn unix_ms(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
