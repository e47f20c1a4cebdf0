//! A mapped file of shared memory, and slices of it.

use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use nereid_backend_api::{Buffer, Error, Result};
use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::faults::{FaultHandler, Watch};

/// Mapped memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    length: usize,
    /// Dropped before the memory is unmapped.
    watch: Option<Watch>,
    /// The region's name, for messages.
    name: String,
}

// SAFETY: the address range stays mapped as long as the value lives. Other processes may write it at any time, so access
// from several threads adds nothing.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a file from `offset`, a multiple of the page size.
    pub(crate) fn new(
        faults: FaultHandler,
        name: &str,
        file: impl AsFd,
        offset: u64,
        length: usize,
    ) -> io::Result<Self> {
        // SAFETY: without a requested address, the system chooses unmapped addresses.
        let address = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, offset)?
        };
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let mut mapping = Self { address, length, watch: None, name: name.to_owned() };
        mapping.watch = Some(Watch::new(faults, address.as_ptr() as usize, length)?);
        Ok(mapping)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_broken)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watch = None;
        // SAFETY: this range was mapped, and every slice of it holds a reference to `self`, so none is left.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A slice of a region in host memory. Keeps the memory mapped.
#[derive(Clone, Debug)]
pub(crate) struct HostSlice {
    mapping: Arc<Mapping>,
    offset: usize,
    length: usize,
}

impl HostSlice {
    /// A slice of a mapping; `None` if it is out of bounds.
    pub(crate) fn of(mapping: &Arc<Mapping>, offset: usize, length: usize) -> Option<Self> {
        let within = offset.checked_add(length).is_some_and(|end| end <= mapping.length);
        within.then(|| Self { mapping: Arc::clone(mapping), offset, length })
    }

    /// The first `length` bytes; `None` if the slice is shorter.
    pub(crate) fn first(&self, length: usize) -> Option<Self> {
        (length <= self.length).then(|| Self { length, ..self.clone() })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The bytes in place. They may change at any time.
    pub(crate) fn buffer(&self) -> Buffer {
        Buffer::shared(Bytes::from_owner(self.clone()))
    }

    /// A copy of the current bytes.
    pub(crate) fn copied(&self) -> Buffer {
        Buffer::own(self.as_ref().to_vec())
    }

    /// Whether two slices share a byte.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (start, other_start) = (self.start() as usize, other.start() as usize);
        start < other_start + other.length && other_start < start + self.length
    }

    /// Checks that the region's file was not truncated. Otherwise bytes read from it may be zeroes, and bytes written to it
    /// may be lost.
    ///
    /// # Errors
    /// `Unavailable`, with the region's name.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.mapping.is_broken() {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "the memory behind shared memory region '{}' was cut short after it was registered; register it again",
            self.mapping.name
        )))
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the offset lies within the mapping, as was checked when the slice was made.
        unsafe { self.mapping.address.as_ptr().add(self.offset) }
    }

    /// The bytes, writable. No other slice of this process may cover them at the same time: see `PlacedOutputs`.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the range is mapped for writing as long as the slice lives, and bytes may have any value. Other
        // processes may change them at any time: no code here or in a backend relies on reading the same byte twice.
        unsafe { slice::from_raw_parts_mut(self.start(), self.length) }
    }
}

impl AsRef<[u8]> for HostSlice {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as the slice lives, and bytes may have any value. Other processes may change
        // them at any time: contents that are checked are copied first.
        unsafe { slice::from_raw_parts(self.start(), self.length) }
    }
}
