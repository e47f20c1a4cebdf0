//! The options of metrics: where they are served, and which.

use std::time::Duration;

use super::values::{boolean, int, port};
use clap::{ArgAction, Args};
use nereid_assembly::{Endpoint, Metrics};
use nereid_core::LatencyOptions;
use nereid_metrics::MetricsOptions as ExpositionOptions;
use nereid_net::listener::{Address, Host};

/// The options of metrics.
#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics")]
pub(crate) struct MetricsOptions {
    /// Serve metrics.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub allow_metrics: bool,

    /// Include the machine's processors and memory.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    allow_cpu_metrics: bool,

    /// Include the machine's GPUs, if it has any.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    allow_gpu_metrics: bool,

    /// Address or host name to serve metrics on, or a Unix socket as for --http-address. Default: the value of
    /// --http-address, or 127.0.0.1 if that is a Unix socket.
    #[arg(long, value_name = "ADDRESS", value_parser = str::parse::<Host>)]
    metrics_address: Option<Host>,

    /// Port to serve metrics on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8002, value_parser = port())]
    metrics_port: u16,

    /// Milliseconds between two samples of the machine's metrics.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000, value_parser = int::<u64>())]
    metrics_interval_ms: u64,

    /// Setting of the latency metrics: counter_latencies (default true), histogram_latencies and summary_latencies
    /// (default false), and summary_quantiles, a comma-separated list of QUANTILE:ERROR. Quantiles are accurate to 1 %
    /// of their value, for any ERROR. load_durations (default true) exposes how long models took to load. May be given
    /// several times.
    #[arg(long, value_name = "SETTING=VALUE", value_parser = setting, action = ArgAction::Append)]
    metrics_config: Vec<MetricsSetting>,
}

/// One `--metrics-config`.
#[derive(Clone, Debug, PartialEq)]
enum MetricsSetting {
    CounterLatencies(bool),
    HistogramLatencies(bool),
    SummaryLatencies(bool),
    SummaryQuantiles(Vec<f64>),
    LoadDurations(bool),
    /// An unknown setting, which Triton ignores.
    Unknown(String),
}

impl MetricsOptions {
    /// Address of the metrics face; by default the host of HTTP.
    pub(crate) fn address(&self, http_host: &Host) -> Address {
        self.metrics_address.as_ref().unwrap_or(http_host).at(self.metrics_port, false)
    }

    /// The metrics face, if metrics are served.
    pub(crate) fn face(&self, http_host: &Host) -> Option<Metrics> {
        self.allow_metrics
            .then(|| Metrics { endpoint: Endpoint { address: self.address(http_host), tls: None } })
    }

    /// Which metrics are exposed.
    pub(crate) fn exposed(&self) -> ExpositionOptions {
        let mut options = ExpositionOptions {
            gpu: self.allow_metrics && self.allow_gpu_metrics,
            cpu: self.allow_metrics && self.allow_cpu_metrics,
            interval: Duration::from_millis(self.metrics_interval_ms),
            ..ExpositionOptions::default()
        };
        for setting in &self.metrics_config {
            match setting {
                MetricsSetting::CounterLatencies(wanted) => options.counter_latencies = *wanted,
                MetricsSetting::LoadDurations(wanted) => options.load_durations = *wanted,
                MetricsSetting::SummaryQuantiles(quantiles) => options.quantiles.clone_from(quantiles),
                _ => {}
            }
        }
        options
    }

    /// Which distributions of latencies the server keeps.
    pub(crate) fn latencies(&self) -> LatencyOptions {
        let mut options = LatencyOptions::default();
        for setting in self.metrics_config.iter().filter(|_| self.allow_metrics) {
            match setting {
                MetricsSetting::HistogramLatencies(wanted) => options.histograms = *wanted,
                MetricsSetting::SummaryLatencies(wanted) => options.summaries = *wanted,
                _ => {}
            }
        }
        options
    }

    /// Settings that have no effect.
    pub(crate) fn advice(&self) -> impl Iterator<Item = String> {
        let settings = self.metrics_config.iter().filter(|_| self.allow_metrics);
        settings.filter_map(|setting| match setting {
            MetricsSetting::Unknown(name) => {
                Some(format!("--metrics-config: unknown setting '{name}' is ignored"))
            }
            _ => None,
        })
    }
}

fn setting(text: &str) -> Result<MetricsSetting, String> {
    let form = || "must be SETTING=VALUE".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(form)?;
    if name.is_empty() || value.is_empty() || name.contains(',') {
        return Err(form());
    }
    let switch = || match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("{name} must be true or false, not '{value}'")),
    };
    match name {
        "counter_latencies" => switch().map(MetricsSetting::CounterLatencies),
        "histogram_latencies" => switch().map(MetricsSetting::HistogramLatencies),
        "summary_latencies" => switch().map(MetricsSetting::SummaryLatencies),
        "load_durations" => switch().map(MetricsSetting::LoadDurations),
        "summary_quantiles" => quantiles(value).map(MetricsSetting::SummaryQuantiles),
        _ => Ok(MetricsSetting::Unknown(name.to_owned())),
    }
}

