//! The only system call that our libraries lack: the NUMA node of a thread's memory.

use std::ffi::{c_int, c_long, c_ulong};
use std::io;

/// The mask of nodes is one word.
pub(crate) const MOST_NODES: u32 = c_ulong::BITS;

/// Restricts the calling thread's memory to this node. `node` is below [`MOST_NODES`].
///
/// # Errors
/// The node does not exist, or the process may not choose one.
pub(crate) fn bind(node: u32) -> io::Result<()> {
    let mask: c_ulong = 1 << node;
    let mode: c_long = c_int::from(libc::MPOL_BIND).into();
    // The kernel reads one bit less than the passed number.
    let bits = c_ulong::from(MOST_NODES + 1);
    // SAFETY: the call reads this many bits, all of which are in the mask; it only changes where this thread's future
    // memory comes from.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, &raw const mask, bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
