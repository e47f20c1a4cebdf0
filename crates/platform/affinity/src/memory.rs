//! The one system call that our libraries lack: the NUMA node of a thread's memory.

use std::ffi::{c_int, c_long, c_ulong};
use std::io;

/// Nodes are bits of a word.
pub(crate) const MOST_NODES: u32 = c_ulong::BITS;

/// Has the calling thread get memory of that node alone. `node` is below [`MOST_NODES`].
///
/// # Errors
/// There is no such node, or the process may not choose.
pub(crate) fn bind(node: u32) -> io::Result<()> {
    let mask: c_ulong = 1 << node;
    let mode: c_long = c_int::from(libc::MPOL_BIND).into();
    // The kernel reads one bit less than the given number.
    let bits = c_ulong::from(MOST_NODES + 1);
    // SAFETY: the call reads so many bits, all of which are in the mask; it changes nothing but where this thread's
    // memory will come from.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, &raw const mask, bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
