//! Makes the store of traces from the settings.

use std::sync::Arc;
use std::time::Duration;

use nereid_trace::{Collector, CollectorOptions, TraceFiles};
use nereid_trace_settings::{TraceMode, TraceSettings, TraceStore};

/// The store for the mode of these settings; `None` if they configure none. `options` configures the collector, except
/// where the settings do.
///
/// # Errors
/// The invalid setting of the mode.
pub(crate) fn store(
    settings: &TraceSettings,
    options: CollectorOptions,
) -> Result<Option<Arc<dyn TraceStore>>, String> {
    Ok(match settings.mode {
        // The file cannot be set later, so settings that trace are refused without one.
        TraceMode::Triton if settings.file.is_empty() => None,
        TraceMode::Triton => Some(Arc::new(TraceFiles::new(&settings.file))),
        TraceMode::OpenTelemetry => {
            let options = collector(settings, options)?;
            let collector = Collector::new(&options).map_err(|error| {
                format!(
                    "{error}; trace setting 'opentelemetry,url' must be an address such as {}",
                    CollectorOptions::default().url
                )
            })?;
            Some(Arc::new(collector))
        }
    })
}

fn collector(settings: &TraceSettings, mut options: CollectorOptions) -> Result<CollectorOptions, String> {
    for (name, value) in &settings.mode_settings {
        match name.as_str() {
            "url" => options.url.clone_from(value),
            "resource" => {
                let (name, value) =
                    value.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
                        format!("trace setting 'opentelemetry,resource={value}': must be NAME=VALUE")
                    })?;
                options.resource.push((name.to_owned(), value.to_owned()));
            }
            "bsp_max_queue_size" => options.max_queue_size = number(name, value)?,
            "bsp_max_export_batch_size" => options.max_export_batch_size = number(name, value)?,
            "bsp_schedule_delay" => {
                options.schedule_delay = Duration::from_millis(number::<u32>(name, value)?.into());
            }
            _ => tracing::warn!("unknown trace setting 'opentelemetry,{name}' is ignored"),
        }
    }
    Ok(options)
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("trace setting 'opentelemetry,{name}={value}': must be a non-negative integer"))
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
    fn collector_receives_the_settings() {
        let given = settings(&[
            ("url", "http://x:1/y"),
            ("resource", "a=b=c"),
            ("resource", "service.name=mine"),
            ("bsp_max_queue_size", "7"),
            ("bsp_schedule_delay", "250"),
            ("bsp_max_export_batch_size", "3"),
            ("other", "passed over"),
        ]);
        let before = CollectorOptions { url: "http://environment".into(), ..CollectorOptions::default() };
        let options = collector(&given, before).unwrap();
        assert_eq!(options.url, "http://x:1/y");
        let resource = options.resource.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let expected = [("service.name", "triton-inference-server"), ("a", "b=c"), ("service.name", "mine")];
        assert_eq!(resource.collect::<Vec<_>>(), expected);
        let rules = (options.max_queue_size, options.max_export_batch_size, options.schedule_delay);
        assert_eq!(rules, (7, 3, Duration::from_millis(250)));
    }

    #[test]
    fn invalid_settings_are_refused() {
        let refused =
            |name, value| store(&settings(&[(name, value)]), CollectorOptions::default()).unwrap_err();
        assert!(refused("url", "ftp://localhost").contains("'ftp://localhost' is not a collector's address"));
        assert!(refused("resource", "name").contains("NAME=VALUE"));
        assert!(refused("bsp_max_queue_size", "-1").contains("non-negative integer"));
    }
}
