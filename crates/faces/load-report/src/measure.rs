//! The load of a server: the utilization of its models, and the process's share of the machine.
//!
//! Rates cover the time since the previous measurement. A model's utilization is the number of its requests in
//! progress, queued ones included, divided by the number that its instances execute concurrently: at 1 all instances
//! are busy, above it requests wait. The number is the average since the previous measurement (by Little's law, from
//! the requests' durations), or the current number if that is greater. The server's utilization is that of its busiest
//! model, since that model's requests wait regardless of the others' load.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, TryLockError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use nereid_core::model_config::ModelConfig;
use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::{MetricRegistry, MetricValue, Server};

/// Maximum number of models with their own metrics in a report: the busiest. More would make the header too long.
const MAX_MODELS: usize = 16;

/// Metrics of TensorRT-LLM's cache, and the label that distinguishes them.
const CACHE: &str = "nv_trt_llm_kv_cache_block_metrics";
const CACHE_LABEL: &str = "kv_cache_block_type";

/// Unit of the times in `/proc/self/stat`, the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// The contents of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub application_utilization: f64,
    pub cpu_utilization: f64,
    pub requests_per_second: f64,
    pub errors_per_second: f64,
    pub named: BTreeMap<String, f64>,
}

/// Measures a server's load.
pub(crate) struct Meter(Mutex<Measurement>);

/// The previous measurement, for comparison.
struct Measurement {
    at: Instant,
    cpu: Duration,
    /// Counters by name and version.
    models: BTreeMap<(String, u64), Counts>,
}

/// A model's counters.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub success: u64,
    pub failures: u64,
    /// The time that all requests took together.
    pub taken: Duration,
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Measurement { at: now, cpu: cpu_time(), models: BTreeMap::new() }))
    }

    /// Measures; `None` while another thread does. `names_models`: whether the report contains models by name.
    pub(crate) fn measure(&self, server: &Server, names_models: bool, now: Instant) -> Option<Load> {
        let mut last = match self.0.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let passed = now.saturating_duration_since(last.at).max(Duration::from_millis(1));
        let cpu = cpu_time();
        let processors = available_parallelism().map_or(1, |count| count.get());
        let mut load = Load {
            cpu_utilization: share(cpu.saturating_sub(last.cpu), passed) / processors as f64,
            ..Load::default()
        };
        let (mut models, mut utilizations) = (BTreeMap::new(), BTreeMap::new());
        for model in server.models().ready() {
            let (statistics, totals) = (model.statistics(), model.statistics().totals());
            let counts = Counts {
                success: totals.success,
                failures: totals.failures.iter().sum(),
                taken: Duration::from_nanos(totals.request_ns),
            };
            let key = (model.name().to_owned(), model.version());
            let before = last.models.get(&key).copied().unwrap_or_default();
            load.requests_per_second +=
                rate(counts.success + counts.failures, before.success + before.failures, passed);
            load.errors_per_second += rate(counts.failures, before.failures, passed);
            if let Some(capacity) = capacity(model.config()) {
                let in_progress = in_progress(counts, before, passed, statistics.in_flight());
                let utilization = in_progress / capacity;
                load.application_utilization = load.application_utilization.max(utilization);
                let busiest = utilizations.entry(format!("{}_utilization", key.0)).or_insert(utilization);
                *busiest = busiest.max(utilization);
            }
            models.insert(key, counts);
        }
        let mut utilizations: Vec<_> = utilizations.into_iter().collect();
        utilizations.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        load.named = utilizations.into_iter().take(if names_models { MAX_MODELS } else { 0 }).collect();
        load.named.extend(cache(&server.options().metrics));
        *last = Measurement { at: now, cpu, models };
        Some(load)
    }
}

/// Triton's metrics of a backend with a key-value cache.
fn cache(registry: &MetricRegistry) -> BTreeMap<String, f64> {
    let families = registry.snapshot();
    let family = families.iter().find(|family| family.name == CACHE);
    let value = |kind: &str| {
        let mut series = family?.series.iter();
        let of_kind =
            |labels: &BTreeMap<_, String>| labels.get(CACHE_LABEL).is_some_and(|label| label == kind);
        match series.find(|(labels, _)| of_kind(labels))? {
            (_, MetricValue::Number(value)) => Some(*value),
            _ => None,
        }
    };
    let mut named = BTreeMap::new();
    if let (Some(used), Some(max), Some(tokens)) = (value("used"), value("max"), value("tokens_per"))
        && max > 0.0
    {
        named.insert("kv_cache_utilization".to_owned(), used / max);
        named.insert("max_token_capacity".to_owned(), max * tokens);
    }
    named
}

/// Number of a model's requests in progress: on average, or now if that is greater.
fn in_progress(counts: Counts, before: Counts, passed: Duration, in_flight: u64) -> f64 {
    share(counts.taken.saturating_sub(before.taken), passed).max(in_flight as f64)
}

fn share(part: Duration, of: Duration) -> f64 {
    part.as_secs_f64() / of.as_secs_f64()
}