/// Parses `QUANTILE:ERROR,...`. The errors are validated and ignored: they would bound the rank of a quantile, whereas
/// summaries here bound the error of its value.
fn quantiles(text: &str) -> Result<Vec<f64>, String> {
    let quantile = |pair: &str| {
        let (quantile, error) = pair.split_once(':')?;
        let share = |text: &str| text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
        share(error)?;
        share(quantile)
    };
    let wrong = |pair| format!("'{pair}' is not QUANTILE:ERROR, two numbers from 0 to 1 as in 0.99:0.001");
    let mut quantiles = Vec::new();
    for pair in text.split(',') {
        let quantile = quantile(pair).ok_or_else(|| wrong(pair))?;
        if quantiles.contains(&quantile) {
            return Err(format!("quantile {quantile} is given twice"));
        }
        quantiles.push(quantile);
    }
    Ok(quantiles)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        metrics: MetricsOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<MetricsOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.metrics)
    }

    #[test]
    fn metrics_address_defaults_to_the_http_address() {
        let address = |arguments: &[&str]| parsed(arguments).unwrap().address(&Host::Name("::1".into()));
        assert_eq!(address(&[]), Address::tcp("::1", 8002));
        let elsewhere = address(&["--metrics-address=127.0.0.1", "--metrics-port=9"]);
        assert_eq!(elsewhere, Address::tcp("127.0.0.1", 9));
        assert_eq!(address(&["--metrics-address=unix:m"]), "unix:m".parse::<Host>().unwrap().at(0, false));
    }

    #[test]
    fn defaults_match_the_face() {
        let default = ExpositionOptions { gpu: true, ..ExpositionOptions::default() };
        assert_eq!(parsed(&[]).unwrap().exposed(), default);
    }

    #[test]
    fn metrics_can_be_left_out() {
        assert!(parsed(&[]).unwrap().exposed().gpu);
        assert!(!parsed(&["--allow-gpu-metrics=false"]).unwrap().exposed().gpu);
        let load_durations = |setting: &str| parsed(&[setting]).unwrap().exposed().load_durations;
        assert!(load_durations("--metrics-config=load_durations=true"));
        assert!(!load_durations("--metrics-config=load_durations=false"));
        assert!(!parsed(&["--allow-cpu-metrics=false"]).unwrap().exposed().cpu);
        assert!(!parsed(&["--allow-metrics=0"]).unwrap().exposed().cpu);
        assert!(!parsed(&["--metrics-config=counter_latencies=false"]).unwrap().exposed().counter_latencies);
        let last = ["--metrics-config=counter_latencies=false", "--metrics-config=counter_latencies=true"];
        assert!(parsed(&last).unwrap().exposed().counter_latencies);
        let interval = parsed(&["--metrics-interval-ms=50"]).unwrap().exposed().interval;
        assert_eq!(interval, Duration::from_millis(50));
    }

    #[test]
    fn distributions_are_kept_only_by_option() {
        assert_eq!(parsed(&[]).unwrap().latencies(), LatencyOptions::default());
        let all = [
            "--metrics-config=histogram_latencies=true",
            "--metrics-config=summary_latencies=true",
            "--metrics-config=summary_quantiles=0.5:0.05, 0.999:0.001",
        ];
        let options = parsed(&all).unwrap();
        assert_eq!(options.latencies(), LatencyOptions { histograms: true, summaries: true });
        assert_eq!(options.exposed().quantiles, [0.5, 0.999]);
        let off = parsed(&[all.as_slice(), &["--allow-metrics=false"]].concat()).unwrap();
        assert_eq!(off.latencies(), LatencyOptions::default());
    }

    #[test]
    fn unknown_settings_are_reported() {
        let options = parsed(&["--metrics-config=colour=blue", "--metrics-config=counter_latencies=true"]);
        let advice: Vec<_> = options.unwrap().advice().collect();
        assert!(matches!(advice.as_slice(), [only] if only.contains("'colour'")), "{advice:?}");
    }

    #[test]
    fn invalid_values_are_refused() {
        for argument in [
            "--metrics-port=70000",
            "--metrics-port=-1",
            "--metrics-interval-ms=-1",
            "--metrics-interval-ms=soon",
            "--allow-metrics=perhaps",
            "--allow-cpu-metrics=2",
            "--allow-gpu-metrics=2",
            "--metrics-config=counter_latencies",
            "--metrics-config==true",
            "--metrics-config=counter_latencies=",
            "--metrics-config=name,counter_latencies=true",
            "--metrics-config=counter_latencies=yes",
            "--metrics-config=histogram_latencies=1",
            "--metrics-config=summary_latencies=on",
            "--metrics-config=summary_quantiles=0.5",
            "--metrics-config=summary_quantiles=1.5:0.1",
            "--metrics-config=summary_quantiles=0.5:x",
            "--metrics-config=summary_quantiles=0.5:0.1,",
            "--metrics-config=summary_quantiles=nan:0.1",
            "--metrics-config=summary_quantiles=0.5:0.1,0.5:0.2",
        ] {
            assert!(parsed(&[argument]).is_err(), "{argument}");
        }
    }
}
