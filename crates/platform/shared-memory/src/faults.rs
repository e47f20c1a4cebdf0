//! Handles SIGBUS, which the kernel raises when mapped memory is touched whose file was truncated, and which would end
//! the process. The handler maps a page of zeroes there and marks the mapping as broken, which its user checks
//! afterwards. Any other SIGBUS goes to the previous handler.
//!
//! The handler belongs to the process, so the process's owner installs it: [`FaultHandler::install`].
//!
//! A handler may interrupt anything, so it takes no lock and allocates nothing: it reads a fixed table of atomics and
//! makes one system call.

use std::io;
use std::mem::{transmute, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::param::page_size;

/// Maximum number of mappings.
pub(crate) const MAX_MAPPINGS: usize = 16 * 1024;

struct Entry {
    /// First address; 0 if the entry is free.
    start: AtomicUsize,
    /// The address after the last.
    end: AtomicUsize,
    broken: AtomicBool,
}

static TABLE: [Entry; MAX_MAPPINGS] = [const {
    Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), broken: AtomicBool::new(false) }
}; MAX_MAPPINGS];

/// Indices of free entries, and the number of entries ever used.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// The high-water mark, for the handler.
static USED: AtomicUsize = AtomicUsize::new(0);

static PAGE: AtomicUsize = AtomicUsize::new(0);

/// The previous SIGBUS handler.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// The process's handler of SIGBUS. Holding one proves that it is installed.
#[derive(Clone, Copy, Debug)]
pub struct FaultHandler(());

impl FaultHandler {
    /// Installs the handler, once for the process. A SIGBUS outside registered regions goes to the handler that was
    /// installed before.
    ///
    /// # Errors
    /// The system's error.
    pub fn install() -> io::Result<Self> {
        install().map(|()| Self(()))
    }
}

/// Watches a mapping until dropped. Drop it before the memory is unmapped.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Watches `length` bytes from `start`.
    ///
    /// # Errors
    /// There are too many mappings.
    pub(crate) fn new(_: FaultHandler, start: usize, length: usize) -> io::Result<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match free.0.pop() {
            Some(place) => place,
            None if free.1 < MAX_MAPPINGS => {
                free.1 += 1;
                USED.store(free.1, Ordering::Release);
                free.1 - 1
            }
            None => {
                return Err(io::Error::other(format!(
                    "{MAX_MAPPINGS} regions are registered already, the maximum"
                )));
            }
        };
        let entry = &TABLE[place];
        entry.broken.store(false, Ordering::Relaxed);
        entry.end.store(start + length, Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Ok(Self(place))
    }

    /// Whether memory past the end of the truncated file was touched.
    pub(crate) fn is_broken(&self) -> bool {
        TABLE[self.0].broken.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        TABLE[self.0].start.store(0, Ordering::Release);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.0);
    }
}

/// Sets the handler, once for the process.
fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    PAGE.store(page_size(), Ordering::Release);
    // SAFETY: an all-zero sigaction is a valid value of this plain C structure.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // This field holds a function's address; with SA_SIGINFO, that of a function with three arguments.
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_bus;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both pointers are to valid structures; without a new action, the call only reports the current one. That one
    // is stored before ours is set, because ours reads it.
    unsafe {
        let mut before: libc::sigaction = zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = PREVIOUS.set(before);
        if libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_bus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel calls a handler that is set with SA_SIGINFO with a valid siginfo, whose address is set for SIGBUS.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && mend(address) {
        return;
    }
    pass_on(signal, info, context);
}

/// Maps zeroes over missing memory of a mapping. Returns whether `address` is in a mapping.
fn mend(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    let hit = TABLE.iter().take(used).find(|entry| {
        let start = entry.start.load(Ordering::Acquire);
        start != 0 && (start..entry.end.load(Ordering::Relaxed)).contains(&address)
    });
    let Some(entry) = hit else { return false };
    let page = PAGE.load(Ordering::Acquire);
    let start = address - address % page;
    // Marked before the zeroes appear, so that their reader sees the mark.
    entry.broken.store(true, Ordering::Release);
    // SAFETY: the page belongs to a mapping of ours. The access that faulted holds a slice of it, so it stays mapped during
    // the call. Its contents are lost already, so replacing them loses nothing. The call is a bare system call.
    let mended = unsafe {
        mmap_anonymous(
            start as *mut c_void,
            page,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED,
        )
    };
    mended.is_ok()
}

/// Passes the signal to the previous handler.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get().filter(|action| action.sa_sigaction > libc::SIG_IGN);
    match previous {
        // SAFETY: with this flag, the address is that of a handler of three arguments, which are the kernel's.
        Some(action) if action.sa_flags & libc::SA_SIGINFO != 0 => unsafe {
            transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(action.sa_sigaction)(
                signal, info, context,
            );
        },
        // SAFETY: without the flag, the address is of a handler with one argument.
        Some(action) => unsafe { transmute::<usize, extern "C" fn(c_int)>(action.sa_sigaction)(signal) },
        // SAFETY: an all-zero action is the default one. The access is repeated when the handler returns, and then ends the
        // process as it would without our handler.
        None => unsafe {
            let default: libc::sigaction = zeroed();
            libc::sigaction(signal, &default, ptr::null_mut());
        },
    }
}
