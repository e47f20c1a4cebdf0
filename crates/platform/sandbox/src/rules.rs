//! The Landlock ruleset of a policy.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};

use crate::paths;
use crate::policy::Policy;
use crate::support::Error;

/// The newest interface whose rights are handled. Rights of later ones would be refused without a rule here.
const NEWEST: ABI = ABI::V6;

/// Makes the ruleset of a policy; `None` if the kernel's Landlock cannot enforce any of it.
pub(crate) fn ruleset(
    policy: &Policy,
    kernel: ABI,
    temporary: Option<&Path>,
) -> Result<Option<OwnedFd>, Error> {
    let ruleset = if policy.is_closed() {
        closed(policy, kernel, temporary)?
    } else {
        match kernel {
            // Landlock 1 refuses to move files between folders, which valid models may do.
            ABI::Unsupported | ABI::V1 => return Ok(None),
            // No right is taken: a process in a domain of its own cannot trace processes outside.
            ABI::V2 | ABI::V3 | ABI::V4 | ABI::V5 => {
                let refer = Ruleset::default().handle_access(AccessFs::Refer)?.create()?;
                allow(refer, Path::new("/"), AccessFs::Refer.into())?
            }
            _ => Ruleset::default().scope(Scope::Signal)?.create()?,
        }
    };
    Ok(ruleset.into())
}

fn closed(policy: &Policy, kernel: ABI, temporary: Option<&Path>) -> Result<RulesetCreated, Error> {
    let read = AccessFs::from_read(NEWEST);
    let execute_none = read & !AccessFs::Execute;
    let write = AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar);
    let mut handled = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?;
    if kernel >= ABI::V6 {
        handled = handled.scope(BitFlags::from(Scope::Signal) | Scope::AbstractUnixSocket)?;
    }
    let mut ruleset = handled.create()?;
    for path in paths::PROGRAMS {
        ruleset = allow(ruleset, Path::new(path), read)?;
    }
    for path in paths::SETTINGS.iter().chain(paths::MACHINE) {
        ruleset = allow(ruleset, Path::new(path), execute_none)?;
    }
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    for path in paths::DEVICES {
        ruleset = allow(ruleset, Path::new(path), device)?;
    }
    if policy.gpus {
        for path in gpus() {
            ruleset = allow(ruleset, &path, device | AccessFs::ReadDir)?;
        }
    }
    for path in &policy.readable {
        ruleset = allow(ruleset, path, read)?;
    }
    for path in policy.writable.iter().map(PathBuf::as_path).chain(temporary) {
        ruleset = allow(ruleset, path, write)?;
    }
    Ok(ruleset)
}

/// The devices of GPUs.
fn gpus() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (folder, prefix) in paths::GPUS {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        let named = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        found.extend(named.map(|entry| entry.path()));
    }
    found
}

/// Allows access to a path and to what is below it. A path that does not exist needs no rule.
fn allow(ruleset: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, Error> {
    let Ok(opened) = PathFd::new(path) else { return Ok(ruleset) };
    let access = if is_folder(opened.as_fd())? { access } else { access & AccessFs::from_file(NEWEST) };
    Ok(ruleset.add_rule(PathBeneath::new(opened, access))?)
}

fn is_folder(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_dir())
}

/// The flag that requests the version of the interface.
const VERSION: u32 = 1;

/// The version of the kernel's interface; negative without Landlock.
pub(crate) fn version() -> i32 {
    // SAFETY: with this flag, the call takes no address.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION)
    };
    i32::try_from(version).unwrap_or(i32::MAX)
}

/// Landlock's rule of a path, as the system call takes it.
#[repr(C, packed)]
struct PathRule {
    allowed: u64,
    parent: i32,
}

/// Landlock's rules of paths.
const PATH_BENEATH: libc::c_int = 1;

/// The rights to read files and to list folders.
const READ_FILES_AND_FOLDERS: u64 = (1 << 2) | (1 << 3);

/// Allows the calling process to read its own folder of /proc, which has no name before the fork. Async-signal-safe.
pub(crate) fn allow_own_proc(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the path is terminated, and the call takes nothing else by address.
    let folder = unsafe { libc::open(c"/proc/self".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    if folder < 0 {
        // Without /proc there is nothing to read.
        return Ok(());
    }
    let rule = PathRule { allowed: READ_FILES_AND_FOLDERS, parent: folder };
    // SAFETY: the rule lives until the call returns, and the kernel only reads it. The descriptor closes on exec.
    let added = unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0_u32)
    };
    if added == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Restricts the calling thread. Async-signal-safe.
pub(crate) fn restrict(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes no addresses.
    let restricted = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if restricted == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
