//! Rates and means of models, computed from the difference between two polls.

use std::collections::VecDeque;

use super::poll::{Counters, Machine, Snapshot};

/// The most totals that are kept for the line of requests.
const KEPT: usize = 120;

/// The activity of a server, from its last two polls.
#[derive(Debug, Default)]
pub(super) struct Activity {
    last: Option<Snapshot>,
    pub(super) rows: Vec<Row>,
    /// Requests a second, the newest at the end.
    pub(super) requests: VecDeque<f64>,
}

/// A version of a model, and what it does. Rates are `None` before the second poll, and of servers without statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) state: String,
    pub(super) reason: String,
    /// Requests a second.
    pub(super) requests: Option<f64>,
    pub(super) failures: Option<f64>,
    /// Mean seconds.
    pub(super) latency: Option<f64>,
    pub(super) queue: Option<f64>,
    /// Inferences in an execution.
    pub(super) batch: Option<f64>,
    /// Share of the requests that the response cache answered.
    pub(super) cached: Option<f64>,
    /// Requests that wait.
    pub(super) pending: Option<f64>,
}

impl Activity {
    /// Takes the next poll.
    pub(super) fn add(&mut self, snapshot: Snapshot) {
        let before = self.last.take();
        let seconds = before.as_ref().map(|before| (snapshot.at - before.at).as_secs_f64());
        let row = |((name, version), now): (&(String, String), &super::poll::Version)| {
            let earlier =
                before.as_ref().and_then(|before| before.models.get(&(name.clone(), version.clone())));
            let mut row = Row {
                name: name.clone(),
                version: version.clone(),
                state: now.state.clone(),
                reason: now.reason.clone(),
                pending: now.pending,
                ..Row::default()
            };
            if let (Some(counters), Some(seconds)) = (now.counters, seconds.filter(|seconds| *seconds > 0.0))
            {
                let earlier = earlier.and_then(|earlier| earlier.counters).unwrap_or_default();
                row.fill(counters.since(earlier), seconds);
            }
            row
        };
        self.rows = snapshot.models.iter().map(row).collect();
        if seconds.is_some() {
            self.requests.push_back(self.total(|row| row.requests).unwrap_or_default());
            while self.requests.len() > KEPT {
                self.requests.pop_front();
            }
        }
        self.last = Some(snapshot);
    }

    /// Name and version of the server.
    pub(super) fn server(&self) -> &str {
        self.last.as_ref().map_or("", |last| last.server.as_str())
    }

    /// Whether the server is ready; `None` before the first poll.
    pub(super) fn is_ready(&self) -> Option<bool> {
        self.last.as_ref().map(|last| last.is_ready)
    }

    /// The machine of the server.
    pub(super) fn machine(&self) -> Option<&Machine> {
        self.last.as_ref().map(|last| &last.machine)
    }

    /// The sum of a column; `None` without any value.
    pub(super) fn total(&self, column: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        self.rows.iter().filter_map(column).reduce(|sum, value| sum + value)
    }

    /// The mean latency of all requests.
    pub(super) fn latency(&self) -> Option<f64> {
        let time = self.total(|row| Some(row.latency? * row.requests?))?;
        self.total(|row| row.latency.and(row.requests))
            .filter(|requests| *requests > 0.0)
            .map(|requests| time / requests)
    }
}

impl Row {
    fn fill(&mut self, counters: Counters, seconds: f64) {
        let mean = |sum: u64, count: u64| (count > 0).then(|| sum as f64 / count as f64);
        self.requests = Some(counters.requests as f64 / seconds);
        self.failures = Some(counters.failures as f64 / seconds);
        self.latency = mean(counters.time, counters.requests).map(|time| time / 1e9);
        self.queue = mean(counters.queue_time, counters.queued).map(|time| time / 1e9);
        self.batch = mean(counters.inferences, counters.executions);
        self.cached = mean(counters.hits, counters.hits + counters.misses);
    }
}

impl Counters {
    /// The difference to earlier counters of the same version. After a reload, they count from 0 again.
    fn since(self, earlier: Self) -> Self {
        let is_reset = self.requests < earlier.requests || self.failures < earlier.failures;
        let earlier = if is_reset { Self::default() } else { earlier };
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            failures: self.failures.saturating_sub(earlier.failures),
            time: self.time.saturating_sub(earlier.time),
            queued: self.queued.saturating_sub(earlier.queued),
            queue_time: self.queue_time.saturating_sub(earlier.queue_time),
            inferences: self.inferences.saturating_sub(earlier.inferences),
            executions: self.executions.saturating_sub(earlier.executions),
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use super::super::poll::Version;
    use super::*;

    /// A poll of these models at a second.
    pub(in super::super) fn snapshot(
        start: Instant,
        second: u64,
        models: &[(&str, Option<Counters>)],
    ) -> Snapshot {
        let version = |counters: &Option<Counters>| Version {
            state: "READY".into(),
            counters: *counters,
            pending: Some(2.0),
            ..Version::default()
        };
        let models = models.iter().map(|(name, counters)| (((*name).into(), "1".into()), version(counters)));
        Snapshot {
            at: start + Duration::from_secs(second),
            server: "triton 2".into(),
            is_ready: true,
            models: models.collect(),
            machine: Machine::default(),
        }
    }

    pub(in super::super) fn counters(requests: u64) -> Option<Counters> {
        Some(Counters {
            requests,
            failures: requests / 10,
            time: requests * 2_000_000,
            queued: requests,
            queue_time: requests * 500_000,
            inferences: requests * 4,
            executions: requests,
            hits: requests,
            misses: requests * 3,
        })
    }

    #[test]
    fn rates_are_differences_of_polls() {
        let start = Instant::now();
        for (before, now, seconds, requests) in [
            (counters(100), 150, 5, 10.0),
            (counters(100), 100, 5, 0.0),
            (counters(100), 20, 10, 2.0),
            (None, 30, 10, 3.0),
        ] {
            let mut activity = Activity::default();
            activity.add(snapshot(start, 0, &[("m", before)]));
            assert_eq!((activity.rows[0].requests, activity.total(|row| row.requests)), (None, None));
            activity.add(snapshot(start, seconds, &[("m", counters(now))]));
            let row = &activity.rows[0];
            assert_eq!((row.requests, row.failures), (Some(requests), Some(requests / 10.0)), "{now}");
            let is_busy = requests > 0.0;
            assert_eq!((row.latency, row.queue), (is_busy.then_some(0.002), is_busy.then_some(0.0005)));
            assert_eq!((row.batch, row.cached), (is_busy.then_some(4.0), is_busy.then_some(0.25)));
            assert_eq!(activity.requests, [requests]);
        }
    }

    #[test]
    fn means_of_a_server_weigh_its_models_by_requests() {
        let start = Instant::now();
        let mut activity = Activity::default();
        let slow = Some(Counters { requests: 1, time: 1_000_000_000, ..Counters::default() });
        activity.add(snapshot(start, 0, &[("a", None), ("b", None), ("c", None)]));
        activity.add(snapshot(start, 1, &[("a", slow), ("b", counters(999)), ("c", None)]));
        let expected = (1.0 + 999.0 * 0.002) / 1000.0;
        assert!((activity.latency().unwrap() - expected).abs() < 1e-9);
        assert_eq!(activity.total(|row| row.pending), Some(6.0));
        for second in 2..300 {
            activity.add(snapshot(start, second, &[("a", slow)]));
        }
        assert_eq!(activity.requests.len(), KEPT);
    }
}
