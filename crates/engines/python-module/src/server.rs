//! Calls from models to the server besides inference: loads, readiness, metrics, the log.

use nereid_worker_protocol::side::{
    DROP_METRIC, LOAD, LOG, METRIC, MODEL_READY, NEW_FAMILY, NEW_METRIC, Reply, UNLOAD,
};
use nereid_worker_protocol::{Message, side};
use pyo3::prelude::*;

use crate::arguments::{Flag, Float, ServerText};
use crate::constants::{LogLevel, MetricKind, exception};
use crate::side::Side;

/// The server's reply.
enum ReplyValue {
    Done,
    Bool(bool),
    Number(f64),
    Handle(u64),
}

fn ask(
    python: Python<'_>,
    kind: u16,
    build: impl FnOnce(&mut Message<'_>) -> PyResult<()>,
) -> PyResult<ReplyValue> {
    let answer = Side::get()?.ask(python, kind, build)?;
    let reply = answer.reader()?.reply().map_err(|error| exception(error.to_string()))?;
    Ok(match reply {
        Reply::Done | Reply::Nothing => ReplyValue::Done,
        Reply::Bool(value) => ReplyValue::Bool(value),
        Reply::Number(value) => ReplyValue::Number(value),
        Reply::Handle(handle) => ReplyValue::Handle(handle),
        Reply::Failure(failure) => return Err(exception(failure.message)),
        Reply::Response(_) => return Err(unexpected()),
    })
}

fn unexpected() -> PyErr {
    exception("unexpected answer of the server")
}

/// Loads a model, optionally with another configuration and other files.
#[pyfunction]
pub fn load(
    python: Python<'_>,
    model: ServerText,
    config: ServerText,
    files: Vec<(String, Vec<u8>)>,
) -> PyResult<()> {
    ask(python, LOAD, |message| {
        message.text(&model.0);
        message.optional_text(Some(config.0.as_str()).filter(|config| !config.is_empty()));
        message.count(files.len());
        for (path, contents) in &files {
            message.text(path);
            message.bytes(contents);
        }
        Ok(())
    })
    .map(drop)
}

/// Unloads a model.
#[pyfunction]
pub fn unload(python: Python<'_>, model: ServerText, dependents: Flag) -> PyResult<()> {
    ask(python, UNLOAD, |message| {
        message.text(&model.0);
        message.bool(dependents.0);
        Ok(())
    })
    .map(drop)
}

/// Whether a model would answer requests; an empty version for any.
#[pyfunction]
pub fn model_ready(python: Python<'_>, model: ServerText, version: ServerText) -> PyResult<bool> {
    let (ServerText(model), ServerText(version)) = (model, version);
    let number = if version.is_empty() { Some(-1) } else { version_number(&version) };
    let number = number.ok_or_else(|| exception(format!("model '{model}': '{version}' is not a version")))?;
    let answered = ask(python, MODEL_READY, |message| {
        message.text(&model);
        message.i64(number);
        Ok(())
    });
    match answered? {
        ReplyValue::Bool(ready) => Ok(ready),
        _ => Err(unexpected()),
    }
}

/// The number with which a text begins, as in the reference, which accepts what follows; `None` if it is not a version.
fn version_number(text: &str) -> Option<i64> {
    let text =
        text.trim_start_matches(|character: char| character.is_ascii_whitespace() || character == '\u{b}');
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Writes a line to the server's log.
#[pyfunction]
pub fn log(python: Python<'_>, message: ServerText, level: LogLevel) -> PyResult<()> {
    Side::get()?.send(python, LOG, |line| {
        line.u8(level as u8);
        line.text(&message.0);
        Ok(())
    })
}

/// A family of metrics, or a metric, that the server keeps as long as this object lives.
#[pyclass(frozen)]
pub struct MetricHandle(u64);

fn handle(answered: ReplyValue) -> PyResult<MetricHandle> {
    match answered {
        ReplyValue::Handle(handle) => Ok(MetricHandle(handle)),
        _ => Err(unexpected()),
    }
}

/// Creates or finds a family of metrics.
#[pyfunction]
pub fn new_family(
    python: Python<'_>,
    name: ServerText,
    description: ServerText,
    kind: MetricKind,
) -> PyResult<MetricHandle> {
    handle(ask(python, NEW_FAMILY, |message| {
        message.u8(kind as u8);
        message.text(&name.0);
        message.text(&description.0);
        Ok(())
    })?)
}

#[pymethods]
impl MetricHandle {
    /// Creates or finds a metric of this family.
    fn metric(&self, python: Python<'_>, labels: Vec<(String, String)>, buckets: Vec<f64>) -> PyResult<Self> {
        handle(ask(python, NEW_METRIC, |message| {
            message.u64(self.0);
            message.pairs(labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            message.count(buckets.len());
            buckets.iter().for_each(|bound| message.f64(*bound));
            Ok(())
        })?)
    }

    fn value(&self, python: Python<'_>) -> PyResult<f64> {
        match self.operate(python, side::METRIC_VALUE, 0.0)? {
            ReplyValue::Number(value) => Ok(value),
            _ => Err(unexpected()),
        }
    }

    fn increment(&self, python: Python<'_>, by: Float) -> PyResult<()> {
        self.operate(python, side::METRIC_INCREMENT, by.0).map(drop)
    }

    fn set(&self, python: Python<'_>, value: Float) -> PyResult<()> {
        self.operate(python, side::METRIC_SET, value.0).map(drop)
    }

    fn observe(&self, python: Python<'_>, value: Float) -> PyResult<()> {
        self.operate(python, side::METRIC_OBSERVE, value.0).map(drop)
    }
}

impl MetricHandle {
    fn operate(&self, python: Python<'_>, operation: u8, value: f64) -> PyResult<ReplyValue> {
        ask(python, METRIC, |message| {
            message.u64(self.0);
            message.u8(operation);
            message.f64(value);
            Ok(())
        })
    }
}

impl Drop for MetricHandle {
    fn drop(&mut self) {
        Python::attach(|python| {
            let dropped = Side::get().and_then(|side| {
                side.send(python, DROP_METRIC, |message| {
                    message.u64(self.0);
                    Ok(())
                })
            });
            // If the server has ended, so have its metrics.
            drop(dropped);
        });
    }
}
