//! `nereid tune`: finds the settings of a model by measuring it on this machine.
//!
//! Each candidate runs in a server of its own, in a repository of links to the model with another configuration. Memory is measured
//! apart for each, and a crash ends nothing else. [`settings`] lists the candidates, [`search`] spends the time on the
//! promising ones, and [`report`] draws the results.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod bench;
mod closed_loop;
mod connection;
mod load;
pub mod report;
pub mod search;
mod server;
pub mod settings;

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use nereid_model_config::{from_json, parse_text};
use nereid_terminal::{Sample, path_segment};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use self::bench::Bench;
use self::load::Requests;
use self::search::{Found, Limit, Measurement, Objective, Progress, Slot, Trial};
pub use self::server::Model;
use self::server::Server;
use self::settings::Settings;

/// Requests whose contents differ, so that no answer can be one of a cache.
const BODIES: u64 = 8;
/// Clients of the curves in the report.
const CURVE: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// A search to be run.
#[derive(Clone, Debug)]
pub struct Tune {
    /// The model.
    pub model: Model,
    /// The objective.
    pub objective: Objective,
    /// Clients that send requests at the same time.
    pub clients: NonZeroUsize,
    /// The time limit of the search, with the loads of the model.
    pub budget: Duration,
    /// Inputs, as `nereid infer` takes them. Others are random.
    pub inputs: Vec<String>,
    /// Shapes of random inputs whose dimensions may have any size, as `INPUT=SIZE,…`.
    pub shapes: Vec<String>,
}

/// The result of a search.
#[derive(Debug)]
pub struct Outcome {
    /// All candidates, the best first.
    pub trials: Vec<Trial>,
    /// The settings to use.
    pub advised: Settings,
    /// The model's configuration with these settings.
    pub config: String,
    /// The inputs, in words.
    pub inputs: String,
    /// The advised settings and the present ones with different numbers of clients, if there was time for them.
    pub curves: Vec<(Settings, Vec<(usize, Measurement)>)>,
    /// If some candidates were not tried: a sufficient time limit for all.
    pub enough: Option<Duration>,
}

impl Tune {
    /// Measures, within the time limit.
    ///
    /// # Errors
    /// The model cannot be loaded as it is, answers otherwise than once to each request, or is too slow for the time limit.
    pub async fn run(
        &self,
        mut started: impl FnMut(usize, &str),
        progress: impl FnMut(Progress),
    ) -> Result<Outcome, String> {
        let Model { repository, name, .. } = &self.model;
        let limit = Limit { began: Instant::now(), budget: self.budget, points: CURVE.len() };
        let folder = repository.join(name);
        if !folder.is_dir() {
            return Err(format!("there is no model '{name}' in {}", repository.display()));
        }
        let path = folder.join(server::CONFIG);
        let text = if path.exists() { fs::read_to_string(&path) } else { Ok(String::new()) };
        let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let written = parse_text(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let path = format!("/v2/models/{}", path_segment(name));
        let load = async {
            let server = Server::start(&self.model, None, &[]).await?;
            let documents =
                (server.document(&path).await?, server.document(&format!("{path}/config")).await?);
            Ok::<_, String>((server, documents))
        };
        let loaded = timeout_at(limit.end(), load).await;
        let loaded = loaded.map_err(|_| self.too_short("it was not loaded within this time", None))?;
        let (server, (metadata, described)) = loaded?;
        let completed = from_json(&described.to_string()).map_err(|error| error.to_string())?;
        if let Some(reason) = settings::refusal(&completed) {
            return Err(format!("'{name}' {reason}"));
        }
        let (requests, inputs) = self.requests(&metadata, &described, format!("{path}/infer"))?;
        let mut bench = Bench {
            model: &self.model,
            written: &written,
            completed: &completed,
            requests: Arc::new(requests),
            server: Some((Settings::PRESENT, server)),
        };
        let processors =
            available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
        let candidates = settings::candidates(&written, &completed, processors);
        started(candidates.len(), &inputs);
        let measure =
            async |settings: &Settings, slot: Slot| bench.measure(settings, self.clients.get(), slot).await;
        let found = search::search(candidates, &self.objective, limit, measure, progress).await;
        let advised = self.advised(&found)?;
        let curves = curves(&mut bench, advised, found.point, limit.end()).await;
        let config = bench.config(&advised);
        bench.end().await;
        let is_complete = !found.trials.iter().any(Trial::is_untried);
        let enough = (!is_complete).then_some(found.enough);
        Ok(Outcome { advised, config, trials: found.trials, inputs, curves, enough })
    }

    /// The settings to use.
    ///
    /// # Errors
    /// No candidate runs, or the time was too short for any but the present configuration.
    fn advised(&self, found: &Found) -> Result<Settings, String> {
        let trials = &found.trials;
        let is_complete = !trials.iter().any(Trial::is_untried);
        let measured = trials.iter().filter(|trial| trial.outcome.is_ok());
        let is_alone = measured.clone().all(|trial| trial.settings == Settings::PRESENT);
        match self.objective.advised(trials) {
            Some(_) if is_alone && !is_complete => {
                let what = "only its present configuration was measured in this time";
                Err(self.too_short(what, Some(found.enough)))
            }
            Some(best) => Ok(best.settings),
            None => Err(match trials.iter().find_map(Trial::failure) {
                Some(reason) => format!("no request to '{}' was answered: {reason}", self.model.name),
                None => self.too_short("it answered no request in this time", Some(found.enough)),
            }),
        }
    }

    fn too_short(&self, what: &str, enough: Option<Duration>) -> String {
        let enough = enough.unwrap_or(self.budget * 4);
        format!(
            "--seconds={} is too short for '{}': {what} (try --seconds={})",
            self.budget.as_secs(),
            self.model.name,
            enough.as_secs()
        )
    }

    /// The requests, and their inputs in words.
    fn requests(&self, metadata: &Value, config: &Value, path: String) -> Result<(Requests, String), String> {
        let sample = |seed| Sample {
            model: &self.model.name,
            metadata,
            config,
            inputs: &self.inputs,
            shapes: &self.shapes,
            seed,
        };
        let bodies = (0..BODIES).map(|seed| sample(seed).body()).collect::<Result<_, _>>()?;
        Ok((Requests { path, bodies }, sample(0).describe()?))
    }
}

/// The advised settings and the present ones with different numbers of clients, if there is time for it.
async fn curves(
    bench: &mut Bench<'_>,
    advised: Settings,
    point: Option<Duration>,
    end: Instant,
) -> Vec<(Settings, Vec<(usize, Measurement)>)> {
    let Some(point) = point else { return Vec::new() };
    // A warm-up, and a window twice as long.
    let slot = Slot { warm_up: point / 3, window: point / 3 * 2 };
    let both = if advised == Settings::PRESENT { vec![advised] } else { vec![advised, Settings::PRESENT] };
    let mut curves = Vec::new();
    for (done, settings) in both.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let share = u32::try_from(both.len() - done).map_or(left, |count| left / count);
        curves.push((*settings, bench.curve(settings, &CURVE, slot, Instant::now() + share).await));
    }
    curves
}
