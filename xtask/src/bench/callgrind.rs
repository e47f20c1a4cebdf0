//! Valgrind's Callgrind: counts the instructions of a process, as a whole or between two moments.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::project::{Project, show};
use crate::venv::Venv;

/// Prints the path of Debian's valgrind and the folder of its tools. Fetches its package first, unless that was done
/// before.
const FETCH: &str = "import sys; sys.path.insert(0, 'tests/end_to_end/support'); import debian_packages; \
                     program, variables = debian_packages.valgrind(); print(program, *variables.values(), sep='\\n')";

/// glibc copies in one of several ways, depending on the sizes of the processor's caches. In this one, the count of a copy
/// does not depend on them.
const TUNABLES: &str =
    "glibc.cpu.x86_rep_movsb_threshold=0x40000000:glibc.cpu.x86_non_temporal_threshold=0x40000000";

/// An installed or fetched Valgrind.
pub struct Valgrind {
    program: PathBuf,
    /// The folder of its tools, if it is not the usual one.
    library: Option<PathBuf>,
}

impl Valgrind {
    /// Finds the installed one, or else fetches Debian's package into the target folder, where it is used without being
    /// installed.
    pub fn find(project: &Project) -> Result<Self> {
        let installed = Self { program: "valgrind".into(), library: None };
        let started = installed.version().stdout(Stdio::null()).stderr(Stdio::null()).status();
        if started.is_ok_and(|status| status.success()) {
            return Ok(installed);
        }
        let python = Venv::with(project, "debian-packages", "")?;
        let output = python.command(project, &["-c", FETCH]).output().context("cannot start Python")?;
        ensure!(
            output.status.success(),
            "valgrind is needed: apt-get install valgrind\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout)?;
        let mut lines = text.lines().map(PathBuf::from);
        let program = lines.next().context("the path of valgrind is missing")?;
        Ok(Self { program, library: lines.next() })
    }

    /// A command that prints the version.
    pub fn version(&self) -> Command {
        self.command(&self.program, ["--version"])
    }

    /// Runs this command under Callgrind, which counts nothing yet. Its files go to `folder`.
    pub fn callgrind(&self, command: &Command, folder: &Path) -> Command {
        let mut counted = self.command(&self.program, ["--quiet", "--tool=callgrind", "--instr-atstart=no"]);
        counted
            .arg(format!("--callgrind-out-file={}", profile(folder).display()))
            .arg(prefix(folder))
            .arg(command.get_program())
            .args(command.get_args())
            .env("GLIBC_TUNABLES", TUNABLES);
        counted
    }

    /// The number of instructions that the process executes during `act`. Leaves the profile in `output`.
    pub fn count(
        &self,
        pid: u32,
        folder: &Path,
        output: &Path,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<u64> {
        self.control(pid, folder, "instrumentation on")?;
        act()?;
        self.control(pid, folder, "instrumentation off")?;
        self.control(pid, folder, "dump")?;
        let written = dump(folder)?;
        fs::rename(&written, output).with_context(|| format!("cannot rename {}", written.display()))?;
        let text = fs::read_to_string(output)?;
        total(&text).with_context(|| format!("no total in {}", output.display()))
    }

    /// Runs this command to its end. Returns the number of instructions that it executes, and leaves the profile in `output`.
    pub fn count_all(&self, command: &Command, output: &Path) -> Result<u64> {
        let mut counted = self.command(&self.program, ["--quiet", "--tool=callgrind"]);
        counted
            .arg(format!("--callgrind-out-file={}", output.display()))
            .arg(command.get_program())
            .args(command.get_args())
            .env("GLIBC_TUNABLES", TUNABLES);
        show(&mut counted)?;
        let text = fs::read_to_string(output)?;
        total(&text).with_context(|| format!("no total in {}", output.display()))
    }

    /// Sends a command to Callgrind in the process.
    fn control(&self, pid: u32, folder: &Path, order: &str) -> Result<()> {
        let program = self.program.with_file_name("vgdb");
        let mut vgdb = self.command(&program, [format!("--pid={pid}")]);
        let output = vgdb.arg(prefix(folder)).arg("-c").args(order.split(' ')).output();
        let output = output.with_context(|| format!("cannot start {}", program.display()))?;
        ensure!(
            output.status.success(),
            "Callgrind does not execute '{order}': {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    fn command(&self, program: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(library) = &self.library {
            command.env("VALGRIND_LIB", library);
        }
        command
    }
}

/// The option with the path of the pipes to Callgrind, which would be in `/tmp` otherwise.
fn prefix(folder: &Path) -> String {
    format!("--vgdb-prefix={}", folder.join("vgdb").display())
}

/// The profile that Callgrind writes at the end of the process. Earlier ones have a number at the end.
fn profile(folder: &Path) -> PathBuf {
    folder.join("callgrind.out")
}

/// The one profile that was written and not renamed yet.
fn dump(folder: &Path) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_stem() == Some(OsStr::new("callgrind.out")) {
            found.push(path);
        }
    }
    ensure!(found.len() == 1, "expected one profile, found {found:?}");
    Ok(found.remove(0))
}

/// The number of instructions in a profile, which has one event: instructions fetched.
fn total(profile: &str) -> Option<u64> {
    let value = |name: &str| profile.lines().rev().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if value("events:")? != "Ir" {
        return None;
    }
    value("totals:")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_the_number_at_the_end_of_a_profile() {
        let profile = "# callgrind format\nversion: 1\npid: 1\nevents: Ir\nsummary: 12\n\n\nfn=(1) main\n0 12\n\n\
                       totals: 12\n";
        assert_eq!(total(profile), Some(12));
        for (from, to) in [
            ("totals: 12", ""),
            ("totals: 12", "totals: many"),
            ("totals: 12", "totals: 12 3"),
            ("events: Ir", ""),
            ("events: Ir", "events: Ir Dr"),
        ] {
            assert_eq!(total(&profile.replace(from, to)), None, "{to:?} for {from:?}");
        }
    }

    #[test]
    fn the_profile_is_found_among_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(folder.path().join(name), "").unwrap();
        write("http-json.out");
        write("callgrind.log");
        assert!(dump(folder.path()).unwrap_err().to_string().starts_with("expected one profile"));
        write("callgrind.out.3");
        assert_eq!(dump(folder.path()).unwrap(), folder.path().join("callgrind.out.3"));
        write("callgrind.out.4");
        assert!(dump(folder.path()).is_err());
    }

    #[test]
    fn the_counted_command_keeps_its_arguments() {
        let mut command = Command::new("/bin/server");
        command.args(["--a=b c", "-d"]);
        for library in [None, Some(PathBuf::from("/tools"))] {
            let valgrind = Valgrind { program: "/usr/bin/valgrind".into(), library: library.clone() };
            let counted = valgrind.callgrind(&command, Path::new("/out"));
            let arguments: Vec<_> = counted.get_args().map(|it| it.to_str().unwrap()).collect();
            assert_eq!(arguments[arguments.len() - 3..], ["/bin/server", "--a=b c", "-d"]);
            assert!(arguments.contains(&"--callgrind-out-file=/out/callgrind.out"));
            let tools =
                counted.get_envs().find(|(name, _)| *name == "VALGRIND_LIB").and_then(|(_, value)| value);
            assert_eq!(tools, library.as_deref().map(Path::as_os_str));
        }
    }
}
