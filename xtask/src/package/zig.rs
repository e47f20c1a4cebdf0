//! Builds for machines with an older glibc: zig has the symbols of every release of glibc, and links with them.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::elf::OLDEST_GLIBC;
use crate::project::Project;
use crate::venv::Venv;

/// zig, and the command that lets cargo build with it.
const REQUIREMENTS: &str = "cargo-zigbuild==0.24.0\nziglang==0.15.2\n";

/// Links programs for a release of glibc.
pub struct Zig {
    tools: Venv,
    /// The release of glibc 2.
    pub glibc: u32,
}

impl Zig {
    /// Fetches zig, unless it is there.
    pub fn new(project: &Project, glibc: u32) -> Result<Self> {
        Ok(Self { tools: Venv::with(project, "zig", REQUIREMENTS)?, glibc })
    }

    /// `cargo build` for this compiler's platform.
    pub fn cargo(&self, project: &Project, platform: &str) -> Result<Command> {
        let mut command = project.command(self.tools.program("cargo-zigbuild"));
        command.arg("zigbuild");
        command.args(["--target", &format!("{platform}.2.{}", self.glibc)]);
        self.add_to_path(&mut command)?;
        Ok(command)
    }

    /// Lets a command find zig.
    pub fn add_to_path(&self, command: &mut Command) -> Result<()> {
        let others = env::var_os("PATH").unwrap_or_default();
        let own = self.tools.program("zig").parent().map(PathBuf::from);
        command.env("PATH", env::join_paths(own.into_iter().chain(env::split_paths(&others)))?);
        Ok(())
    }

    /// Fails if a file needs a newer glibc.
    pub fn check(&self, what: &str, needed: u32) -> Result<()> {
        if needed > self.glibc {
            bail!("{what} needs glibc 2.{needed}, but was built for 2.{}", self.glibc);
        }
        Ok(())
    }
}

/// Reads the argument `2.28`.
pub fn glibc(text: &str) -> Result<u32> {
    match text.strip_prefix("2.").map(str::parse) {
        Some(Ok(minor)) if (OLDEST_GLIBC..100).contains(&minor) => Ok(minor),
        _ => bail!("a release of glibc, from 2.{OLDEST_GLIBC} on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_of_glibc_is_a_number_that_tags_of_wheels_name() {
        for (text, expected) in [("2.17", Some(17)), ("2.28", Some(28)), ("2.41", Some(41))] {
            assert_eq!(glibc(text).ok(), expected, "{text}");
        }
        for text in ["", "2", "2.", "2.16", "2.2.5", "3.0", "28", "2.100", "2.-1", "2.28 "] {
            glibc(text).unwrap_err();
        }
    }
}
