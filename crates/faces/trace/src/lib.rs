//! Where traces go: into files in Triton's format (`file.rs`), or to an OpenTelemetry collector (`collector.rs`).
//!
//! Knows neither which requests are traced, nor protocols, nor backends.

#![forbid(unsafe_code)]

mod clock;
mod collector;
mod file;
mod tensor_text;

pub use collector::{Collector, CollectorOptions};
pub use file::TraceFiles;
