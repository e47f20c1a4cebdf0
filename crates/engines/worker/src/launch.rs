//! How a process is started: what runs, where its output goes, and what it inherits.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nereid_sandbox::{Confinement, Policy, Sandbox, inherit};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// By how much the system prefers to end a model's process rather than the server when memory runs out, of 1000. The server starts
/// the process again.
const OOM_PREFERENCE: i32 = 500;

/// A program to run an instance in.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// The program's arguments.
    pub arguments: Vec<OsString>,
    /// Variables of its environment to set, or to remove. It inherits the others.
    pub variables: Vec<(OsString, Option<OsString>)>,
    /// Descriptors that it inherits, under the same numbers.
    pub inherited: Vec<Arc<OwnedFd>>,
    /// The policy of the sandbox.
    pub policy: Policy,
}

/// A process that was started.
pub(crate) struct SpawnedProcess {
    pub child: Child,
    pub pid: Pid,
    /// Becomes readable when the process ends.
    pub ended: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Resources of the sandbox, kept until the process has ended.
    pub confinement: Confinement,
}

impl Launch {
    /// Starts the process, with a socket as its standard input. In a process group of its own, so that an interrupt at the
    /// server's terminal does not reach it, and what it starts can be killed with it.
    pub(crate) fn spawn(&self, socket: OwnedFd) -> io::Result<SpawnedProcess> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).process_group(0);
        command.stdin(Stdio::from(socket)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let sandbox = Sandbox::prepare(&self.policy).map_err(io::Error::other)?;
        let mut confinement = sandbox.confine(&mut command);
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        for descriptor in &self.inherited {
            inherit(&mut command, Arc::clone(descriptor));
        }
        let mut child = command.spawn()?;
        confinement.hold(child.id());
        prefer_when_memory_runs_out(child.id());
        match Self::watch(&mut child) {
            Ok((pid, ended, stdout, stderr)) => {
                Ok(SpawnedProcess { child, pid, ended, stdout, stderr, confinement })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn watch(child: &mut Child) -> io::Result<(Pid, OwnedFd, OwnedFd, OwnedFd)> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process has no id"))?;
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        let missing = || io::Error::other("the process has no output");
        let stdout = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
        let stderr = OwnedFd::from(child.stderr.take().ok_or_else(missing)?);
        ioctl_fionbio(&stdout, true)?;
        ioctl_fionbio(&stderr, true)?;
        Ok((pid, ended, stdout, stderr))
    }
}

/// Raises a process's `oom_score_adj` above the server's own, as every user may. Without `/proc`, all processes stay equal.
fn prefer_when_memory_runs_out(process: u32) {
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    let score = own.unwrap_or(0_i32).saturating_add(OOM_PREFERENCE).min(1000);
    if let Err(error) = fs::write(format!("/proc/{process}/oom_score_adj"), score.to_string()) {
        tracing::debug!("cannot set oom_score_adj of process {process}: {error}");
    }
}
