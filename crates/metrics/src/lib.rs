//! The metrics face: all that a server counts, in the text form of Prometheus, at `/metrics` of a port of its own.
//!
//! Nothing is counted here. When somebody asks, the counters that the server keeps anyway are read; a request for inference
//! never waits for that, and takes no longer because of it. Names, help texts and labels are the reference's, so that its
//! dashboards go on working.

#![forbid(unsafe_code)]

mod custom;
mod exposition;
mod gpu;
mod machine;
mod models;
mod nvml;
mod service;
mod text;

pub use exposition::{Exposition, MetricsOptions, PinnedMemory};
pub use service::{Metrics, TRANSPORT};

#[cfg(test)]
mod tests;
