//! The server's overhead on ONNX Runtime. The measurement is a benchmark of `nereid-onnxruntime`; this module fetches
//! its requirements and starts it.

use anyhow::Result;

use crate::fetch::{self, Fetch};
use crate::project::{Project, show};

/// Builds it optimised and prints its tables.
pub fn run(project: &Project) -> Result<()> {
    fetch::run(project, Fetch::Onnxruntime)?;
    fetch::run(project, Fetch::Examples)?;
    let mut bench = project.cargo(&["bench", "--package", "nereid-onnxruntime", "--bench", "overhead"]);
    show(bench.env("ORT_DYLIB_PATH", fetch::library_folder(project)))
}
