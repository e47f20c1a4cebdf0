//! Trace files in Triton's format: an array of objects. Each states one fact about the trace with its `id`: the
//! request, the time of a stage, or a tensor.
//!
//! With a log frequency, each of `FILE.0`, `FILE.1` and so on receives this number of traces. With a count, reaching it
//! writes the traces to the next such file. All others are written to `FILE` itself, when their settings or the server
//! end.
//!
//! A trace is formatted while its request is in progress, and written when complete, by a separate thread
//! (`writer.rs`).

mod array;
mod writer;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nereid_backend_api::{Activity, Tensor, TensorActivity, Trace, TraceSink};
use nereid_trace_settings::{TraceParent, TraceSettings, TraceStore, TraceStream};

use self::writer::{FinishedTrace, Writer};
use crate::{clock, tensor_text};

/// Writes traces to files.
#[derive(Debug)]
pub struct TraceFiles {
    writer: Arc<Writer>,
    /// The number of the next stream.
    next: AtomicU64,
}

impl TraceFiles {
    /// Writes to this file, and to files named after it. Existing contents are replaced when the first trace is
    /// written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { writer: Arc::new(Writer::new(path.into())), next: AtomicU64::new(0) }
    }
}

impl TraceStore for TraceFiles {
    fn open(&self, settings: &TraceSettings) -> Arc<dyn TraceStream> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Arc::new(Stream(Arc::new(Series {
            number,
            frequency: settings.log_frequency,
            progress: Mutex::default(),
            writer: Arc::clone(&self.writer),
        })))
    }

    fn close(&self) {
        self.writer.close();
    }
}

struct Stream(Arc<Series>);

impl TraceStream for Stream {
    fn begin(&self, _: Option<TraceParent>, last: bool) -> Arc<dyn TraceSink> {
        let mut progress = self.0.progress();
        progress.begun += 1;
        progress.all_begun |= last;
        drop(progress);
        Arc::new(Record { series: Arc::clone(&self.0), texts: Mutex::default() })
    }
}

/// The traces sampled by the same settings. Dropped with the last of them and the settings.
struct Series {
    number: u64,
    /// Number of traces per file; 0 for no limit.
    frequency: u32,
    progress: Mutex<Progress>,
    writer: Arc<Writer>,
}

#[derive(Default)]
struct Progress {
    begun: u64,
    finished: u64,
    /// Whether no further trace begins.
    all_begun: bool,
}

impl Series {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        self.writer.end(self.number);
    }
}

/// One request's trace and those derived from it. Dropped when the trace is complete.
struct Record {
    series: Arc<Series>,
    /// Text recorded for each trace, by id.
    texts: Mutex<BTreeMap<u64, String>>,
}

impl Record {
    /// Adds an object; `write` appends what follows its id.
    fn add(&self, id: u64, write: impl FnOnce(&mut String)) {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let text = texts.entry(id).or_default();
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail, here and below.
        let _ = write!(text, "{comma}{{\"id\":{id}");
        write(text);
        text.push('}');
    }

    fn add_timestamp(&self, id: u64, name: &str, at: Instant) {
        let at = clock::monotonic(at);
        self.add(id, |text| {
            let _ = write!(text, ",\"timestamps\":[{{\"name\":{},\"ns\":{at}}}]", json(name));
        });
    }
}

/// A text as a JSON string.
fn json(text: &str) -> serde_json::Value {
    text.into()
}

impl TraceSink for Record {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, at: Instant) {
        if activity == Activity::RequestStart
            && let Some(subject) = trace.subject()
        {
            self.add(trace.id(), |text| {
                let (name, version) = (json(&subject.model_name), subject.model_version);
                let _ = write!(text, ",\"model_name\":{name},\"model_version\":{version}");
                if !subject.request_id.is_empty() {
                    let _ = write!(text, ",\"request_id\":{}", json(&subject.request_id));
                }
                if trace.parent() != 0 {
                    let _ = write!(text, ",\"parent_id\":{}", trace.parent());
                }
            });
        }
        self.add_timestamp(trace.id(), activity.name(), at);
    }

    fn tensor(&self, trace: &Arc<Trace>, activity: TensorActivity, tensor: &Tensor) {
        let (name, data) = (json(&tensor.name), json(&tensor_text::of(tensor)));
        let shape: Vec<_> = tensor.shape.iter().map(ToString::to_string).collect();
        let (shape, data_type) = (shape.join(","), tensor.data_type);
        self.add(trace.id(), |text| {
            let _ = write!(
                text,
                ",\"activity\":\"{}\",\"tensor\":{{\"name\":{name},\"data\":{data},\"shape\":\"{shape}\",\
                 \"dtype\":\"{data_type}\"}}",
                activity.name()
            );
        });
    }

    fn stamp(&self, trace: &Trace, name: &'static str, at: Instant) {
        self.add_timestamp(trace.id(), name, at);
    }

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let texts = std::mem::take(&mut *self.texts.lock().unwrap_or_else(PoisonError::into_inner));
        let text = texts.into_values().collect::<Vec<_>>().join(",");
        let series = &self.series;
        // Handed on while it is locked: the one that completes the count is handed on last.
        let mut progress = series.progress();
        progress.finished += 1;
        series.writer.take(FinishedTrace {
            series: series.number,
            text,
            frequency: series.frequency,
            completes: progress.all_begun && progress.finished == progress.begun,
        });
    }
}

#[cfg(test)]
mod tests;
