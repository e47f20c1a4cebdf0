//! Which models are in memory: models that are loaded for their requests.
//!
//! The server asks [`ResidencyManager`] about requests whose model is not served, and about nothing else: a request to a loaded
//! model costs what it costs without this crate.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod loads;
mod manager;
mod parameters;

pub use manager::ResidencyManager;

use std::time::Duration;

/// How models come into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidencyOptions {
    /// Whether every model is loaded on demand, instead of those only whose configuration says so.
    pub all_on_demand: bool,
    /// How long a request waits for the load of its model at most.
    pub wait: Duration,
    /// How long a model whose load failed is left alone. Each further failure doubles the pause, up to eight times this.
    pub retry_pause: Duration,
}

impl Default for ResidencyOptions {
    fn default() -> Self {
        Self { all_on_demand: false, wait: Duration::from_secs(60), retry_pause: Duration::from_secs(10) }
    }
}
