//! Applies a sandbox in a child between fork and exec.

use std::env::temp_dir;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nereid_private_folders::PrivateFolder;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, clear_ambient_capability_set, remove_capability_from_bounding_set};
use seccompiler::BpfProgram;
use tempfile::TempDir;

use crate::cgroups::{Group, Groups, Limits};
use crate::policy::{Level, Policy};
use crate::support::{Error, Support};
use crate::{filter, rules, variables};

/// The prefix of the folders of processes, in the system's folder for temporary files.
const PREFIX: &str = "nereid-model-";

/// Variables that name the folder for temporary files.
const FOLDERS: [&str; 3] = ["TMPDIR", "TMP", "TEMP"];

/// A sandbox for one process.
#[derive(Debug)]
pub struct Sandbox {
    rules: Option<OwnedFd>,
    filters: Vec<BpfProgram>,
    limits: Vec<(Resource, u64)>,
    /// The file by which the process enters its control group.
    pub(crate) entrance: Option<OwnedFd>,
    /// Variables of the server that the process does not inherit.
    variables: Vec<OsString>,
    /// Whether the folder for temporary files is also the user's.
    moves_home: bool,
    level: Level,
    confinement: Confinement,
}

/// Resources of a confined process. Keep them until the process has ended.
#[derive(Debug, Default)]
pub struct Confinement {
    temporary: Option<Temporary>,
    /// The control group with the limit of processors.
    _group: Option<Group>,
    own_proc: Option<OwnedFd>,
}

/// A folder for temporary files. Its parent has the lock by which a later server recognises that this one lives, out of the
/// process's reach.
#[derive(Debug)]
struct Temporary {
    files: TempDir,
    _locked: PrivateFolder,
}

impl Temporary {
    fn new(parent: &Path) -> io::Result<Self> {
        let locked = PrivateFolder::new(parent, PREFIX)?;
        Ok(Self { files: locked.folder()?, _locked: locked })
    }
}

/// Removes the folders for temporary files of processes whose server was killed.
pub fn remove_left_over_folders() {
    PrivateFolder::remove_left_over(&temp_dir(), PREFIX);
}

impl Confinement {
    /// The process's own folder for temporary files, if it has one. It is removed when this is dropped.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_ref().map(|temporary| temporary.files.path())
    }

    /// Keeps the rule valid that lets the process read its own folder of /proc: the kernel may otherwise forget the folder that
    /// the rule is about. To be called once the process runs.
    pub fn hold(&mut self, process: u32) {
        if self.temporary.is_some() {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
            self.own_proc =
                rustix::fs::open(format!("/proc/{process}"), flags, rustix::fs::Mode::empty()).ok();
        }
    }
}

impl Sandbox {
    /// Prepares the sandbox of a policy.
    ///
    /// # Errors
    /// The policy is required and the kernel cannot enforce it, or resources are missing.
    pub fn prepare(policy: &Policy) -> Result<Self, Error> {
        Self::prepare_on(policy, Support::detect())
    }

    pub(crate) fn prepare_on(policy: &Policy, support: Support) -> Result<Self, Error> {
        support.check(policy)?;
        let mut sandbox = Self {
            rules: None,
            filters: Vec::new(),
            limits: Vec::new(),
            entrance: None,
            variables: Vec::new(),
            moves_home: !policy.variables.iter().any(|name| name == "HOME"),
            level: policy.level,
            confinement: Confinement::default(),
        };
        if policy.level == Level::Off {
            return Ok(sandbox);
        }
        if policy.is_closed() {
            sandbox.confinement.temporary = Some(Temporary::new(&temp_dir())?);
            sandbox.variables =
                variables::withheld(std::env::vars_os().map(|(name, _)| name), &policy.variables);
            // A core file would have contents of the process outside its folders.
            sandbox.limits.push((Resource::Core, 0));
        }
        // RLIMIT_AS would count what CUDA and sanitizers reserve and never use.
        sandbox.limits.extend(policy.memory.map(|bytes| (Resource::Data, bytes)));
        let limits = Limits { cpus: policy.cpus, memory: policy.memory };
        if limits != Limits::default()
            && let Ok(groups) = Groups::get()
        {
            let group = match groups.create(limits) {
                // The limit of each process remains.
                Err(_) if limits.cpus.is_none() => None,
                made => made?,
            };
            sandbox.entrance = group.as_ref().map(Group::entrance).transpose()?;
            sandbox.confinement._group = group;
        }
        sandbox.rules = rules::ruleset(policy, support.landlock, sandbox.confinement.temporary())?;
        if support.seccomp {
            sandbox.filters = filter::programs(policy)?;
        }
        Ok(sandbox)
    }

