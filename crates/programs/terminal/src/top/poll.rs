//! Polls of a server: its models, their statistics, and its metrics where it has any.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use http::Method;
use nereid_client::http::path_segment;
use serde_json::Value;

use super::metrics::{Sample, parse};
use crate::connection::{Connection, Refusal};

/// Polls without metrics between two attempts to get them.
const PATIENCE: u32 = 15;

/// The state of a server at one moment.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) at: Instant,
    /// Name and version.
    pub(super) server: String,
    pub(super) is_ready: bool,
    /// The versions of models by name and version.
    pub(super) models: BTreeMap<(String, String), Version>,
    pub(super) machine: Machine,
}

/// A version of a model, or a model without any.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Version {
    /// As the server calls it: READY, LOADING, UNAVAILABLE.
    pub(super) state: String,
    pub(super) reason: String,
    pub(super) counters: Option<Counters>,
    /// Requests that wait.
    pub(super) pending: Option<f64>,
}

/// Counters of a version since it was loaded. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) requests: u64,
    pub(super) failures: u64,
    pub(super) time: u64,
    pub(super) queued: u64,
    pub(super) queue_time: u64,
    pub(super) inferences: u64,
    pub(super) executions: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

/// The machine of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Machine {
    /// From 0 to 1.
    pub(super) cpu: Option<f64>,
    /// Bytes of memory in use, and of all memory.
    pub(super) memory: Option<(f64, f64)>,
    pub(super) gpus: Vec<Gpu>,
}

/// A GPU: its use from 0 to 1, and its memory in use and in all in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gpu {
    pub(super) id: String,
    pub(super) usage: f64,
    pub(super) memory: (f64, f64),
}

/// Polls a server.
pub(super) struct Poll {
    server: Connection,
    metrics: Connection,
    /// Models to watch on a server that does not list its models.
    models: Vec<String>,
    /// Polls until the next attempt to get metrics.
    metrics_in: u32,
}

impl Poll {
    pub(super) fn new(server: Connection, metrics: Connection, models: Vec<String>) -> Self {
        Self { server, metrics, models, metrics_in: 0 }
    }

    /// Polls the server once.
    ///
    /// # Errors
    /// The server does not answer, or denies access.
    pub(super) async fn next(&mut self) -> Result<Snapshot, String> {
        let snapshot = self.poll().await;
        snapshot.map_err(|refusal| format!("{}: {refusal}", self.server.address()))
    }

    async fn poll(&mut self) -> Result<Snapshot, Refusal> {
        let metadata = self.server.document("/v2").await?;
        let text = |name: &str| metadata[name].as_str().unwrap_or_default();
        let server = format!("{} {}", text("name"), text("version")).trim().to_owned();
        let is_ready = self.is_ready("/v2/health/ready").await?;
        // The index and statistics are extensions.
        let index = self.server.post("/v2/repository/index", &Value::Object(Default::default())).await;
        let mut models = match extension(index)? {
            Some(index) => versions(&index),
            None => BTreeMap::new(),
        };
        for name in &self.models {
            if !models.keys().any(|(known, _)| known == name) {
                let is_ready = self.is_ready(&format!("/v2/models/{}/ready", path_segment(name))).await?;
                let state = if is_ready { "READY" } else { "UNAVAILABLE" };
                let version = Version { state: state.into(), ..Version::default() };
                models.insert((name.clone(), String::new()), version);
            }
        }
        if !self.models.is_empty() {
            models.retain(|(name, _), _| self.models.contains(name));
        }
        if let Some(statistics) = extension(self.server.document("/v2/models/stats").await)? {
            for entry in statistics["model_stats"].as_array().into_iter().flatten() {
                let key = [&entry["name"], &entry["version"]]
                    .map(|part| part.as_str().unwrap_or_default().to_owned());
                if let Some(version) = models.get_mut(&key.into()) {
                    version.counters = Some(counters(entry));
                }
            }
        }
        let samples = self.samples().await;
        add_pending(&mut models, &samples);
        Ok(Snapshot { at: Instant::now(), server, is_ready, models, machine: machine(&samples) })
    }

