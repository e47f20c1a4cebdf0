//! The options of tracing: the trace settings at startup.
//!
//! `--trace-config` overrides the older, deprecated options.

use std::env;

use clap::{ArgAction, Args};
use nereid_core::TraceLevel;
use nereid_trace::CollectorOptions;
use nereid_trace_settings::{TraceMode, TraceSettings};

/// The options of tracing.
#[derive(Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceOptions {
    /// Trace setting: level (OFF, TIMESTAMPS, TENSORS), rate, count and mode (triton, opentelemetry); for mode triton:
    /// file and log-frequency; for mode opentelemetry: url, resource, bsp_max_queue_size, bsp_schedule_delay and
    /// bsp_max_export_batch_size. May be given several times.
    #[arg(long, value_name = "[MODE,]SETTING=VALUE", value_parser = setting, action = ArgAction::Append)]
    trace_config: Vec<TraceSetting>,

    /// Deprecated: --trace-config=triton,file=FILE.
    #[arg(long, value_name = "FILE")]
    trace_file: Option<String>,

    /// Deprecated: --trace-config=level=LEVEL. May be given several times.
    #[arg(long, value_name = "LEVEL", value_parser = level, action = ArgAction::Append)]
    trace_level: Vec<TraceLevel>,

    /// Deprecated: --trace-config=rate=COUNT.
    #[arg(long, value_name = "COUNT", value_parser = rate)]
    trace_rate: Option<u32>,

    /// Deprecated: --trace-config=count=COUNT.
    #[arg(long, value_name = "COUNT", value_parser = count)]
    trace_count: Option<i32>,

    /// Deprecated: --trace-config=triton,log-frequency=COUNT.
    #[arg(long, value_name = "COUNT", value_parser = rate)]
    trace_log_frequency: Option<u32>,
}

/// One `--trace-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TraceSetting {
    Level(TraceLevel),
    Rate(u32),
    Count(i32),
    Mode(TraceMode),
    File(String),
    LogFrequency(u32),
    /// A setting of the exporter of mode `opentelemetry`.
    Exporter(String, String),
    /// An unknown setting, which Triton ignores.
    Unknown(String),
}

