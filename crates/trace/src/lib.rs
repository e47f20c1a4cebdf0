//! Where traces of requests go: into files, in the form of Triton's.
//!
//! Knows neither which requests are traced, nor how they came, nor who executes them.

#![forbid(unsafe_code)]

mod clock;
mod file;
mod tensor_text;

pub use file::TraceFiles;