    async fn is_ready(&self, path: &str) -> Result<bool, Refusal> {
        match self.server.whole(Method::GET, path, &[], Bytes::new()).await {
            Ok(answer) => {
                // Some servers answer "no" in the document.
                let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                Ok(document["ready"] != false)
            }
            Err(Refusal::Status(..)) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// The metrics; none where there are none.
    async fn samples(&mut self) -> Vec<Sample> {
        if self.metrics_in > 0 {
            self.metrics_in -= 1;
            return Vec::new();
        }
        match self
            .metrics
            .whole(Method::GET, "/metrics", &[("Accept", "text/plain".into())], Bytes::new())
            .await
        {
            Ok(answer) => parse(&String::from_utf8_lossy(&answer.body)),
            Err(_) => {
                self.metrics_in = PATIENCE;
                Vec::new()
            }
        }
    }
}

/// The answer of an extension; `None` from a server without it.
fn extension(answer: Result<Value, Refusal>) -> Result<Option<Value>, Refusal> {
    match answer {
        Ok(document) => Ok(Some(document)),
        Err(Refusal::Status(status, _)) if !matches!(status.as_u16(), 401 | 403) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// The versions in an index of the repositories.
fn versions(index: &Value) -> BTreeMap<(String, String), Version> {
    let entry = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let version = Version { state: text("state"), reason: text("reason"), ..Version::default() };
        ((text("name"), text("version")), version)
    };
    index.as_array().into_iter().flatten().map(entry).collect()
}

fn counters(entry: &Value) -> Counters {
    let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_default();
    let of = |name: &str, part: &str| number(&entry["inference_stats"][name][part]);
    Counters {
        requests: of("success", "count"),
        failures: of("fail", "count"),
        time: of("success", "ns"),
        queued: of("queue", "count"),
        queue_time: of("queue", "ns"),
        inferences: number(&entry["inference_count"]),
        executions: number(&entry["execution_count"]),
        hits: of("cache_hit", "count"),
        misses: of("cache_miss", "count"),
    }
}

fn add_pending(models: &mut BTreeMap<(String, String), Version>, samples: &[Sample]) {
    for sample in samples.iter().filter(|sample| sample.name == "nv_inference_pending_request_count") {
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        if let Some(version) = models.get_mut(&(label("model"), label("version"))) {
            version.pending = Some(version.pending.unwrap_or_default() + sample.value);
        }
    }
}

fn machine(samples: &[Sample]) -> Machine {
    let one = |name: &str| samples.iter().find(|sample| sample.name == name).map(|sample| sample.value);
    let gpu = |sample: &Sample| {
        let id = sample.labels.get("gpu_uuid").cloned().unwrap_or_default();
        let of = |name: &str| {
            let same = |other: &&Sample| other.name == name && other.labels.get("gpu_uuid") == Some(&id);
            samples.iter().find(same).map_or(0.0, |sample| sample.value)
        };
        let memory = (of("nv_gpu_memory_used_bytes"), of("nv_gpu_memory_total_bytes"));
        Gpu { usage: sample.value, memory, id: id.clone() }
    };
    Machine {
        cpu: one("nv_cpu_utilization"),
        memory: one("nv_cpu_memory_used_bytes").zip(one("nv_cpu_memory_total_bytes")),
        gpus: samples.iter().filter(|sample| sample.name == "nv_gpu_utilization").map(gpu).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_of_triton_are_read() {
        let index = json!([
            {"name": "a", "version": "1", "state": "READY", "reason": ""},
            {"name": "b", "version": "", "state": "UNAVAILABLE", "reason": "no file"},
            {"name": "c"},
        ]);
        let mut models = versions(&index);
        let statistics = json!({
            "name": "a", "version": "1", "inference_count": 6, "execution_count": "3",
            "inference_stats": {"success": {"count": 4, "ns": 400}, "fail": {"count": 1}, "queue": {"count": 4, "ns": 8},
                                "cache_hit": {"count": 2}, "cache_miss": {"count": 5}},
        });
        let expected = Counters {
            requests: 4,
            failures: 1,
            time: 400,
            queued: 4,
            queue_time: 8,
            inferences: 6,
            executions: 3,
            hits: 2,
            misses: 5,
        };
        assert_eq!(counters(&statistics), expected);
        assert_eq!(counters(&json!({})), Counters::default());
        let samples = parse(
            "nv_inference_pending_request_count{model=\"a\",version=\"1\"} 3\n\
             nv_inference_pending_request_count{model=\"z\",version=\"1\"} 9\n\
             nv_cpu_utilization 0.25\nnv_cpu_memory_used_bytes 5\nnv_cpu_memory_total_bytes 8\n\
             nv_gpu_utilization{gpu_uuid=\"g\"} 0.5\nnv_gpu_memory_used_bytes{gpu_uuid=\"g\"} 1\n\
             nv_gpu_memory_total_bytes{gpu_uuid=\"g\"} 4\nnv_gpu_memory_total_bytes{gpu_uuid=\"h\"} 7\n",
        );
        add_pending(&mut models, &samples);
        let pending: Vec<_> =
            models.iter().map(|((name, _), version)| (name.as_str(), version.pending)).collect();
        assert_eq!(pending, [("a", Some(3.0)), ("b", None), ("c", None)]);
        let gpu = Gpu { id: "g".into(), usage: 0.5, memory: (1.0, 4.0) };
        assert_eq!(machine(&samples), Machine { cpu: Some(0.25), memory: Some((5.0, 8.0)), gpus: vec![gpu] });
        assert_eq!(machine(&[]), Machine::default());
    }
}
