//! The programs that measurements run, as release builds.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::project::{Project, show};

/// The server to measure: the given binary, or one that is built now.
pub fn nereid(project: &Project, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(binary) = given {
        return Ok(binary.to_owned());
    }
    show(&mut project.cargo(&["build", "--release", "-p", "nereid"]))?;
    Ok(project.target.join("release/nereid"))
}

/// The load generator for gRPC.
pub fn traffic(project: &Project) -> Result<PathBuf> {
    show(&mut project.cargo(&["build", "--release", "-p", "nereid-grpc", "--example", "traffic"]))?;
    Ok(project.target.join("release/examples/traffic"))
}
