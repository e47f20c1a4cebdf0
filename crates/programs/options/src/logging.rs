//! The options of the log.

use clap::{ArgAction, Args};
use nereid_protocol::{LogFormat, LogSettings};

use super::values::boolean;

/// The options of the log.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogOptions {
    /// Verbose messages: 0 or false for none; 1 or true for some, higher levels for more.
    #[arg(long, value_name = "LEVEL", default_value = "0", value_parser = verbose_level)]
    log_verbose: u32,

    /// Log messages of level info.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    log_info: bool,

    /// Log messages of level warning.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    log_warning: bool,

    /// Log messages of level error.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    log_error: bool,

    /// Log each answered request: protocol, target, status, bytes and microseconds. Verbose logging includes these
    /// lines.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    log_requests: bool,

    /// Format of log lines: default, ISO8601 or JSON.
    #[arg(long, value_name = "FORMAT", default_value = "default", value_parser = log_format)]
    log_format: LogFormat,

    /// File to log to instead of standard error. Lines are appended.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    log_file: String,
}

impl LogOptions {
    /// The log settings.
    pub(crate) fn settings(&self) -> LogSettings {
        LogSettings {
            file: self.log_file.clone(),
            info: self.log_info,
            warning: self.log_warning,
            error: self.log_error,
            verbose_level: self.log_verbose,
            format: self.log_format,
            requests: self.log_requests,
        }
    }
}

/// A number within 31 bits, as in Triton, or a boolean.
fn verbose_level(text: &str) -> Result<u32, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(1),
        "false" => Ok(0),
        number => match number.parse() {
            Ok(level) if i32::try_from(level).is_ok() => Ok(level),
            _ => Err(format!("must be an integer from 0 to {}, true or false", i32::MAX)),
        },
    }
}

fn log_format(name: &str) -> Result<LogFormat, String> {
    LogFormat::named(name).ok_or_else(|| LogFormat::unknown(name))
}
