//! Where traces go: what the options say of it, made into what takes them.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use nereid_core::{TraceMode, TraceSettings, TraceStore};
use nereid_trace::{Collector, CollectorOptions, TraceFiles};

/// The variables of the environment that may say where a collector is, and what is added to what they say. They are
/// OpenTelemetry's own.
const ENDPOINTS: [(&str, &str); 2] =
    [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1/traces")];

/// What takes traces in the mode of these settings; `None` if nothing can.
///
/// # Errors
/// Which setting of the mode is wrong.
pub(crate) fn store(settings: &TraceSettings) -> Result<Option<Arc<dyn TraceStore>>, String> {
    Ok(match settings.mode {
        // Settings that trace are refused as long as there is no file, and there is none later if there is none now.
        TraceMode::Triton if settings.file.is_empty() => None,
        TraceMode::Triton => Some(Arc::new(TraceFiles::new(&settings.file))),
        TraceMode::OpenTelemetry => {
            let options = collector(settings, |name| env::var(name).ok())?;
            let collector = Collector::new(&options).map_err(|error| {
                format!(
                    "{error}; --trace-config=opentelemetry,url= takes one such as {}",
                    CollectorOptions::default().url
                )
            })?;
            Some(Arc::new(collector))
        }
    })
}

fn collector(
    settings: &TraceSettings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<CollectorOptions, String> {
    let mut options = CollectorOptions::default();
    let endpoint = ENDPOINTS.into_iter().find_map(|(name, path)| {
        let endpoint = variable(name).filter(|endpoint| !endpoint.is_empty())?;
        Some(if path.is_empty() { endpoint } else { format!("{}{path}", endpoint.trim_end_matches('/')) })
    });
    options.url = endpoint.unwrap_or(options.url);
    for (name, value) in &settings.mode_settings {
        match name.as_str() {
            "url" => options.url.clone_from(value),
            "resource" => {
                let (name, value) =
                    value.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
                        format!("--trace-config=opentelemetry,resource={value} is wrong: it takes NAME=VALUE")
                    })?;
                options.resource.push((name.to_owned(), value.to_owned()));
            }
            "bsp_max_queue_size" => options.max_queue_size = number(name, value)?,
            "bsp_max_export_batch_size" => options.max_export_batch_size = number(name, value)?,
            "bsp_schedule_delay" => {
                options.schedule_delay = Duration::from_millis(number::<u32>(name, value)?.into());
            }
            _ => tracing::warn!("--trace-config=opentelemetry has no setting '{name}'; it is passed over"),
        }
    }
    Ok(options)
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("--trace-config=opentelemetry,{name}={value} is wrong: it takes a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mode_settings: &[(&str, &str)]) -> TraceSettings {
        let mode_settings = mode_settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        TraceSettings {
            mode: TraceMode::OpenTelemetry,
            mode_settings: mode_settings.collect(),
            ..TraceSettings::default()
        }
    }

    #[test]
    fn the_collector_is_told_what_was_set() {
        let given = settings(&[
            ("url", "http://x:1/y"),
            ("resource", "a=b=c"),
            ("resource", "service.name=mine"),
            ("bsp_max_queue_size", "7"),
            ("bsp_schedule_delay", "250"),
            ("bsp_max_export_batch_size", "3"),
            ("other", "passed over"),
        ]);
        let options = collector(&given, |_| Some("http://environment".into())).unwrap();
        assert_eq!(options.url, "http://x:1/y");
        let resource = options.resource.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let expected = [("service.name", "triton-inference-server"), ("a", "b=c"), ("service.name", "mine")];
        assert_eq!(resource.collect::<Vec<_>>(), expected);
        let rules = (options.max_queue_size, options.max_export_batch_size, options.schedule_delay);
        assert_eq!(rules, (7, 3, Duration::from_millis(250)));
    }

    #[test]
    fn the_environment_says_where_the_collector_is_if_nothing_else_does() {
        let url = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            collector(&settings(&[]), variable).unwrap().url
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
    fn what_is_wrong_is_refused() {
        let refused = |name, value| store(&settings(&[(name, value)])).unwrap_err();
        assert!(refused("url", "localhost").contains("'localhost' is no address"));
        assert!(refused("resource", "name").contains("NAME=VALUE"));
        assert!(refused("bsp_max_queue_size", "-1").contains("whole number"));
    }
}
