//! A request's trace as spans.
//!
//! The root span `InferRequest` covers the whole request, with the protocol's stages as events. Within it each request
//! to a model has a span named after the model, which contains `compute`. A backend creates spans with activities whose
//! names end in `_START` and `_END`. Every other stage is an event of the open span.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nereid_backend_api::{Activity, Tensor, TensorActivity, Trace, TraceSink};
use nereid_trace_settings::TraceParent;
use serde_json::{Map, Value};

use super::batches::Batches;
use super::messages::{Event, KeyValue, SERVER, Span};
use crate::clock::Epoch;

/// Largest number of events of a span; further ones are only counted.
const MOST_EVENTS: usize = 1024;

/// Trace flag: the trace is recorded.
const SAMPLED: u8 = 1;

const START: &str = "_START";
const END: &str = "_END";

/// One request's spans. Dropped when the trace is complete.
pub(super) struct SpanRecord {
    epoch: Epoch,
    batches: Arc<Batches>,
    trace_id: [u8; 16],
    /// The trace state from upstream services.
    trace_state: String,
    open: Mutex<OpenSpans>,
}

struct OpenSpans {
    root: Span,
    /// Open spans of each trace by its id, the innermost last.
    inner: BTreeMap<u64, Vec<Span>>,
}

impl SpanRecord {
    pub(super) fn begin(parent: Option<TraceParent>, batches: Arc<Batches>) -> Self {
        let epoch = Epoch::now();
        let (trace_id, parent_span, trace_state) = match parent {
            Some(parent) => (parent.trace_id, parent.span_id.to_vec(), parent.state),
            None => (fastrand::u128(1..).to_be_bytes(), Vec::new(), String::new()),
        };
        let root = Span {
            trace_id: trace_id.to_vec(),
            span_id: new_span_id(),
            trace_state: trace_state.clone(),
            parent_span_id: parent_span,
            name: "InferRequest".to_owned(),
            kind: SERVER,
            start_time_unix_nano: epoch.nanos(Instant::now()),
            flags: SAMPLED.into(),
            ..Span::default()
        };
        let open = Mutex::new(OpenSpans { root, inner: BTreeMap::new() });
        Self { epoch, batches, trace_id, trace_state, open }
    }

    fn open(&self) -> MutexGuard<'_, OpenSpans> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, open: &mut OpenSpans, trace: &Trace, activity: Activity<'_>, at: u64) {
        let name = match activity {
            Activity::RequestStart => trace.subject().map(|subject| subject.model_name.as_str()),
            Activity::ComputeStart => Some("compute"),
            Activity::Custom(name) => name.strip_suffix(START).filter(|name| !name.is_empty()),
            _ => None,
        };
        let Some(name) = name else { return };
        let around = match activity {
            Activity::RequestStart if trace.parent() != 0 => trace.parent(),
            _ => trace.id(),
        };
        let mut span = Span {
            trace_id: self.trace_id.to_vec(),
            span_id: new_span_id(),
            trace_state: self.trace_state.clone(),
            parent_span_id: open.innermost(around).span_id.clone(),
            name: name.to_owned(),
            kind: SERVER,
            start_time_unix_nano: at,
            flags: SAMPLED.into(),
            ..Span::default()
        };
        if let (Activity::RequestStart, Some(subject)) = (activity, trace.subject()) {
            span.attributes = vec![
                KeyValue::text("triton.model_name", &subject.model_name),
                KeyValue::number("triton.model_version", subject.model_version),
                KeyValue::number("triton.trace_id", trace.id()),
                KeyValue::number("triton.trace_parent_id", trace.parent()),
            ];
            if !subject.request_id.is_empty() {
                span.attributes.push(KeyValue::text("triton.request_id", &subject.request_id));
            }
            if !subject.principal.is_empty() {
                span.attributes.push(KeyValue::text("enduser.id", &subject.principal));
            }
            trace.set_context(self.context(&span));
        }
        open.inner.entry(trace.id()).or_default().push(span);
    }

    /// The trace context that a backend propagates to other services (W3C Trace Context).
    fn context(&self, span: &Span) -> String {
        let (trace, span) = (hex(&self.trace_id), hex(&span.span_id));
        let mut context = Map::new();
        context.insert("traceparent".into(), format!("00-{trace}-{span}-{SAMPLED:02x}").into());
        if !self.trace_state.is_empty() {
            context.insert("tracestate".into(), self.trace_state.as_str().into());
        }
        Value::Object(context).to_string()
    }

    fn end(&self, open: &mut OpenSpans, trace: &Trace, activity: Activity<'_>, at: u64) {
        let Some(spans) = open.inner.get_mut(&trace.id()) else { return };
        let ended = match activity {
            // Spans still open within it end with it.
            Activity::RequestEnd => std::mem::take(spans),
            Activity::ComputeEnd => spans.pop_if(|span| span.name == "compute").into_iter().collect(),
            Activity::Custom(name) => {
                let name = name.strip_suffix(END).unwrap_or_default();
                // The request's own span is not a backend's to end.
                let innermost = spans.len();
                spans.pop_if(|span| innermost > 1 && span.name == name).into_iter().collect()
            }
            _ => return,
        };
        ended.into_iter().rev().for_each(|span| self.export(span, at));
    }

    fn export(&self, span: Span, end: u64) {
        self.batches.push(Span { end_time_unix_nano: end.max(span.start_time_unix_nano), ..span });
    }
}

impl OpenSpans {
    /// The innermost span of a trace, or else the one around all.
    fn innermost(&mut self, trace: u64) -> &mut Span {
        self.inner.get_mut(&trace).and_then(|spans| spans.last_mut()).unwrap_or(&mut self.root)
    }
}

fn add_event(span: &mut Span, name: &str, time_unix_nano: u64) {
    if span.events.len() < MOST_EVENTS {
        span.events.push(Event { time_unix_nano, name: name.to_owned() });
    } else {
        span.dropped_events_count = span.dropped_events_count.saturating_add(1);
    }
}

fn new_span_id() -> Vec<u8> {
    fastrand::u64(1..).to_be_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl TraceSink for SpanRecord {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, at: Instant) {
        let at = self.epoch.nanos(at);
        let mut open = self.open();
        self.start(&mut open, trace, activity, at);
        add_event(open.innermost(trace.id()), activity.name(), at);
        self.end(&mut open, trace, activity, at);
    }

    /// Spans cannot hold tensors.
    fn tensor(&self, _: &Arc<Trace>, _: TensorActivity, _: &Tensor) {}

    fn stamp(&self, _: &Trace, name: &'static str, at: Instant) {
        add_event(&mut self.open().root, name, self.epoch.nanos(at));
    }

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

impl Drop for SpanRecord {
    fn drop(&mut self) {
        let now = self.epoch.nanos(Instant::now());
        let (inner, root) = {
            let mut open = self.open();
            (std::mem::take(&mut open.inner), std::mem::take(&mut open.root))
        };
        let left = inner.into_values().flat_map(|spans| spans.into_iter().rev());
        left.chain([root]).for_each(|span| self.export(span, now));
    }
}

#[cfg(test)]
mod tests;
