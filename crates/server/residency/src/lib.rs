//! Which models are in memory: models that are loaded for their requests or by a schedule, and leave when they are idle or memory is
//! short.
//!
//! [`ResidencyManager`] decides about requests whose model is not served, and about no others: a request to a loaded model costs
//! what it costs without this crate.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod amounts;
mod content;
mod gpus;
mod growth;
mod idleness;
mod loads;
mod manager;
mod memory;
mod parameters;
mod policy;
mod prefetch;
mod queue;
mod recording;
mod records;
mod rooms;
mod schedule;
mod served;
mod sizes;
mod timetable;

pub use gpus::{GpuReader, GpuUse};
pub use manager::ResidencyManager;
pub use parameters::PARAMETERS;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How models come into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidencyOptions {
    /// Loads every model on demand. Otherwise only models with the parameter `load_on_demand` are.
    pub all_on_demand: bool,
    /// How long a request waits for the load of its model at most.
    pub wait: Duration,
    /// How long a model whose load failed is left alone. Each further failure doubles the pause, up to eight times this.
    pub retry_pause: Duration,
    /// Bytes that models may take in memory; `None` for no limit.
    pub memory_budget: Option<u64>,
    /// Bytes of the memory of GPUs, by their numbers, that models may take; others have no limit.
    pub gpu_memory_budgets: BTreeMap<i32, u64>,
    /// How many models may leave in a minute to make room for others.
    pub evictions_a_minute: usize,
    /// The time without requests after which a model leaves the memory; `None` for never.
    pub idle_timeout: Option<Duration>,
    /// The folder that keeps across restarts what models took when they were loaded; `None` keeps nothing.
    pub records: Option<PathBuf>,
}

impl Default for ResidencyOptions {
    fn default() -> Self {
        Self {
            all_on_demand: false,
            wait: Duration::from_secs(60),
            retry_pause: Duration::from_secs(10),
            memory_budget: None,
            gpu_memory_budgets: BTreeMap::new(),
            evictions_a_minute: 60,
            idle_timeout: None,
            records: None,
        }
    }
}
