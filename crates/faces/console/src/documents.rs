//! The documents of the console's API, and the queries that select them.

mod live;
mod now;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use nereid_core::backend_api::{Error, Result};
use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::model_config::{backend_name, platform_name};
use nereid_core::{
    FetchStatus, Latencies, LatencyPhase, LatencySummary, Model, ModelControl, ModelId, ModelMemory,
    ModelStatus, Server,
};
use nereid_http::decode;
use nereid_protocol::documents::MemoryDocument;
use nereid_protocol::{LogControl, LogLine};
use serde::Serialize;

use crate::history::{Activity, INTERVAL, ModelSample};
use crate::sampling::{Sampling, unix_ms};

pub(crate) use self::live::{ModelQuery, SequencesDocument, states};
pub(crate) use self::now::NowDocument;
pub(crate) use self::trace::TraceDocument;

/// The server as a whole.
#[derive(Serialize)]
pub(crate) struct ServerDocument<'s> {
    name: &'s str,
    version: &'s str,
    /// Milliseconds since the Unix epoch.
    started: u64,
    now: u64,
    /// Whether clients load and unload models, and what does otherwise.
    model_control: &'static str,
    stopping: bool,
    ready: bool,
}

pub(crate) fn server<'s>(server: &'s Server, sampling: &Sampling) -> ServerDocument<'s> {
    let options = server.options();
    ServerDocument {
        name: &options.name,
        version: &options.version,
        started: sampling.started_ms(),
        now: unix_ms(),
        model_control: match options.model_control {
            ModelControl::None => "none",
            ModelControl::Explicit => "explicit",
            ModelControl::Poll => "poll",
            ModelControl::OnDemand => "on-demand",
        },
        stopping: server.is_stopping(),
        ready: server.is_ready(),
    }
}

/// The models, and the fetches in progress.
#[derive(Serialize)]
pub(crate) struct ModelsDocument {
    models: Vec<ModelRow>,
    fetches: Vec<Fetch>,
}

/// A version of a model, or a model without any.
#[derive(Default, Serialize)]
struct ModelRow {
    name: String,
    namespace: String,
    version: Option<String>,
    /// `None` for a model that was never loaded.
    state: Option<&'static str>,
    reason: Option<String>,
    /// The part of the version in a release, and the reason.
    release: Option<String>,
    /// The memory that it takes, or would take if it were loaded.
    takes: Option<MemoryDocument>,
    #[serde(flatten)]
    loaded: Option<Loaded>,
}

/// Properties of a version that is ready.
#[derive(Serialize)]
struct Loaded {
    backend: String,
    platform: String,
    /// Name and release of the library that executes it, if there is one.
    engine: Option<String>,
    instances: Vec<Instances>,
    /// Processes apart from the server's.
    processes: usize,
    max_batch_size: i32,
    decoupled: bool,
    sequences: bool,
    ensemble: bool,
    /// Whether the model has a release.
    released: bool,
    cached: bool,
    load_seconds: f64,
    memory: Vec<Memory>,
}

#[derive(Serialize)]
struct Instances {
    kind: &'static str,
    count: i32,
    gpus: Vec<i32>,
}

#[derive(Serialize)]
struct Memory {
    kind: &'static str,
    device: i64,
    bytes: u64,
}

/// A fetch in progress.
#[derive(Serialize)]
struct Fetch {
    name: String,
    fetched: u64,
    /// As far as known.
    total: u64,
    seconds: f64,
}

/// The models that the caller may see.
///
/// # Errors
/// The repositories cannot be read.
pub(crate) async fn models(server: &Server, may_see: impl Fn(&ModelId) -> bool) -> Result<ModelsDocument> {
    let index = server.index().await?;
    let visible: Vec<_> = index.into_iter().filter(|(id, _)| may_see(id)).collect();
    let memory = server.memory(&visible);
    let visible = visible.into_iter().zip(memory);
    let fetches = server.fetches();
    let fetches = fetches.iter().filter(|fetch| may_see(&fetch.id));
    Ok(ModelsDocument {
        models: visible.map(|((id, status), memory)| row(server, id, status, memory)).collect(),
        fetches: fetches.map(Fetch::from).collect(),
    })
}

