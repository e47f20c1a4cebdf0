//! The kernel's features for sandboxes.

use std::io;

use landlock::ABI;

use crate::cgroups::Groups;
use crate::policy::{Level, Policy};

/// Why a process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy requires what the kernel cannot enforce.
    #[error("the sandbox is required, but {missing}")]
    Unsupported {
        /// The missing features and their consequences.
        missing: String,
    },
    /// A Landlock ruleset cannot be made.
    #[error("cannot prepare the sandbox: {0}")]
    Rules(#[from] landlock::RulesetError),
    /// A seccomp filter cannot be made.
    #[error("cannot prepare the sandbox: {0}")]
    Filter(#[from] seccompiler::BackendError),
    /// A folder or a descriptor cannot be made.
    #[error("cannot prepare the sandbox: {0}")]
    Io(#[from] io::Error),
}

/// The kernel's features for sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// The version of Landlock's interface; `Unsupported` without Landlock.
    pub landlock: ABI,
    /// Whether filters of system calls can be installed.
    pub seccomp: bool,
}

impl Support {
    /// Queries the kernel.
    pub fn detect() -> Self {
        let landlock = ABI::from(crate::rules::version());
        // The kernel lists the actions of filters only if it has filters.
        let seccomp = std::fs::exists("/proc/sys/kernel/seccomp/actions_avail").unwrap_or(false);
        Self { landlock, seccomp: seccomp && crate::filter::knows_this_processor() }
    }

    /// Features that a level needs and the kernel lacks, with their consequences, as the end of a sentence; `None` if the kernel
    /// has them all.
    pub fn missing(&self, level: Level) -> Option<String> {
        let lacks = match (level, self.landlock) {
            (Level::Off, _) => None,
            (_, ABI::Unsupported) => Some(
                "the kernel has no Landlock (Linux 5.13, with landlock among the modules of the parameter lsm): models can \
                 read the server's memory and files",
            ),
            (Level::Basic, ABI::V1) => {
                Some("the kernel's Landlock is too old (Linux 5.19): models can read the server's memory")
            }
            (Level::On | Level::Required, ABI::V1 | ABI::V2) => {
                Some("the kernel's Landlock is too old (Linux 6.2): models can truncate files")
            }
            (_, ABI::V2 | ABI::V3 | ABI::V4 | ABI::V5) => {
                Some("the kernel's Landlock is too old (Linux 6.12): models can signal other processes")
            }
            _ => None,
        };
        let filters = (level >= Level::On && !self.seccomp)
            .then_some("the kernel has no seccomp filters: models can use the network");
        let missing: Vec<_> = lacks.into_iter().chain(filters).collect();
        (!missing.is_empty()).then(|| missing.join(", and "))
    }

    /// Why the limit of processors of a policy cannot be enforced, as the end of a sentence; `None` if it can or if the policy has
    /// none. The first limit may move the server to another control group.
    pub fn missing_limit(policy: &Policy) -> Option<String> {
        let cpus = policy.cpus.filter(|_| policy.level > Level::Off)?;
        let reason = match Groups::get() {
            Ok(groups) => groups.missing_cpus()?,
            Err(reason) => reason.to_owned(),
        };
        Some(format!("{reason}: models can use more than {cpus} processors"))
    }

    /// Checks that the kernel can enforce a policy.
    ///
    /// # Errors
    /// The policy is [required](Level::Required), and the kernel cannot enforce all of it.
    pub(crate) fn check(self, policy: &Policy) -> Result<(), Error> {
        let limit = || Self::missing_limit(policy).filter(|_| policy.level == Level::Required);
        match self.missing(policy.level).or_else(limit) {
            Some(missing) if policy.level == Level::Required => Err(Error::Unsupported { missing }),
            _ => Ok(()),
        }
    }
}
