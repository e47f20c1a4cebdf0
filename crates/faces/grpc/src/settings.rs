//! Log settings and trace settings, and changes to them.
//!
//! Unknown settings are ignored, as in the reference. A request with an invalid setting changes nothing.

use std::collections::BTreeMap;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{Scope, ScopedName, Server};
use nereid_protocol::{
    LogControl, LogFormat, LogUpdate, LogValue, TraceDocument, as_invalid_arg, set_trace_level,
    set_trace_number,
};
use nereid_trace_settings::TraceUpdate;

use crate::proto::log_settings_request::setting_value::ParameterChoice as Given;
use crate::proto::log_settings_response::SettingValue as WireValue;
use crate::proto::log_settings_response::setting_value::ParameterChoice as Written;
use crate::proto::trace_setting_response::SettingValue as TraceValue;
use crate::proto::{LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse};

/// Changes the log settings that the request lists.
///
/// # Errors
/// Which setting is wrong.
pub(crate) fn log(control: &LogControl, request: LogSettingsRequest) -> Result<LogSettingsResponse> {
    let mut update = LogUpdate::default();
    for (name, value) in request.settings {
        let value = value.parameter_choice;
        match name.as_str() {
            "log_file" => {
                return Err(LogUpdate::file_error());
            }
            "log_info" => update.info = Some(boolean(&name, value)?),
            "log_warning" => update.warning = Some(boolean(&name, value)?),
            "log_error" => update.error = Some(boolean(&name, value)?),
            "log_verbose_level" => match value {
                Some(Given::Uint32Param(level)) => {
                    update.verbose_level = Some(LogUpdate::level(level.into())?)
                }
                _ => return Err(wrong_type(&name, "uint32_param")),
            },
            "log_format" => match value {
                Some(Given::StringParam(format)) => {
                    let named = LogFormat::named(&format);
                    update.format =
                        Some(named.ok_or_else(|| Error::invalid_arg(LogFormat::unknown(&format)))?);
                }
                _ => return Err(wrong_type(&name, "string_param")),
            },
            _ => {}
        }
    }
    if update != LogUpdate::default() {
        control.update(update);
    }
    let settings = control.settings();
    let wire = |value| match value {
        LogValue::Text(text) => Written::StringParam(text.to_owned()),
        LogValue::Flag(flag) => Written::BoolParam(flag),
        LogValue::Count(count) => Written::Uint32Param(count),
    };
    let values = settings.values();
    let settings =
        values.map(|(name, value)| (name.to_owned(), WireValue { parameter_choice: Some(wire(value)) }));
    Ok(LogSettingsResponse { settings: settings.into() })
}

fn boolean(name: &str, value: Option<Given>) -> Result<bool> {
    match value {
        Some(Given::BoolParam(value)) => Ok(value),
        _ => Err(wrong_type(name, "bool_param")),
    }
}

fn wrong_type(name: &str, wanted: &str) -> Error {
    Error::invalid_arg(format!("setting '{name}' has the wrong type; expected {wanted}"))
}

/// Changes the trace settings that the request lists, of one model or of all.
///
/// # Errors
/// Which setting is wrong, or why the settings do not go together.
pub(crate) fn trace(
    server: &Server,
    request: &TraceSettingRequest,
    scope: &Scope,
) -> Result<TraceSettingResponse> {
    let model = (!request.model_name.is_empty()).then_some(request.model_name.as_str());
    if let Some(model) = model {
        // The reference's code for unknown models.
        server.model(ScopedName::new(model, scope), None).map_err(as_invalid_arg)?;
    }
    let mut update = TraceUpdate::default();
    for (name, value) in &request.settings {
        let texts: Vec<_> = value.value.iter().map(String::as_str).collect();
        match (name.as_str(), texts.as_slice()) {
            ("trace_level", []) => set_trace_level(&mut update, None)?,
            ("trace_level", names) => set_trace_level(&mut update, Some(names))?,
            (name, []) => set_trace_number(&mut update, name, None)?,
            (name, [text]) => set_trace_number(&mut update, name, Some(text))?,
            ("trace_rate" | "trace_count" | "log_frequency" | "trace_file", several) => {
                return Err(Error::invalid_arg(format!(
                    "setting '{name}' has {} values; expected one, or none to clear it",
                    several.len()
                )));
            }
            _ => {}
        }
    }
    let settings = if update == TraceUpdate::default() {
        server.trace().settings(model)
    } else {
        server.trace().update(model, &update)?
    };
    let TraceDocument { level, values } = settings.into();
    let mut settings: BTreeMap<_, _> =
        values.into_iter().map(|(name, text)| (name, TraceValue { value: vec![text] })).collect();
    let level = level.into_iter().map(str::to_owned).collect();
    settings.insert("trace_level".to_owned(), TraceValue { value: level });
    Ok(TraceSettingResponse { settings })
}