impl From<&FetchStatus> for Fetch {
    fn from(fetch: &FetchStatus) -> Self {
        Self {
            name: fetch.id.name.clone(),
            fetched: fetch.fetched,
            total: fetch.total,
            seconds: fetch.elapsed.as_secs_f64(),
        }
    }
}

fn row(
    server: &Server,
    ModelId { name, namespace }: ModelId,
    status: Option<ModelStatus>,
    memory: Option<ModelMemory>,
) -> ModelRow {
    let takes = memory.map(MemoryDocument::from);
    let Some(status) = status else { return ModelRow { name, namespace, takes, ..ModelRow::default() } };
    // The index has one text for both.
    let served = status.state.model().filter(|_| status.failed_reload.is_none());
    let release = served.and_then(|model| model.release()?.note(model.version()));
    ModelRow {
        name,
        namespace,
        version: status.version.map(|version| version.to_string()),
        state: Some(status.state.name()),
        reason: server.reason(&status).filter(|_| release.is_none()),
        release,
        takes,
        loaded: status.state.model().map(|model| loaded(model)),
    }
}

fn loaded(model: &Model) -> Loaded {
    let config = model.config();
    let groups = config.instance_group.iter();
    let memory = model.memory_usage().into_iter();
    Loaded {
        backend: backend_name(config).unwrap_or_default().to_owned(),
        platform: platform_name(config).to_owned(),
        engine: model.engine(),
        instances: groups
            .map(|group| Instances {
                kind: group.kind().as_str_name(),
                count: group.count,
                gpus: group.gpus.clone(),
            })
            .collect(),
        processes: model.processes().len(),
        max_batch_size: config.max_batch_size,
        decoupled: model.is_decoupled(),
        sequences: matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))),
        ensemble: model.is_composite(),
        released: model.release().is_some(),
        cached: config.response_cache.is_some_and(|cache| cache.enable),
        load_seconds: model.statistics().load_duration().as_secs_f64(),
        memory: memory
            .map(|usage| Memory {
                kind: usage.memory.kind.protocol_name(),
                device: usage.memory.device,
                bytes: usage.byte_size,
            })
            .collect(),
    }
}

/// The part of the history that a client requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HistoryQuery {
    /// Only samples later than this, in seconds since the first tick.
    after: u32,
    /// Only the last seconds, if set.
    last: Option<u32>,
    /// The models with samples; the server always has some.
    of: Of,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Of {
    /// All models.
    #[default]
    All,
    /// No model.
    Server,
    Model(String),
}

/// The members of a query, by name.
fn pairs(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='))
}

fn number<N: FromStr>(name: &str, value: &str) -> Result<N> {
    value.parse().map_err(|_| Error::invalid_arg(format!("{name} is '{}'; expected a number", decode(value))))
}

impl HistoryQuery {
    /// The time after which samples are requested.
    pub(crate) fn after(&self) -> u32 {
        self.after
    }

    /// Parses `after`, `last`, and `model` or `models=none`. Unknown names are ignored.
    ///
    /// # Errors
    /// `InvalidArg` for something else than a number.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self> {
        let mut parsed = Self::default();
        for (name, value) in pairs(query) {
            match name {
                "after" => parsed.after = number(name, value)?,
                "last" => parsed.last = Some(number(name, value)?),
                "model" => parsed.of = Of::Model(decode(value).into_owned()),
                "models" if value == "none" => parsed.of = Of::Server,
                _ => {}
            }
        }
        Ok(parsed)
    }
}

/// Latencies of the last minute by phase, in microseconds. Empty without `--metrics-config=summary_latencies=true`.
#[derive(Serialize)]
pub(crate) struct QuantilesDocument {
    phases: Vec<PhaseQuantiles>,
}

#[derive(Serialize)]
struct PhaseQuantiles {
    phase: &'static str,
    /// Half, nine tenths, and 99 of 100 values are at most this; `None` without values.
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
}

