//! The loads that requests wait for: one for each model at a time, and pauses after failures.
//!
//! The rules have no clock and no thread of their own: each takes the time as an argument. A waiting request holds the receiver of
//! a channel; once woken, the request is decided about again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nereid_backend_api::{Error, Result};
use nereid_core::ScopedName;
use tokio::sync::oneshot::{Receiver, Sender, channel};

/// The longest pause after failures, as a multiple of the first.
const LONGEST_PAUSE: u32 = 8;

/// Receivers that were dropped are removed once a model has this many waiting requests, and whenever they have doubled.
const FEW: usize = 64;

/// The loads of all models.
pub(crate) struct Loads {
    /// By name, and by the scope in which requests use it: others must not learn how a load ended.
    models: BTreeMap<(String, String), ModelLoads>,
    /// The pause after the first failure.
    retry_pause: Duration,
}

#[derive(Default)]
struct ModelLoads {
    state: State,
    /// How long the last load took that succeeded.
    took: Option<Duration>,
}

#[derive(Default)]
enum State {
    /// No load is in progress, and the last one succeeded.
    #[default]
    Idle,
    Loading {
        since: Instant,
        waiting: Vec<Waiting>,
        /// The number of waiting requests at which those that were dropped are removed.
        crowded: usize,
        /// The pause before this load, if the last one failed.
        last_pause: Option<Duration>,
    },
    /// The last load failed.
    Failed { error: Error, at: Instant, pause: Duration },
}

struct Waiting {
    /// When the request waits no longer.
    until: Instant,
    wake: Sender<()>,
}

/// The answer to a request that needs a model.
pub(crate) struct Answer {
    /// Whether the caller starts the load.
    pub starts_load: bool,
    /// The receiver that wakes the request. An error if the load failed, or will not end in time.
    pub wait: Result<Receiver<()>>,
}

impl Loads {
    pub(crate) fn new(retry_pause: Duration) -> Self {
        Self { models: BTreeMap::new(), retry_pause }
    }

    /// Decides about a request that arrived some time ago and waits until `until`. A request that cannot wait still has the load
    /// started, for the next one; a request that has seen a load fail has no other one started.
    pub(crate) fn request(
        &mut self,
        name: ScopedName<'_>,
        arrived: Instant,
        now: Instant,
        until: Instant,
    ) -> Answer {
        let model = self.models.entry(key(name)).or_default();
        let starts_load = match &model.state {
            State::Loading { .. } => false,
            State::Failed { error, at, pause } if now < *at + *pause || arrived <= *at => {
                // The failure may know better when to try again.
                let own = error.retry_after().map(|seconds| Duration::from_secs(seconds.get().into()));
                let left = (*at + own.unwrap_or_default().max(*pause)).saturating_duration_since(now);
                let message = format!("model '{name}' could not be loaded for this request: {error}");
                let refused = Error::unavailable(message).with_retry_after(left);
                return Answer { starts_load: false, wait: Err(refused) };
            }
            State::Failed { .. } | State::Idle => true,
        };
        if starts_load {
            let last_pause = match model.state {
                State::Failed { pause, .. } => Some(pause),
                State::Idle | State::Loading { .. } => None,
            };
            model.state = State::Loading { since: now, waiting: Vec::new(), crowded: FEW, last_pause };
        }
        let wait = model.wait(name.name, now, until);
        Answer { starts_load, wait }
    }

    /// Begins a load that no request waits for yet. Whether the caller starts it: not while one is in progress, and not in the pause
    /// after a failure.
    pub(crate) fn schedule(&mut self, name: ScopedName<'_>, now: Instant) -> bool {
        let model = self.models.entry(key(name)).or_default();
        let last_pause = match model.state {
            State::Loading { .. } => return false,
            State::Failed { at, pause, .. } if now < at + pause => return false,
            State::Failed { pause, .. } => Some(pause),
            State::Idle => None,
        };
        model.state = State::Loading { since: now, waiting: Vec::new(), crowded: FEW, last_pause };
        true
    }