fn rate(count: u64, before: u64, passed: Duration) -> f64 {
    count.saturating_sub(before) as f64 / passed.as_secs_f64()
}

/// Number of requests that a model's instances execute concurrently; `None` for an ensemble, whose members count.
fn capacity(config: &ModelConfig) -> Option<f64> {
    if matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        return None;
    }
    let instances = config.instance_group.iter().filter(|group| !group.passive).map(|group| {
        let count = f64::from(group.count.max(1));
        count * group.gpus.len().max(1) as f64
    });
    let batches = match config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(_) | SchedulingChoice::SequenceBatching(_)) => {
            f64::from(config.max_batch_size.max(1))
        }
        _ => 1.0,
    };
    Some(instances.sum::<f64>().max(1.0) * batches)
}

/// The processor time of this process so far.
fn cpu_time() -> Duration {
    fs::read_to_string("/proc/self/stat").ok().and_then(|stat| parse_cpu_time(&stat)).unwrap_or_default()
}

/// The sum of the times in user and kernel mode. See proc_pid_stat(5).
fn parse_cpu_time(stat: &str) -> Option<Duration> {
    // The command's name is in parentheses and may contain any characters.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let ticks: u32 = fields.next()?.parse::<u32>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(TICK * ticks)
}

#[cfg(test)]
mod tests {
    use nereid_core::MetricKind;
    use nereid_testkit::config;

    use super::*;

    #[test]
    fn process_time_includes_user_and_system_mode() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 250 50 1 1";
        for (name, expected) in [("nereid", Some(3)), ("a b) (c", Some(3))] {
            let time = parse_cpu_time(&format!("12 ({name}) {fields}"));
            assert_eq!(time, expected.map(Duration::from_secs), "{name}");
        }
        for wrong in ["", "12 (x", "12 (x) S 1 2", "12 (x) S 1 2 3 4 5 6 7 8 9 10 a b"] {
            assert_eq!(parse_cpu_time(wrong), None, "{wrong}");
        }
        let before = cpu_time();
        let end = Instant::now() + TICK * 5;
        while Instant::now() < end {}
        assert!(cpu_time() > before);
    }

    #[test]
    fn capacity_is_what_instances_execute_at_a_time() {
        for (text, expected) in [
            ("", 1.0),
            ("instance_group { count: 3 kind: KIND_CPU }", 3.0),
            ("instance_group { count: 3 kind: KIND_CPU } instance_group { count: 1 kind: KIND_CPU }", 4.0),
            ("instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }", 4.0),
            ("max_batch_size: 8 instance_group { count: 2 kind: KIND_CPU }", 2.0),
            ("max_batch_size: 8 dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }", 16.0),
            ("dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }", 2.0),
        ] {
            let text = format!("backend: 'scripted' {text}");
            assert_eq!(capacity(&config("m", &text)), Some(expected), "{text}");
        }
    }

    #[test]
    fn an_ensemble_has_no_capacity_of_its_own() {
        let step = "step [ { model_name: 'x' model_version: -1 } ]";
        let ensemble = config("m", &format!("platform: 'ensemble' ensemble_scheduling {{ {step} }}"));
        assert_eq!(capacity(&ensemble), None);
    }

    #[test]
    fn key_value_cache_metrics_are_forwarded() {
        for (values, expected) in [
            (vec![("used", 30.0), ("max", 120.0), ("tokens_per", 64.0)], vec![0.25, 7680.0]),
            (vec![("used", 30.0), ("max", 0.0), ("tokens_per", 64.0)], vec![]),
            (vec![("used", 30.0), ("max", 120.0)], vec![]),
            (vec![], vec![]),
        ] {
            let registry = MetricRegistry::default();
            let family = registry.family(MetricKind::Gauge, CACHE, "blocks").unwrap();
            let metrics: Vec<_> = values
                .iter()
                .map(|(kind, value)| {
                    let labels = [("model".into(), "m".into()), (CACHE_LABEL.into(), (*kind).into())];
                    let metric = family.metric(labels.into(), None).unwrap();
                    metric.set(*value).unwrap();
                    metric
                })
                .collect();
            assert_eq!(cache(&registry).into_values().collect::<Vec<_>>(), expected, "{values:?}");
            drop(metrics);
        }
    }

    #[test]
    fn requests_in_progress_are_the_average_or_current_maximum() {
        let taken = |ms| Counts { taken: Duration::from_millis(ms), ..Counts::default() };
        let second = Duration::from_secs(1);
        for (now, before, passed, in_flight, expected) in [
            (taken(0), taken(0), second, 0, 0.0),
            (taken(2500), taken(500), second, 0, 2.0),
            (taken(2500), taken(500), second * 4, 0, 0.5),
            (taken(2500), taken(500), second, 3, 3.0),
            // A reloaded model counts from zero.
            (taken(100), taken(500), second, 0, 0.0),
        ] {
            assert_eq!(in_progress(now, before, passed, in_flight), expected);
        }
    }
}
