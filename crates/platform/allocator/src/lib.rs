//! Memory: an allocator for a server, and a thread that releases unused memory.
//!
//! [`Heap`] keeps large blocks for the next requests: with glibc's allocator, tensors of a mebibyte were placed in
//! new pages each time, which the system must clear, and that took 30 % of the CPU time of their requests. Small
//! blocks come from mimalloc, because they are often freed on other threads than they were allocated on, which costs
//! a lock in glibc.
//!
//! Every few seconds, the thread of [`release_freed_memory`] returns the large blocks that were not needed. Both
//! other allocators keep most freed memory, so that a server would stay as large as its largest burst of requests
//! made it: mimalloc until the allocating thread allocates again, and glibc's, which the libraries of backends use,
//! forever if the memory lies between used blocks. The thread therefore makes both release it. Allocating and freeing
//! count nothing.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod blocks;

use std::time::Duration;

pub use self::blocks::Heap;

/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The smallest amount worth releasing, in bytes.
const WORTHWHILE: usize = 8 << 20;

/// The memory of the process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Resident memory.
    resident: usize,
    /// Free memory that the allocator holds. Some of it may have been released already.
    free: usize,
}

/// Decides when memory is released.
#[derive(Debug, Default)]
struct Policy {
    /// The lowest values since memory was last released.
    least: Usage,
}

impl Policy {
    /// Whether much memory was freed since the last release.
    fn is_worthwhile(&mut self, now: Usage) -> bool {
        let grown =
            now.free > self.least.free + WORTHWHILE || now.resident > self.least.resident + WORTHWHILE;
        self.least.free = self.least.free.min(now.free);
        self.least.resident = self.least.resident.min(now.resident);
        grown && now.free > WORTHWHILE
    }

    /// Records a release.
    fn released(&mut self, now: Usage) {
        self.least = now;
    }
}

/// Releases freed memory periodically, on a separate thread, for the life of the process.
///
/// # Errors
/// The thread cannot be started.
pub fn release_freed_memory() -> std::io::Result<()> {
    blocks::limit_pages_of_threads();
    let mut policy = glibc::usage().map(|usage| Policy { least: usage });
    std::thread::Builder::new().name("nereid-allocator".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(CHECK_INTERVAL);
            blocks::release_spare();
            blocks::release_small();
            let (Some(policy), Some(usage)) = (&mut policy, glibc::usage()) else { continue };
            if policy.is_worthwhile(usage) {
                glibc::release();
                policy.released(glibc::usage().unwrap_or(usage));
            }
        }
    })?;
    Ok(())
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use super::Usage;

    /// The memory of the process; `None` if it is unknown.
    pub(super) fn usage() -> Option<Usage> {
        let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
        let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(Usage { resident: pages.saturating_mul(rustix::param::page_size()), free: free() })
    }

    /// Freed memory that glibc has not returned to the system, in bytes.
    fn free() -> usize {
        type Mallinfo2 = unsafe extern "C" fn() -> libc::mallinfo2;
        // Looked up at run time, because a program that is linked with it would not start with a glibc older than 2.33.
        // SAFETY: the name ends with a zero.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
        // SAFETY: null or this function of glibc.
        match unsafe { std::mem::transmute::<*mut libc::c_void, Option<Mallinfo2>>(function) } {
            // SAFETY: the function takes no arguments, and locks each arena while it reads it.
            Some(mallinfo2) => unsafe { mallinfo2() }.fordblks,
            None => free_below_4_gib(),
        }
    }

    /// Freed memory modulo 4 GiB, which every glibc counts: a number that is too low only delays a release.
    pub(super) fn free_below_4_gib() -> usize {
        // SAFETY: as for `mallinfo2`.
        unsafe { libc::mallinfo() }.fordblks.cast_unsigned() as usize
    }

    /// Releases unused pages.
    pub(super) fn release() {
        // SAFETY: the function may be called at any time, from any thread; it touches free memory only.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod glibc {
    use super::Usage;

    /// Unknown: another allocator is in use.
    pub(super) fn usage() -> Option<Usage> {
        None
    }

    /// Does nothing.
    pub(super) fn release() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Which of these checks (resident and free memory, in MiB) release memory, with the resident memory afterwards.
    fn releases(checks: &[(usize, usize, usize)]) -> Vec<bool> {
        let usage = |resident: usize, free: usize| Usage { resident: resident * MIB, free: free * MIB };
        let mut policy = Policy { least: usage(30, 2) };
        let mut check = |&(resident, free, left): &(usize, usize, usize)| {
            let worthwhile = policy.is_worthwhile(usage(resident, free));
            if worthwhile {
                policy.released(usage(left, free));
            }
            worthwhile
        };
        checks.iter().map(&mut check).collect()
    }

    #[test]
    fn memory_is_released_once_after_each_burst() {
        for (what, checks, expected) in [
            ("nothing happens", vec![(30, 2, 30), (40, 8, 40)], vec![false, false]),
            ("a burst that is over", vec![(800, 770, 30), (30, 770, 30)], vec![true, false]),
            ("a burst under way, and after it", vec![(800, 5, 800), (800, 770, 30)], vec![false, true]),
            ("released while it goes on", vec![(800, 100, 700), (700, 770, 30)], vec![true, true]),
            ("two bursts", vec![(800, 770, 30), (800, 770, 30)], vec![true, true]),
            ("models were loaded", vec![(2000, 5, 2000), (2000, 7, 2000)], vec![false, false]),
            ("steady use", vec![(200, 70, 130), (132, 66, 130), (135, 72, 130)], vec![true, false, false]),
        ] {
            assert_eq!(releases(&checks), expected, "{what}");
        }
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn memory_freed_between_used_pieces_is_released() {
        // Pieces too small to be mapped individually, one in 64 of them kept.
        let pieces: Vec<Vec<u8>> = (0..8192).map(|_| vec![1; 32 << 10]).collect();
        let kept: Vec<_> = pieces.into_iter().step_by(64).collect();
        let before = glibc::usage().unwrap();
        assert!(before.free > 200 * MIB, "{before:?}");
        // What is read with a glibc older than 2.33.
        assert!(glibc::free_below_4_gib().abs_diff(before.free) < 4 * MIB, "{before:?}");
        glibc::release();
        let after = glibc::usage().unwrap();
        assert!(after.resident + 200 * MIB < before.resident, "{before:?} {after:?}");
        drop(kept);
    }
}
