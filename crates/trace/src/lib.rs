//! Where traces of requests go: into files, in the form of Triton's (`file.rs`), or to a collector of OpenTelemetry's
//! (`collector.rs`).
//!
//! Knows neither which requests are traced, nor how they came, nor who executes them.

#![forbid(unsafe_code)]

mod clock;
mod collector;
mod file;
mod tensor_text;

pub use collector::{Collector, CollectorOptions};
pub use file::TraceFiles;
