//! The metrics face: everything the server counts, in Prometheus text format, at `/metrics` of a separate port.
//!
//! This crate counts nothing: a scrape reads counters that the server keeps anyway, and inference requests never wait
//! for it. Names and labels are Triton's, so that its dashboards keep working.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod cache;
mod custom;
mod exposition;
mod gpu;
mod machine;
mod memory;
mod models;
mod nvml;
mod principals;
mod releases;
mod repositories;
mod service;
mod text;

pub use cache::{ResponseCacheFill, ResponseCacheMetrics};
pub use exposition::{AuditEvents, Exposition, MetricsOptions, PinnedMemory};
pub use gpu::Reading as GpuReading;
pub use memory::VersionMemory;
pub use principals::PrincipalMetrics;
pub use repositories::RemoteRepository;
pub use service::{Metrics, TRANSPORT, routes};

#[cfg(test)]
mod tests;
