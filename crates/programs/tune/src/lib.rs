//! `nereid tune`: finds the settings of a model by measuring it on this machine.
//!
//! Each candidate runs in a server of its own, in a repository of links to the model with another configuration. Memory is measured
//! apart for each, and a crash ends nothing else. [`settings`] lists the candidates, [`search`] spends the time on the
//! promising ones, and [`report`] draws the results.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

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

use nereid_model_config::{ModelConfig, from_json, parse_text, to_text};
use nereid_terminal::{Sample, path_segment};
use serde_json::Value;

use self::load::Requests;
use self::search::{Measurement, Objective, Progress, Trial};
pub use self::server::Model;
use self::server::Server;
use self::settings::Settings;

/// Requests whose contents differ, so that no answer can be one of a cache.
const BODIES: u64 = 8;
/// Clients of the curves in the report, and the time for each.
const CURVE: [usize; 6] = [1, 2, 4, 8, 16, 32];
const CURVE_WINDOW: Duration = Duration::from_millis(500);

/// A search to be run.
#[derive(Clone, Debug)]
pub struct Tune {
    /// The model.
    pub model: Model,
    /// The objective.
    pub objective: Objective,
    /// Clients that send requests at the same time.
    pub clients: NonZeroUsize,
    /// The time for the search.
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
    /// The advised settings and the present ones with different numbers of clients.
    pub curves: Vec<(Settings, Vec<(usize, Measurement)>)>,
}

impl Tune {
    /// Measures.
    ///
    /// # Errors
    /// The model cannot be loaded as it is, or answers otherwise than once to each request.
    pub async fn run(
        &self,
        mut started: impl FnMut(usize, &str),
        progress: impl FnMut(Progress),
    ) -> Result<Outcome, String> {
        let Model { repository, name, .. } = &self.model;
        let folder = repository.join(name);
        if !folder.is_dir() {
            return Err(format!("there is no model '{name}' in {}", repository.display()));
        }
        let path = folder.join(server::CONFIG);
        let text = if path.exists() { fs::read_to_string(&path) } else { Ok(String::new()) };
        let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let written = parse_text(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let server = Server::start(&self.model, None, &[]).await?;
        let path = format!("/v2/models/{}", path_segment(name));
        let metadata = server.document(&path).await?;
        let described = server.document(&format!("{path}/config")).await?;
        server.end().await;
        let completed = from_json(&described.to_string()).map_err(|error| error.to_string())?;
        if let Some(reason) = settings::refusal(&completed) {
            return Err(format!("'{name}' {reason}"));
        }
        let (requests, inputs) = self.requests(&metadata, &described, format!("{path}/infer"))?;
        let requests = Arc::new(requests);
        let processors =
            available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
        let candidates = settings::candidates(&written, &completed, processors);
        started(candidates.len(), &inputs);
        let measure = async |settings: &Settings, window: Duration| {
            let config = to_text(&settings.apply(&written, &completed));
            let server = Server::start(&self.model, Some(&config), settings.options()).await?;
            let pid = server.pid().ok_or("the server ended")?;
            let measured = load::load(&server.socket(), pid, &requests, self.clients.get(), window).await;
            server.end().await;
            measured
        };
        let trials = search::search(candidates, &self.objective, self.budget, measure, progress).await;
        let Some(best) = self.objective.advised(&trials) else {
            let reason = trials.into_iter().find_map(|trial| trial.outcome.err());
            return Err(format!("no request to '{name}' was answered: {}", reason.unwrap_or_default()));
        };
        let advised = best.settings;
        let curves = self.curves(advised, &written, &completed, &requests).await?;
        Ok(Outcome { advised, config: to_text(&advised.apply(&written, &completed)), trials, inputs, curves })
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

    /// The advised settings and the present ones with different numbers of clients.
    async fn curves(
        &self,
        advised: Settings,
        written: &ModelConfig,
        completed: &ModelConfig,
        requests: &Arc<Requests>,
    ) -> Result<Vec<(Settings, Vec<(usize, Measurement)>)>, String> {
        let mut curves = Vec::new();
        let both =
            if advised == Settings::PRESENT { vec![advised] } else { vec![advised, Settings::PRESENT] };
        for settings in both {
            let config = to_text(&settings.apply(written, completed));
            let server = Server::start(&self.model, Some(&config), settings.options()).await?;
            let pid = server.pid().ok_or("the server ended")?;
            let mut curve = Vec::new();
            for clients in CURVE {
                let measured = load::load(&server.socket(), pid, requests, clients, CURVE_WINDOW).await?;
                curve.push((clients, measured));
            }
            server.end().await;
            curves.push((settings, curve));
        }
        Ok(curves)
    }
}
