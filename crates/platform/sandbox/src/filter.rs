//! The system calls that are refused to confined processes.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::policy::{Network, Policy};
use crate::support::Error;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls by which a process reaches other processes, changes the machine, or leaves what confines it.
const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_msgget,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_semget,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_shmget,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Calls that libraries replace by others where the kernel does not have them. The operations of io_uring pass no filter, and
/// the flags of clone3 are in memory that a filter cannot read.
const ABSENT: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_io_uring_setup];

/// The bit of a call's number in the x32 interface of x86-64 kernels.
const X32: i64 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const THIS_PROCESSOR: Option<TargetArch> = Some(TargetArch::x86_64);
#[cfg(target_arch = "aarch64")]
const THIS_PROCESSOR: Option<TargetArch> = Some(TargetArch::aarch64);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const THIS_PROCESSOR: Option<TargetArch> = None;

/// Whether filters can be made for this processor.
pub(crate) fn knows_this_processor() -> bool {
    THIS_PROCESSOR.is_some()
}

/// The filters of a policy, each to be installed.
pub(crate) fn programs(policy: &Policy) -> Result<Vec<BpfProgram>, Error> {
    let Some(processor) = THIS_PROCESSOR.filter(|_| policy.is_closed()) else { return Ok(Vec::new()) };
    let program = |rules: Rules, error: i32| -> Result<BpfProgram, Error> {
        let refusal = SeccompAction::Errno(error.unsigned_abs());
        let filter =
            SeccompFilter::new(with_x32(rules, processor), SeccompAction::Allow, refusal, processor)?;
        Ok(filter.try_into()?)
    };
    let absent = ABSENT.iter().map(|call| (*call, Vec::new())).collect();
    Ok(vec![
        program(refused()?, libc::EPERM)?,
        program(sockets(policy)?, libc::EACCES)?,
        program(absent, libc::ENOSYS)?,
    ])
}

fn with_x32(mut rules: Rules, processor: TargetArch) -> Rules {
    if processor == TargetArch::x86_64 {
        let other: Vec<_> = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(other);
    }
    rules
}

fn refused() -> Result<Rules, Error> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    // A process has all privileges within a namespace of its own.
    for flag in [
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ] {
        let bit = u64::from(flag.unsigned_abs());
        let rule = SeccompRule::new(vec![condition(0, SeccompCmpOp::MaskedEq(bit), bit)?])?;
        rules.entry(libc::SYS_clone).or_default().push(rule);
    }
    // Limits and priorities of other processes.
    rules.insert(
        libc::SYS_prlimit64,
        vec![SeccompRule::new(vec![condition(0, SeccompCmpOp::Ne, 0)?, wide(2, SeccompCmpOp::Ne, 0)?])?],
    );
    rules.insert(libc::SYS_setpriority, vec![SeccompRule::new(vec![condition(1, SeccompCmpOp::Ne, 0)?])?]);
    // Input for a terminal.
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        let rule = SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, request)?])?;
        rules.entry(libc::SYS_ioctl).or_default().push(rule);
    }
    Ok(rules)
}

/// Refuses sockets that reach further than the policy allows. Pairs of connected sockets reach nothing.
fn sockets(policy: &Policy) -> Result<Rules, Error> {
    let family = |family: i32| u64::from(family.unsigned_abs());
    let refused = match policy.sockets() {
        Network::Off => Vec::new(),
        Network::Local => {
            vec![SeccompRule::new(vec![condition(0, SeccompCmpOp::Ne, family(libc::AF_UNIX))?])?]
        }
        // Sockets that address the kernel, the hypervisor or the wire rather than other machines.
        Network::On => [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_KEY, libc::AF_XDP]
            .into_iter()
            .map(|refused| Ok(SeccompRule::new(vec![condition(0, SeccompCmpOp::Eq, family(refused))?])?))
            .collect::<Result<_, Error>>()?,
    };
    Ok(BTreeMap::from([(libc::SYS_socket, refused)]))
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?)
}

fn wide(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)?)
}
