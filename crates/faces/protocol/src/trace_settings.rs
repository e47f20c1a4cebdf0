//! Trace settings in the form that clients send: names and texts.

use std::collections::BTreeMap;
use std::str::FromStr;

use nereid_backend_api::{Error, Result, TraceLevel};
use nereid_trace_settings::{Change, TraceMode, TraceSettings, TraceUpdate};

/// Sets or clears the trace level, by the names of its parts. Unknown names are ignored, as in the reference.
///
/// # Errors
/// `InvalidArg` if `OFF` is combined with other names.
pub fn set_trace_level(update: &mut TraceUpdate, names: Option<&[&str]>) -> Result<()> {
    update.level = match names {
        None => Change::Clear,
        Some(names) => TraceLevel::named(names)?.map_or(Change::Keep, Change::Set),
    };
    Ok(())
}

/// Sets a numeric trace setting, or clears it if `text` is `None`. Unknown settings are ignored, as in the reference.
///
/// # Errors
/// `InvalidArg` if `text` is not a number in range, `Unsupported` for `trace_file`, which is fixed at startup.
pub fn set_trace_number(update: &mut TraceUpdate, setting: &str, text: Option<&str>) -> Result<()> {
    match setting {
        "trace_rate" => update.rate = number(setting, text, "a non-negative 32-bit integer")?,
        "log_frequency" => update.log_frequency = number(setting, text, "a non-negative 32-bit integer")?,
        "trace_count" => {
            const EXPECTED: &str = "a 32-bit integer of at least -1";
            update.count = number(setting, text, EXPECTED)?;
            if let Change::Set(count) = update.count
                && count < -1
            {
                return Err(Error::invalid_arg(format!("{setting} is {count}; expected {EXPECTED}")));
            }
        }
        "trace_file" => {
            let message = "trace file location can not be updated through network protocol: trace_file is fixed when the \
                           server starts";
            return Err(Error::unsupported(message));
        }
        _ => {}
    }
    Ok(())
}

/// Trace settings as clients see them: everything is text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceDocument {
    /// `trace_level`: the names of what is traced.
    pub level: Vec<&'static str>,
    /// The other settings, by name.
    pub values: BTreeMap<String, String>,
}

impl From<TraceSettings> for TraceDocument {
    fn from(settings: TraceSettings) -> Self {
        let mut values: BTreeMap<_, _> = settings.mode_settings.into_iter().collect();
        let mut set = |name: &str, value: String| values.insert(name.to_owned(), value);
        set("trace_rate", settings.rate.to_string());
        set("trace_count", settings.count.to_string());
        set("trace_mode", settings.mode.name().to_owned());
        // These settings apply only in this mode.
        if settings.mode == TraceMode::Triton {
            set("log_frequency", settings.log_frequency.to_string());
            set("trace_file", settings.file);
        }
        Self { level: settings.level.names(), values }
    }
}

fn number<T: FromStr>(setting: &str, text: Option<&str>, expected: &str) -> Result<Change<T>> {
    let Some(text) = text else { return Ok(Change::Clear) };
    text.trim()
        .parse()
        .map(Change::Set)
        .map_err(|_| Error::invalid_arg(format!("{setting} is '{text}'; expected {expected}")))
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::ErrorCode;

    use super::*;

    #[test]
    fn numbers_are_set_and_cleared_and_anything_else_is_refused() {
        let mut update = TraceUpdate::default();
        set_trace_number(&mut update, "trace_rate", Some("4294967295")).unwrap();
        set_trace_number(&mut update, "trace_count", Some(" -1 ")).unwrap();
        set_trace_number(&mut update, "log_frequency", None).unwrap();
        set_trace_number(&mut update, "another", Some("x")).unwrap();
        assert_eq!(update.rate, Change::Set(u32::MAX));
        assert_eq!(update.count, Change::Set(-1));
        assert_eq!(update.log_frequency, Change::Clear);
        for (setting, text) in [
            ("trace_rate", "-1"),
            ("trace_rate", "4294967296"),
            ("trace_rate", "12abc"),
            ("trace_rate", ""),
            ("trace_count", "-2"),
            ("log_frequency", "1.0"),
        ] {
            let error = set_trace_number(&mut update, setting, Some(text)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArg, "{setting} {text}");
        }
        assert_eq!(
            set_trace_number(&mut update, "trace_file", None).unwrap_err().code(),
            ErrorCode::Unsupported
        );
    }
}
