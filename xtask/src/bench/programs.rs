//! The programs that measurements run, as release builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::project::{Project, show};

/// The server to measure: the given binary, or one that is built now.
pub fn nereid(project: &Project, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(binary) = given {
        return Ok(binary.to_owned());
    }
    show(&mut project.cargo(&["build", "--release", "-p", "nereid-cli"]))?;
    Ok(project.target.join("release/nereid"))
}

/// The load generator for gRPC.
pub fn traffic(project: &Project) -> Result<PathBuf> {
    show(&mut project.cargo(&["build", "--release", "-p", "nereid-grpc", "--example", "traffic"]))?;
    Ok(project.target.join("release/examples/traffic"))
}

/// The programs whose instructions are counted, and that cause the load.
pub struct Guarded {
    /// The server with the identity backend alone.
    pub identity: PathBuf,
    pub traffic: PathBuf,
}

/// Builds them in one command, which compiles what they share once.
pub fn guarded(project: &Project) -> Result<Guarded> {
    let packages = ["--package", "nereid-kserve", "--package", "nereid-grpc"];
    let examples = ["--example", "identity", "--example", "traffic"];
    show(project.cargo(&["build", "--release"]).args(packages).args(examples))?;
    let folder = project.target.join("release/examples");
    Ok(Guarded { identity: folder.join("identity"), traffic: folder.join("traffic") })
}

/// The processors of the server and of the load, where they share none.
pub const SERVER_CORE: u32 = 0;
pub const LOAD_CORE: u32 = 1;

/// Pins the command to a processor, if given. Keeps arguments and environment.
pub fn on_core(command: Command, core: Option<u32>) -> Command {
    let Some(core) = core else { return command };
    let mut limited = Command::new("taskset");
    limited.args(["--cpu-list", &core.to_string()]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_on_core_keeps_arguments_and_environment() {
        for core in [None, Some(0)] {
            let mut command = Command::new("sh");
            command.args(["-c", "echo $A $1; grep Cpus_allowed_list /proc/self/status", "sh", "b c"]);
            let output = on_core(command, core).env("A", "a").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let (first, allowed) = text.split_once('\n').unwrap();
            assert_eq!(first, "a b c");
            if core.is_some() {
                assert_eq!(allowed.split_whitespace().last(), Some("0"));
            }
        }
    }
}
