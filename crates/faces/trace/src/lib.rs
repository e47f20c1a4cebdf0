//! Trace sinks: files in Triton's format (`file.rs`), and OpenTelemetry collectors (`collector.rs`).
//!
//! Knows neither which requests are traced, nor protocols, nor backends.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod clock;
mod collector;
mod file;
mod tensor_text;

pub use collector::{Collector, CollectorOptions};
pub use file::TraceFiles;