pub(crate) fn quantiles(model: &Model) -> QuantilesDocument {
    let summaries = model.statistics().latencies().and_then(Latencies::summaries);
    let phase = |(phase, summary): (LatencyPhase, &LatencySummary)| {
        let phase = match phase {
            LatencyPhase::Request => "request",
            LatencyPhase::Queue => "queue",
            LatencyPhase::ComputeInput => "compute_input",
            LatencyPhase::ComputeInfer => "compute_infer",
            LatencyPhase::ComputeOutput => "compute_output",
            LatencyPhase::CacheHit | LatencyPhase::CacheMiss => return None,
        };
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|quantile| summary.quantile(quantile));
        Some(PhaseQuantiles { phase, p50, p90, p99 })
    };
    let summaries = summaries.iter().flat_map(|summaries| LatencyPhase::ALL.into_iter().zip(summaries));
    QuantilesDocument { phases: summaries.filter_map(phase).collect() }
}

/// The version of a model; `None` if the query names none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionQuery {
    pub version: Option<u64>,
}

impl VersionQuery {
    /// Parses `version`. Unknown names are ignored.
    ///
    /// # Errors
    /// `InvalidArg` for something else than a number.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self> {
        let mut pairs = pairs(query);
        let version = pairs.find(|(name, _)| *name == "version").map(|(name, value)| number(name, value));
        Ok(Self { version: version.transpose()? })
    }
}

