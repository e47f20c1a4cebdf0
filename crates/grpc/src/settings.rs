//! Log settings and trace settings: changes to them, and what they then are.
//!
//! Settings that are not known are passed over, as with the reference. A change that is wrong in one setting changes
//! nothing.

use std::collections::BTreeMap;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{Server, TraceMode, TraceUpdate};
use nereid_protocol::{LogControl, LogFormat, LogUpdate, set_trace_level, set_trace_number};

use crate::proto::log_settings_request::setting_value::ParameterChoice as Given;
use crate::proto::log_settings_response::SettingValue as LogValue;
use crate::proto::log_settings_response::setting_value::ParameterChoice as Told;
use crate::proto::trace_setting_response::SettingValue as TraceValue;
use crate::proto::{LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse};

/// Changes the log settings that are given.
///
/// # Errors
/// Which setting is wrong.
pub(crate) fn log(control: &LogControl, request: LogSettingsRequest) -> Result<LogSettingsResponse> {
    let mut update = LogUpdate::default();
    for (name, value) in request.settings {
        let value = value.parameter_choice;
        match name.as_str() {
            "log_file" => {
                return Err(Error::unsupported(
                    "the log file is given when the server starts and stays as it is",
                ));
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
                    update.format = Some(LogFormat::named(&format).ok_or_else(|| {
                        Error::invalid_arg(format!(
                            "there is no log_format '{format}'; there are 'default' and 'ISO8601'"
                        ))
                    })?);
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
    let told = [
        ("log_file", Told::StringParam(settings.file.clone())),
        ("log_info", Told::BoolParam(settings.info)),
        ("log_warning", Told::BoolParam(settings.warning)),
        ("log_error", Told::BoolParam(settings.error)),
        ("log_verbose_level", Told::Uint32Param(settings.verbose_level)),
        ("log_format", Told::StringParam(settings.format.name().into())),
    ];
    let told = told.map(|(name, value)| (name.to_owned(), LogValue { parameter_choice: Some(value) }));
    Ok(LogSettingsResponse { settings: told.into() })
}

fn boolean(name: &str, value: Option<Given>) -> Result<bool> {
    match value {
        Some(Given::BoolParam(value)) => Ok(value),
        _ => Err(wrong_type(name, "bool_param")),
    }
}

fn wrong_type(name: &str, wanted: &str) -> Error {
    Error::invalid_arg(format!("setting '{name}' has a value of another type than {wanted}"))
}

/// Changes the trace settings that are given, of a model or for all.
///
/// # Errors
/// Which setting is wrong, or why the settings do not go together.
pub(crate) fn trace(server: &Server, request: &TraceSettingRequest) -> Result<TraceSettingResponse> {
    let model = (!request.model_name.is_empty()).then_some(request.model_name.as_str());
    if let Some(model) = model {
        // The reference's code for a model it does not know.
        server.model(model, None).map_err(|error| Error::invalid_arg(error.message().to_owned()))?;
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
                    "setting '{name}' has {} values, but takes one, or none to clear it",
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
    let mut told: BTreeMap<_, _> = settings.mode_settings.into_iter().collect();
    told.extend([
        ("trace_rate".to_owned(), settings.rate.to_string()),
        ("trace_count".to_owned(), settings.count.to_string()),
        ("trace_mode".to_owned(), settings.mode.name().to_owned()),
    ]);
    if settings.mode == TraceMode::Triton {
        told.insert("log_frequency".to_owned(), settings.log_frequency.to_string());
        told.insert("trace_file".to_owned(), settings.file);
    }
    let mut told: BTreeMap<_, _> =
        told.into_iter().map(|(name, text)| (name, TraceValue { value: vec![text] })).collect();
    let level = settings.level.names().into_iter().map(str::to_owned).collect();
    told.insert("trace_level".to_owned(), TraceValue { value: level });
    Ok(TraceSettingResponse { settings: told })
}