/// Defaults of the exporter of mode `opentelemetry`: the setting, the variable of the environment that sets it, and the
/// value without either.
const EXPORTER: [(&str, &str, &str); 3] = [
    ("bsp_max_queue_size", "OTEL_BSP_MAX_QUEUE_SIZE", "2048"),
    ("bsp_schedule_delay", "OTEL_BSP_SCHEDULE_DELAY", "5000"),
    ("bsp_max_export_batch_size", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512"),
];

/// The variables of the environment that may name a collector, and what is appended to their values. They are
/// OpenTelemetry's own.
const ENDPOINTS: [(&str, &str); 2] =
    [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1/traces")];

/// The collector configured by environment variables.
pub(super) fn collector(variable: impl Fn(&str) -> Option<String>) -> CollectorOptions {
    let default = CollectorOptions::default();
    let endpoint = ENDPOINTS.into_iter().find_map(|(name, path)| {
        let endpoint = variable(name).filter(|endpoint| !endpoint.is_empty())?;
        Some(if path.is_empty() { endpoint } else { format!("{}{path}", endpoint.trim_end_matches('/')) })
    });
    CollectorOptions { url: endpoint.unwrap_or(default.url), ..default }
}

impl TraceOptions {
    /// The initial settings.
    ///
    /// # Errors
    /// An invalid environment variable.
    pub(crate) fn settings(&self) -> Result<TraceSettings, String> {
        self.settings_in(|name| env::var(name).ok())
    }

    fn settings_in(&self, variable: impl Fn(&str) -> Option<String>) -> Result<TraceSettings, String> {
        let default = TraceSettings::default();
        let mut settings = TraceSettings {
            rate: self.trace_rate.unwrap_or(default.rate),
            count: self.trace_count.unwrap_or(default.count),
            log_frequency: self.trace_log_frequency.unwrap_or(default.log_frequency),
            file: self.trace_file.clone().unwrap_or_default(),
            ..default
        };
        let mut levels = self.trace_level.clone();
        let mut exporter = Vec::new();
        for setting in &self.trace_config {
            match setting {
                TraceSetting::Level(level) => levels.push(*level),
                TraceSetting::Rate(rate) => settings.rate = *rate,
                TraceSetting::Count(count) => settings.count = *count,
                TraceSetting::Mode(mode) => settings.mode = *mode,
                TraceSetting::File(file) => settings.file.clone_from(file),
                TraceSetting::LogFrequency(frequency) => settings.log_frequency = *frequency,
                TraceSetting::Exporter(name, value) => exporter.push((name.clone(), value.clone())),
                TraceSetting::Unknown(_) => {}
            }
        }
        // Levels add up, but off is off.
        if !levels.iter().any(|level| level.is_off()) {
            settings.level.timestamps = levels.iter().any(|level| level.timestamps);
            settings.level.tensors = levels.iter().any(|level| level.tensors);
        }
        if settings.mode == TraceMode::OpenTelemetry {
            settings.mode_settings = with_defaults(exporter, variable)?;
        }
        Ok(settings)
    }

    /// Warnings about options that are deprecated or have no effect.
    pub(crate) fn advice(&self) -> Vec<String> {
        let deprecated = [
            (self.trace_file.is_some(), "--trace-file", "triton,file=FILE"),
            (!self.trace_level.is_empty(), "--trace-level", "level=LEVEL"),
            (self.trace_rate.is_some(), "--trace-rate", "rate=COUNT"),
            (self.trace_count.is_some(), "--trace-count", "count=COUNT"),
            (self.trace_log_frequency.is_some(), "--trace-log-frequency", "triton,log-frequency=COUNT"),
        ];
        let deprecated = deprecated
            .into_iter()
            .filter(|(given, ..)| *given)
            .map(|(_, old, new)| format!("{old} has been deprecated: use --trace-config={new}"));
        let unknown = self.trace_config.iter().filter_map(|setting| match setting {
            TraceSetting::Unknown(name) => {
                Some(format!("--trace-config: unknown setting '{name}' is ignored"))
            }
            _ => None,
        });
        deprecated.chain(unknown).collect()
    }
}

/// The exporter's settings, with those that were not given.
fn with_defaults(
    mut given: Vec<(String, String)>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, String> {
    for (name, variable_name, default) in EXPORTER {
        if given.iter().any(|(given, _)| given == name) {
            continue;
        }
        let value = variable(variable_name).unwrap_or_else(|| default.to_owned());
        rate(&value).map_err(|error| format!("the environment's {variable_name}: {error}"))?;
        given.push((name.to_owned(), value));
    }
    Ok(given)
}

/// Parses `SETTING=VALUE`, optionally after `MODE,`.
fn setting(text: &str) -> Result<TraceSetting, String> {
    let (mode, rest) = match text.split_once(',') {
        Some((mode, rest)) => (Some(self::mode(mode)?), rest),
        None => (None, text),
    };
    let (name, value) = match rest.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => (name, value),
        _ => return Err("must be [MODE,]SETTING=VALUE".into()),
    };
    Ok(match (mode, name) {
        (None, "level") => TraceSetting::Level(level(value)?),
        (None, "rate") => TraceSetting::Rate(rate(value)?),
        (None, "count") => TraceSetting::Count(count(value)?),
        (None, "mode") => TraceSetting::Mode(self::mode(value)?),
        (Some(TraceMode::Triton), "file") => TraceSetting::File(value.to_owned()),
        (Some(TraceMode::Triton), "log-frequency") => TraceSetting::LogFrequency(rate(value)?),
        (Some(TraceMode::OpenTelemetry), name) => {
            if EXPORTER.iter().any(|(known, ..)| *known == name) {
                rate(value)?;
            }
            TraceSetting::Exporter(name.to_owned(), value.to_owned())
        }
        (None, name) => TraceSetting::Unknown(name.to_owned()),
        (Some(TraceMode::Triton), name) => TraceSetting::Unknown(format!("triton,{name}")),
    })
}

fn mode(name: &str) -> Result<TraceMode, String> {
    TraceMode::named(name).ok_or_else(|| format!("unknown mode '{name}' (known: triton, opentelemetry)"))
}

/// The levels, with the reference's synonyms.
fn level(name: &str) -> Result<TraceLevel, String> {
    match name.to_ascii_lowercase().as_str() {
        "off" | "false" => Ok(TraceLevel::default()),
        "timestamps" | "on" | "true" | "min" | "max" => Ok(TraceLevel { timestamps: true, tensors: false }),
        "tensors" => Ok(TraceLevel { timestamps: false, tensors: true }),
        _ => Err(format!("unknown level '{name}' (known: OFF, TIMESTAMPS, TENSORS)")),
    }
}

fn rate(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("'{text}' is not an integer from 0 to 4294967295"))
}

fn count(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(count) if count >= -1 => Ok(count),
        _ => Err(format!("'{text}' is not an integer from -1 to 2147483647")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        trace: TraceOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<TraceOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.trace)
    }

    fn settings(arguments: &[&str]) -> TraceSettings {
        parsed(arguments).unwrap().settings_in(|_| None).unwrap()
    }

    fn level_of(arguments: &[&str]) -> (bool, bool) {
        let level = settings(arguments).level;
        (level.timestamps, level.tensors)
    }

    #[test]
    fn trace_config_overrides_deprecated_options() {
        let expected = TraceSettings {
            level: TraceLevel { timestamps: true, tensors: false },
            rate: 500,
            count: 7,
            log_frequency: 3,
            file: "a,b=c.json".into(),
            ..TraceSettings::default()
        };
        let new = [
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=rate=500",
            "--trace-config=count=7",
            "--trace-config=triton,file=a,b=c.json",
            "--trace-config=Triton,log-frequency=3",
        ];
        let old = [
            "--trace-level=min",
            "--trace-rate=500",
            "--trace-count=7",
            "--trace-file=a,b=c.json",
            "--trace-log-frequency=3",
        ];
        assert_eq!(settings(&new), expected);
        assert_eq!(settings(&old), expected);
        let both = ["--trace-rate=1", "--trace-config=rate=2", "--trace-count=-1"];
        assert_eq!((settings(&both).rate, settings(&both).count), (2, -1));
        assert_eq!(settings(&[]), TraceSettings::default());
        assert_eq!(parsed(&new).unwrap().advice().len(), 0);
        assert_eq!(parsed(&old).unwrap().advice().len(), 5);
    }

    #[test]
    fn trace_levels_accumulate_unless_off() {
        assert_eq!(level_of(&["--trace-config=level=on", "--trace-config=level=tensors"]), (true, true));
        assert_eq!(level_of(&["--trace-level=tensors", "--trace-config=level=timestamps"]), (true, true));
        assert_eq!(level_of(&["--trace-config=level=tensors", "--trace-config=level=OFF"]), (false, false));
        assert_eq!(level_of(&["--trace-level=false", "--trace-level=max"]), (false, false));
    }

    #[test]
    fn collector_is_configured_by_options_and_environment() {
        let options = parsed(&[
            "--trace-config=mode=opentelemetry",
            "--trace-config=opentelemetry,url=http://x/v1/traces?a=b",
            "--trace-config=opentelemetry,bsp_schedule_delay=7",
        ])
        .unwrap();
        let variable = |name: &str| (name == "OTEL_BSP_MAX_QUEUE_SIZE").then(|| "9".to_owned());
        let settings = options.settings_in(variable).unwrap();
        assert_eq!(settings.mode, TraceMode::OpenTelemetry);
        let expected = [
            ("url", "http://x/v1/traces?a=b"),
            ("bsp_schedule_delay", "7"),
            ("bsp_max_queue_size", "9"),
            ("bsp_max_export_batch_size", "512"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings.mode_settings, expected);
        let error = options.settings_in(|_| Some("many".into())).unwrap_err();
        assert!(error.contains("OTEL_BSP_MAX_QUEUE_SIZE") && error.contains("'many'"), "{error}");
        // In the other mode neither has an effect.
        let options = parsed(&["--trace-config=opentelemetry,url=x"]).unwrap();
        assert_eq!(options.settings_in(|_| Some("many".into())), Ok(TraceSettings::default()));
    }

    #[test]
    fn environment_names_the_collector() {
        let url = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            collector(variable).url
        };
        assert_eq!(url(&[]), "http://localhost:4318/v1/traces");
        assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a/")]), "http://a/v1/traces");
        let both = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b/c"),
        ];
        assert_eq!(url(&both), "http://b/c");
    }

    #[test]
    fn unknown_trace_setting_is_ignored_with_a_warning() {
        let options = parsed(&["--trace-config=rat=5", "--trace-config=triton,level=OFF"]).unwrap();
        assert_eq!(options.settings_in(|_| None), Ok(TraceSettings::default()));
        let advice = options.advice().join(" ");
        assert!(advice.contains("'rat'") && advice.contains("'triton,level'"), "{advice}");
    }

    #[test]
    fn invalid_values_are_refused() {
        for argument in [
            "--trace-config=",
            "--trace-config=level",
            "--trace-config=level=",
            "--trace-config==OFF",
            "--trace-config=,level=OFF",
            "--trace-config=triton,file",
            "--trace-config=zipkin,url=x",
            "--trace-config=mode=zipkin",
            "--trace-config=level=ALL",
            "--trace-config=rate=-1",
            "--trace-config=rate=1.5",
            "--trace-config=count=-2",
            "--trace-config=triton,log-frequency=x",
            "--trace-config=opentelemetry,bsp_max_queue_size=x",
            "--trace-level=ALL",
            "--trace-rate=-1",
            "--trace-count=-2",
            "--trace-log-frequency=4294967296",
        ] {
            assert!(parsed(&[argument]).is_err(), "{argument}");
        }
    }
}