/// Samples. Each is an array: its time in seconds since the first tick, then the members of `fields`. A model's end with the
/// number of seconds before that time that they cover. Where one model is requested, its samples go on with the shares of
/// executions by batch size, and quantiles of latencies if the server keeps them.
#[derive(Serialize)]
pub(crate) struct HistoryDocument {
    /// The time 0 of the samples, in milliseconds since the Unix epoch.
    zero: u64,
    /// Seconds between two ticks.
    interval: u64,
    /// The time of the last tick.
    at: u32,
    fields: [&'static str; FIELDS.len()],
    /// Samples of the server, followed by the processors in use and the memory in bytes.
    server: Vec<Vec<f64>>,
    models: Vec<ModelSeries>,
}

impl HistoryDocument {
    /// The length as JSON in bytes, roughly.
    pub(crate) fn size(&self) -> usize {
        const ROW: usize = 60;
        let models: usize = self.models.iter().map(|series| series.samples.len()).sum();
        (self.server.len() + models) * ROW
    }
}

#[derive(Serialize)]
struct ModelSeries {
    name: String,
    namespace: String,
    version: String,
    samples: Vec<Sample>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Sample {
    Short(Vec<f64>),
    Long(Vec<Cell>),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Cell {
    Number(f64),
    Batches([f64; 8]),
    Quantiles(Option<[f64; 10]>),
}

const FIELDS: [&str; 13] = [
    "requests",
    "failures",
    "latency",
    "queue",
    "input",
    "infer",
    "output",
    "batch",
    "pending",
    "hits",
    "misses",
    "processors",
    "memory",
];

pub(crate) fn history(
    sampling: &Sampling,
    query: &HistoryQuery,
    may_see: impl Fn(&ModelId) -> bool,
) -> HistoryDocument {
    let (at, server, models) = {
        let history = sampling.history();
        let at = history.last_tick();
        let after = query.last.map_or(query.after, |last| query.after.max(at.saturating_sub(last)));
        let server: Vec<_> = history.server_after(after).copied().collect();
        let is_wanted = |sample: &&ModelSample| match &query.of {
            Of::All => true,
            Of::Server => false,
            Of::Model(name) => sample.key.id.name == *name,
        };
        let models: Vec<_> = history.models_after(after).filter(is_wanted).cloned().collect();
        (at, server, models)
    };
    HistoryDocument {
        zero: sampling.unix_ms(0),
        interval: INTERVAL.as_secs(),
        at,
        fields: FIELDS,
        server: server
            .iter()
            .map(|sample| {
                let mut row = numbers(sample.at, &sample.activity);
                row.extend([rounded(sample.processors), sample.memory as f64]);
                row
            })
            .collect(),
        models: series(&models, matches!(query.of, Of::Model(_)), may_see),
    }
}

/// The samples of each version that the caller may see.
fn series(
    samples: &[ModelSample],
    with_details: bool,
    may_see: impl Fn(&ModelId) -> bool,
) -> Vec<ModelSeries> {
    let mut by_version: BTreeMap<_, ModelSeries> = BTreeMap::new();
    let ids: BTreeSet<_> = samples.iter().map(|sample| &sample.key.id).collect();
    let visible: BTreeSet<_> = ids.into_iter().filter(|id| may_see(id)).collect();
    for sample in samples.iter().filter(|sample| visible.contains(&sample.key.id)) {
        let key = &*sample.key;
        let series = by_version.entry((&key.id.name, &key.id.namespace, key.version));
        let series = series.or_insert_with(|| ModelSeries {
            name: key.id.name.clone(),
            namespace: key.id.namespace.clone(),
            version: key.version.to_string(),
            samples: Vec::new(),
        });
        let mut row = numbers(sample.at, &sample.activity);
        row.push(f64::from(sample.span));
        series.samples.push(if with_details {
            let details = [
                Cell::Batches(sample.batches.shares().map(thousandths)),
                Cell::Quantiles(sample.quantiles.micros().map(|micros| micros.map(thousandths))),
            ];
            Sample::Long(row.into_iter().map(Cell::Number).chain(details).collect())
        } else {
            Sample::Short(row)
        });
    }
    by_version.into_values().collect()
}

fn numbers(at: u32, activity: &Activity) -> Vec<f64> {
    let Activity { requests, failures, latency, queue, input, infer, output, .. } = *activity;
    let Activity { batch, pending, hits, misses, processors, memory, .. } = *activity;
    let values = [
        requests, failures, latency, queue, input, infer, output, batch, pending, hits, misses, processors,
        memory,
    ];
    std::iter::once(f64::from(at)).chain(values.map(rounded)).collect()
}

/// Three digits after the point, which is more than a chart shows.
pub(crate) fn rounded(value: f32) -> f64 {
    thousandths(f64::from(value))
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The log lines that a client requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogQuery {
    /// Only lines with greater numbers.
    pub after: u64,
}

impl LogQuery {
    /// Parses `after`. Unknown names are ignored.
    ///
    /// # Errors
    /// `InvalidArg` for something else than a number.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self> {
        let mut parsed = Self::default();
        for (name, value) in pairs(query) {
            if name == "after" {
                parsed.after = number(name, value)?;
            }
        }
        Ok(parsed)
    }
}

/// The last lines of the log.
#[derive(Serialize)]
pub(crate) struct LogDocument {
    lines: Vec<LogEntry>,
}

#[derive(Serialize)]
struct LogEntry {
    number: u64,
    /// Milliseconds since the Unix epoch.
    time: u64,
    level: &'static str,
    place: String,
    message: String,
}

pub(crate) fn log(log: &LogControl, after: u64) -> LogDocument {
    let entry = |line: LogLine| LogEntry {
        number: line.number,
        time: line.time_ms,
        level: line.level.name(),
        place: line.place,
        message: line.message,
    };
    LogDocument { lines: log.recent().after(after).into_iter().map(entry).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_selects_times_and_a_model() {
        let all = HistoryQuery::default;
        for (query, expected) in [
            (None, all()),
            (Some(""), all()),
            (Some("x=1&y&=&models=some"), all()),
            (Some("after=7"), HistoryQuery { after: 7, ..all() }),
            (Some("after=7&last=300"), HistoryQuery { after: 7, last: Some(300), ..all() }),
            (Some("models=none"), HistoryQuery { of: Of::Server, ..all() }),
            (Some("model=a%2Fb%20%26"), HistoryQuery { of: Of::Model("a/b &".into()), ..all() }),
        ] {
            assert_eq!(HistoryQuery::parse(query).unwrap(), expected, "{query:?}");
        }
        for wrong in ["after=", "after=-1", "after=x", "last=1.5", "after=4294967296", "after=%00"] {
            assert!(HistoryQuery::parse(Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(LogQuery::parse(Some("after=18446744073709551615")).unwrap().after, u64::MAX);
        assert!(LogQuery::parse(Some("after=18446744073709551616")).is_err());
        for (query, version) in [(None, None), (Some("x=1"), None), (Some("x=1&version=3"), Some(3))] {
            assert_eq!(VersionQuery::parse(query).unwrap().version, version, "{query:?}");
        }
        assert!(VersionQuery::parse(Some("version=-1")).is_err());
    }
}
