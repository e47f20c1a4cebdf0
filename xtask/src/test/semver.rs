//! Changes of the crates for other programs that would break these programs, found by cargo-semver-checks.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::project::{Project, show};

/// The version to build if none is installed.
const TOOL: &str = "0.51.0";

/// The commit to compare with: the last release or, before the first one, the last reviewed change that breaks programs.
const BASELINE: &str = "7b67eadf6ca32eb9320fe1b6e49be98e1a25b16f";

/// Fails if the interfaces of these crates do not fit programs for the baseline.
pub fn run(project: &Project, names: &[&str]) -> Result<()> {
    let program = find(project)?;
    let mut check = project.command(&program);
    check.args(["semver-checks", "--baseline-rev", BASELINE]).args(names);
    show(&mut check).context(
        "the crates no longer fit programs that use them: keep the old interface, or raise the version and set BASELINE in \
         xtask/src/test/semver.rs to this change",
    )
}

/// The installed program, or one that is built once.
fn find(project: &Project) -> Result<PathBuf> {
    let installed = PathBuf::from("cargo-semver-checks");
    if works(&installed) {
        return Ok(installed);
    }
    let folder = project.scratch("cargo-semver-checks");
    let own = folder.join("bin/cargo-semver-checks");
    if !works(&own) {
        let mut install = project.cargo(&["install", "--locked", "cargo-semver-checks", "--version", TOOL]);
        // Half the time to build, and no difference for crates as small.
        install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_LTO", "off");
        show(install.arg("--root").arg(&folder))?;
    }
    Ok(own)
}

fn works(program: &PathBuf) -> bool {
    let mut version = Command::new(program);
    version.args(["semver-checks", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