    /// Has a command apply the sandbox before it becomes its program, and sets its variables: those that are set on the command
    /// later stay. Kept for as long as the process runs, the result keeps what the process needs.
    #[must_use]
    pub fn confine(self, command: &mut Command) -> Confinement {
        let Self { rules, filters, limits, entrance, variables, moves_home, level, confinement } = self;
        for name in variables {
            command.env_remove(name);
        }
        if let Some(folder) = confinement.temporary() {
            for name in FOLDERS {
                command.env(name, folder);
            }
            if moves_home {
                // Libraries expect files of theirs in the user's folder to be missing or readable.
                command.env("HOME", folder);
            }
        }
        if level == Level::Off {
            return confinement;
        }
        let apply = move || {
            if let Some(entrance) = &entrance {
                // 0 is the process that writes.
                rustix::io::write(entrance, b"0")?;
            }
            for (resource, most) in &limits {
                lower(*resource, *most)?;
            }
            drop_capabilities(level);
            rustix::thread::set_no_new_privs(true)?;
            if let Some(rules) = &rules {
                if level >= Level::On {
                    rules::allow_own_proc(rules.as_fd())?;
                }
                rules::restrict(rules.as_fd())?;
            }
            for filter in &filters {
                seccompiler::apply_filter(filter).map_err(|_| io::Error::last_os_error())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made. Everything they take was allocated before, and errors of
        // the system are not allocated.
        unsafe { command.pre_exec(apply) };
        confinement
    }
}

/// Capabilities that a superuser's process keeps from [`Level::On`] on: access to the files that the rules allow, regardless of their
/// owner.
const KEPT: [CapabilitySet; 2] = [CapabilitySet::DAC_OVERRIDE, CapabilitySet::DAC_READ_SEARCH];

/// Capabilities that reach the memory of other processes in spite of Landlock, which no level leaves to a superuser's process: the
/// kernel's memory, code in the kernel, and `/proc/<pid>/environ`, which Linux opens to `PERFMON` and `SYS_ADMIN` without asking
/// Landlock (`may_access_mm` in kernel/fork.c).
const REACHING: [CapabilitySet; 6] = [
    CapabilitySet::BPF,
    CapabilitySet::PERFMON,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_BOOT,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
];

/// Takes capabilities from the program that the calling process becomes. Async-signal-safe.
fn drop_capabilities(level: Level) {
    let is_kept = |capability: &CapabilitySet| match level {
        Level::Off => true,
        Level::Basic => !REACHING.contains(capability),
        Level::On | Level::Required => KEPT.contains(capability),
    };
    for capability in CapabilitySet::all().iter().filter(|capability| !is_kept(capability)) {
        // Fails for users who have none.
        let _ = remove_capability_from_bounding_set(capability);
    }
    if level >= Level::On {
        let _ = clear_ambient_capability_set();
    }
}

/// Lowers a limit of the calling process. Async-signal-safe.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let lowered = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    setrlimit(resource, Rlimit { current: lowered(now.current), maximum: lowered(now.maximum) })?;
    Ok(())
}

/// Has a command's process inherit a descriptor, under the same number.
pub fn inherit(command: &mut Command, descriptor: Arc<OwnedFd>) {
    let keep = move || {
        // SAFETY: the call takes no addresses, and the descriptor is open: the closure holds it.
        match unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec one system call is made.
    unsafe { command.pre_exec(keep) };
}
