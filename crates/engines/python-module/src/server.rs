//! Calls from models to the server besides inference: loads, readiness, metrics, the log.

use nereid_worker_protocol::side::{
    DROP_METRIC, LOAD, LOG, METRIC, MODEL_READY, NEW_FAMILY, NEW_METRIC, Reply, UNLOAD,
};
use nereid_worker_protocol::{Message, side};
use pyo3::prelude::*;

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
    model: &str,
    config: Option<&str>,
    files: Vec<(String, Vec<u8>)>,
) -> PyResult<()> {
    ask(python, LOAD, |message| {
        message.text(model);
        message.optional_text(config);
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
pub fn unload(python: Python<'_>, model: &str, dependents: bool) -> PyResult<()> {
    ask(python, UNLOAD, |message| {
        message.text(model);
        message.bool(dependents);
        Ok(())
    })
    .map(drop)
}

/// Whether a model would answer requests; -1 for any version.
#[pyfunction]
pub fn model_ready(python: Python<'_>, model: &str, version: i64) -> PyResult<bool> {
    let answered = ask(python, MODEL_READY, |message| {
        message.text(model);
        message.i64(version);
        Ok(())
    });
    match answered? {
        ReplyValue::Bool(ready) => Ok(ready),
        _ => Err(unexpected()),
    }
}

/// Writes a line to the server's log.
#[pyfunction]
pub fn log(python: Python<'_>, message: &str, level: LogLevel) -> PyResult<()> {
    Side::get()?.send(python, LOG, |line| {
        line.u8(level as u8);
        line.text(message);
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
    name: &str,
    description: &str,
    kind: MetricKind,
) -> PyResult<MetricHandle> {
    handle(ask(python, NEW_FAMILY, |message| {
        message.u8(kind as u8);
        message.text(name);
        message.text(description);
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

    fn increment(&self, python: Python<'_>, by: f64) -> PyResult<()> {
        self.operate(python, side::METRIC_INCREMENT, by).map(drop)
    }

    fn set(&self, python: Python<'_>, value: f64) -> PyResult<()> {
        self.operate(python, side::METRIC_SET, value).map(drop)
    }

    fn observe(&self, python: Python<'_>, value: f64) -> PyResult<()> {
        self.operate(python, side::METRIC_OBSERVE, value).map(drop)
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