    /// A load did not happen. Its requests are woken, and begin another one.
    pub(crate) fn give_up(&mut self, name: ScopedName<'_>) {
        let Some(model) = self.models.get_mut(&key(name)) else { return };
        if let State::Loading { waiting, .. } = std::mem::take(&mut model.state) {
            for waiting in waiting {
                let _ = waiting.wake.send(());
            }
        }
    }

    /// A load has ended. Wakes its requests in the order of their arrival.
    pub(crate) fn ended(&mut self, name: ScopedName<'_>, now: Instant, outcome: &Result<()>) {
        let Some(model) = self.models.get_mut(&key(name)) else { return };
        let (since, waiting, last_pause) = match std::mem::take(&mut model.state) {
            State::Loading { since, waiting, last_pause, .. } => (since, waiting, last_pause),
            other => {
                model.state = other;
                return;
            }
        };
        match outcome {
            Ok(()) => model.took = Some(now.saturating_duration_since(since)),
            Err(error) => {
                let longest = self.retry_pause * LONGEST_PAUSE;
                let pause = last_pause.map_or(self.retry_pause, |pause| (pause * 2).min(longest));
                model.state = State::Failed { error: error.clone(), at: now, pause };
            }
        }
        for waiting in waiting {
            // A closed channel belongs to a request whose client has left.
            let _ = waiting.wake.send(());
        }
    }

    /// A load failed that began for others. One that requests wait for ends by itself.
    pub(crate) fn failed(&mut self, name: ScopedName<'_>, now: Instant, error: &Error) {
        let model = self.models.entry(key(name)).or_default();
        if matches!(model.state, State::Idle) {
            model.state = State::Failed { error: error.clone(), at: now, pause: self.retry_pause };
        }
    }

    /// Wakes requests whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        for model in self.models.values_mut() {
            let State::Loading { waiting, .. } = &mut model.state else { continue };
            for expired in waiting.extract_if(.., |waiting| waiting.until <= now) {
                let _ = expired.wake.send(());
            }
        }
    }

    /// Whether a load of the model is in progress, or its last one failed.
    pub(crate) fn is_active(&self, name: ScopedName<'_>) -> bool {
        self.models.get(&key(name)).is_some_and(|model| !matches!(model.state, State::Idle))
    }

    /// Whether the model is left alone after a failure.
    pub(crate) fn is_paused(&self, name: ScopedName<'_>, now: Instant) -> bool {
        let state = self.models.get(&key(name)).map(|model| &model.state);
        matches!(state, Some(State::Failed { at, pause, .. }) if now < *at + *pause)
    }
}

fn key(name: ScopedName<'_>) -> (String, String) {
    (name.name.to_owned(), name.scope.name().to_owned())
}

impl ModelLoads {
    /// Queues a request for the load in progress.
    fn wait(&mut self, name: &str, now: Instant, until: Instant) -> Result<Receiver<()>> {
        let State::Loading { since, waiting, crowded, .. } = &mut self.state else {
            return Err(Error::internal(format!("model '{name}' is not being loaded")));
        };
        let left = self.took.map(|took| (*since + took).saturating_duration_since(now));
        if now >= until {
            return Err(too_late(name, now.saturating_duration_since(*since), left));
        }
        if let Some(left) = left.filter(|left| now + *left > until) {
            return Err(out_of_time(name, left));
        }
        if waiting.len() >= *crowded {
            waiting.retain(|other| !other.wake.is_closed());
            *crowded = (2 * waiting.len()).max(FEW);
        }
        let (wake, woken) = channel();
        waiting.push(Waiting { until, wake });
        Ok(woken)
    }
}

/// The request has waited as long as it may. `left` is how long the load still takes, going by the last one.
fn too_late(name: &str, loading_for: Duration, left: Option<Duration>) -> Error {
    let message = format!(
        "model '{name}' is still being loaded after {:.1} s; try again later",
        loading_for.as_secs_f64()
    );
    Error::unavailable(message).with_retry_after(left.unwrap_or(loading_for))
}

/// The request would wait longer than it may.
fn out_of_time(name: &str, left: Duration) -> Error {
    let message = format!(
        "model '{name}' is being loaded for about {:.1} s more, and the request may not wait as long",
        left.as_secs_f64()
    );
    Error::unavailable(message).with_retry_after(left)
}

#[cfg(test)]
mod tests;
