//! Locates the repository and its build output, and runs commands in it.
//!
//! The commands themselves are defined elsewhere.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

/// The checkout that the command was called in.
pub struct Project {
    /// The folder of the workspace's `Cargo.toml`.
    pub root: PathBuf,
    /// Cargo's output folder, `CARGO_TARGET_DIR` respected.
    pub target: PathBuf,
}

impl Project {
    /// Asks cargo, so that every way of setting the target folder counts.
    pub fn find() -> Result<Self> {
        let metadata = MetadataCommand::new()
            .no_deps()
            .exec()
            .context("cannot find the workspace; call this inside it")?;
        Ok(Self {
            root: metadata.workspace_root.into_std_path_buf(),
            target: metadata.target_directory.into_std_path_buf(),
        })
    }

    /// The whole dependency graph with every feature of the workspace's crates switched on.
    pub fn metadata(&self) -> Result<Metadata> {
        MetadataCommand::new()
            .current_dir(&self.root)
            .features(cargo_metadata::CargoOpt::AllFeatures)
            .exec()
            .context("cargo metadata failed")
    }

    /// This tool's own corner of the target folder.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.target.join("xtask").join(name)
    }

    /// A command to be run in the root.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(&self.root);
        // `cargo run` describes this package in the environment. A build script that watches such a variable
        // would otherwise run again after every change between xtask and plain cargo.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command
    }

    /// The cargo that started us, to be run in the root.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command =
            self.command(env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from));
        command.args(arguments);
        command
    }
}

/// The compiler.
pub fn rustc() -> OsString {
    env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

/// Prints a command line, then runs it with its output shown.
pub fn show(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// The command as one would type it, the program without its folder.
pub fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_in_the_error() {
        let error = show(Command::new("/bin/sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().starts_with("`sh -c exit 3` failed"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named_in_the_error() {
        let error = show(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().contains("cannot start `no-such-program-here`"), "{error}");
    }

    #[test]
    fn the_root_is_the_folder_of_the_workspace_manifest() {
        let project = Project::find().unwrap();
        let manifest = std::fs::read_to_string(project.root.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }
}
