//! Log settings and trace settings, and changes to them.
//!
//! A JSON body that is not an object changes nothing, and unknown members are ignored, as in the reference. A request
//! with an invalid member changes nothing.

use std::collections::BTreeMap;

use hyper::StatusCode;
use nereid_core::backend_api::{Error, Result};
use nereid_http::RequestBody;
use nereid_http::{Reply, reply};
use nereid_protocol::{
    LogFormat, LogUpdate, TraceDocument, as_invalid_arg, set_trace_level, set_trace_number,
};
use nereid_trace_settings::{TraceSettings, TraceUpdate};
use serde::Serialize;
use serde_json::Value;

use crate::call::Call;
use crate::control::Members;

/// The log settings.
pub(crate) fn logging(call: &Call<'_>) -> Reply {
    let settings = call.face.options.log.settings();
    reply::json(StatusCode::OK, &BTreeMap::from(settings.values()))
}

/// Changes the log settings, and replies with the new ones.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn set_logging(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let members = Members::read(call.face, body)?;
    if members.value("log_file").is_some_and(|file| !file.is_null()) {
        return Err(LogUpdate::file_error());
    }
    let update = LogUpdate {
        info: members.boolean("log_info")?,
        warning: members.boolean("log_warning")?,
        error: members.boolean("log_error")?,
        verbose_level: members.count("log_verbose_level")?.map(LogUpdate::level).transpose()?,
        format: match members.text("log_format")? {
            None => None,
            // The reference's code for it.
            Some(name) => {
                Some(LogFormat::named(name).ok_or_else(|| Error::unavailable(LogFormat::unknown(name)))?)
            }
        },
    };
    call.face.options.log.update(update);
    Ok(logging(call))
}

#[derive(Serialize)]
struct Trace {
    trace_level: Vec<&'static str>,
    #[serde(flatten)]
    values: BTreeMap<String, String>,
}

/// The trace settings of the model that the path names, or those for all.
///
/// # Errors
/// `InvalidArg` if the model is unknown.
pub(crate) fn trace(call: &Call<'_>) -> Result<Reply> {
    let model = traced_model(call)?;
    Ok(trace_reply(call.face.server.trace().settings(model)))
}

/// Changes the trace settings, and replies with the new ones.
///
/// # Errors
/// Which member is wrong, or why the settings are inconsistent.
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
            return Err(Error::internal(format!("{setting} is not a string with a number")));
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
    // The reference's code for unknown models.
    let model = call.face.server.model(call.model(), None);
    model.map_err(as_invalid_arg)?;
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
    let TraceDocument { level, values } = settings.into();
    reply::json(StatusCode::OK, &Trace { trace_level: level, values })
}

#[cfg(test)]
mod tests;
