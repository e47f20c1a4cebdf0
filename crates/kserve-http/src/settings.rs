//! Log settings and trace settings: what they are, and changes to them.
//!
//! A body that is JSON but no object asks for nothing, and members that are not known are passed over, as with the
//! reference. A change that is wrong in one member changes nothing.

use std::collections::BTreeMap;

use hyper::StatusCode;
use nereid_core::backend_api::{Error, Result};
use nereid_core::{TraceMode, TraceSettings, TraceUpdate};
use nereid_http_transport::RequestBody;
use nereid_http_transport::{Reply, reply};
use nereid_protocol::{LogFormat, LogUpdate, set_trace_level, set_trace_number};
use serde::Serialize;
use serde_json::Value;

use crate::control::Members;
use crate::routes::Call;

#[derive(Serialize)]
struct Logging<'a> {
    log_file: &'a str,
    log_info: bool,
    log_warning: bool,
    log_error: bool,
    log_verbose_level: u32,
    log_format: &'static str,
}

/// The log settings.
pub(crate) fn logging(call: &Call<'_>) -> Reply {
    let settings = call.face.options.log.settings();
    let logging = Logging {
        log_file: &settings.file,
        log_info: settings.info,
        log_warning: settings.warning,
        log_error: settings.error,
        log_verbose_level: settings.verbose_level,
        log_format: settings.format.name(),
    };
    reply::json(StatusCode::OK, &logging)
}

/// Changes the log settings, and answers with what they then are.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn set_logging(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let members = Members::read(call.face, body)?;
    if members.value("log_file").is_some_and(|file| !file.is_null()) {
        return Err(Error::unsupported("the log file is given when the server starts and stays as it is"));
    }
    let update = LogUpdate {
        info: members.boolean("log_info")?,
        warning: members.boolean("log_warning")?,
        error: members.boolean("log_error")?,
        verbose_level: members.count("log_verbose_level")?.map(LogUpdate::level).transpose()?,
        format: match members.text("log_format")? {
            None => None,
            Some(name) => Some(LogFormat::named(name).ok_or_else(|| {
                // The reference's code for it.
                Error::unavailable(format!(
                    "there is no log_format '{name}'; there are 'default' and 'ISO8601'"
                ))
            })?),
        },
    };
    call.face.options.log.update(update);
    Ok(logging(call))
}

#[derive(Serialize)]
struct Trace {
    trace_level: Vec<&'static str>,
    trace_rate: String,
    trace_count: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_frequency: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_file: Option<String>,
    trace_mode: &'static str,
    #[serde(flatten)]
    mode_settings: BTreeMap<String, String>,
}

/// The trace settings of the model that the path names, or those for all.
///
/// # Errors
/// `InvalidArg` if there is no such model.
pub(crate) fn trace(call: &Call<'_>) -> Result<Reply> {
    let model = traced_model(call)?;
    Ok(trace_reply(call.face.server.trace().settings(model)))
}

/// Changes the trace settings, and answers with what they then are.
///
/// # Errors
/// Which member is wrong, or why the settings do not go together.
pub(crate) fn set_trace(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let model = traced_model(call)?;
    let members = Members::read(call.face, body)?;
    let mut update = TraceUpdate::default();
    if let Some(level) = members.value("trace_level") {
        set_trace_level(&mut update, level_names(level)?.as_deref())?;
    }
    for setting in ["trace_file", "trace_rate", "trace_count", "log_frequency"] {
        let Some(value) = members.value(setting) else { continue };
        if !value.is_string() && !value.is_null() && setting != "trace_file" {
            return Err(Error::internal(format!("{setting} is not a string that holds a number")));
        }
        set_trace_number(&mut update, setting, value.as_str())?;
    }
    Ok(trace_reply(call.face.server.trace().update(model, &update)?))
}

/// The model that the path names.
fn traced_model<'c>(call: &'c Call<'_>) -> Result<Option<&'c str>> {
    if call.target.model.is_empty() {
        return Ok(None);
    }
    // The reference answers 400 here, also for a model it does not know.
    let model = call.face.server.model(&call.target.model, None);
    model.map_err(|error| Error::invalid_arg(error.message().to_owned()))?;
    Ok(Some(&call.target.model))
}

/// The names in `trace_level`; `None` for `null`.
fn level_names(value: &Value) -> Result<Option<Vec<&str>>> {
    match value {
        Value::Null => Ok(None),
        Value::Array(names) => match names.iter().map(Value::as_str).collect() {
            Some(names) => Ok(Some(names)),
            None => Err(Error::internal("an element of trace_level is not a string")),
        },
        _ => Err(Error::internal("trace_level is not an array")),
    }
}

fn trace_reply(settings: TraceSettings) -> Reply {
    let into_file = settings.mode == TraceMode::Triton;
    let trace = Trace {
        trace_level: settings.level.names(),
        trace_rate: settings.rate.to_string(),
        trace_count: settings.count.to_string(),
        log_frequency: into_file.then(|| settings.log_frequency.to_string()),
        trace_file: into_file.then_some(settings.file),
        trace_mode: settings.mode.name(),
        mode_settings: settings.mode_settings.into_iter().collect(),
    };
    reply::json(StatusCode::OK, &trace)
}

#[cfg(test)]
mod tests;
