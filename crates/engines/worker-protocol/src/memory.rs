//! Shared memory: files without a name, which both ends map. They cannot be cut short, so touching them raises no SIGBUS, and
//! nothing is left behind, however a process ends.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::io::{Errno, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::codec::Malformed;

/// Bytes in front of each region, which hold its state. Contents are aligned to that.
pub(crate) const REGION_HEADER: usize = 64;

/// Most segments of one direction of a channel. They grow in size, so a few are enough.
pub const MAX_SEGMENTS: usize = 256;

const FREE: u32 = 0;
const LENT: u32 = 1;

/// A file that its owner allocates regions from.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) file: OwnedFd,
    pub(crate) mapping: Arc<Mapping>,
}

impl Segment {
    /// Makes a file of that length, in which no page takes memory yet.
    pub(crate) fn create(length: usize) -> io::Result<Self> {
        let file = memfd_create("nereid-tensors", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(&file, length)?;
        Ok(Self { file, mapping })
    }

    /// Takes memory for pages, so that touching them cannot fail.
    pub(crate) fn reserve(&self, offset: usize, length: usize) -> io::Result<()> {
        retry(|| fallocate(&self.file, FallocateFlags::empty(), offset as u64, length as u64))
    }

    /// Gives the memory of pages back. They read as zeroes afterwards.
    pub(crate) fn release(&self, offset: usize, length: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry(|| fallocate(&self.file, flags, offset as u64, length as u64))
    }
}

fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome.map_err(Into::into),
        }
    }
}

/// A mapped file, unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: it is an address range that stays mapped as long as this lives. Another process may write there at any time, so
// threads of this one make no difference.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, length: usize) -> io::Result<Arc<Self>> {
        // SAFETY: the system chooses the address, so no existing mapping is touched.
        let address = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Arc::new(Self { address, length }))
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.length);
        // SAFETY: the offset lies within the mapping.
        unsafe { self.address.as_ptr().add(offset) }
    }

    /// The state of the region whose contents begin at an offset.
    fn state(&self, offset: usize) -> &AtomicU32 {
        assert!((REGION_HEADER..=self.length).contains(&offset) && offset.is_multiple_of(REGION_HEADER));
        // SAFETY: the place is within the mapping, which lives as long as `self`, and aligned, since the mapping begins at a
        // page. All who touch it do so by atomics.
        unsafe { AtomicU32::from_ptr(self.at(offset - REGION_HEADER).cast()) }
    }

    /// Lends the region to the other end.
    pub(crate) fn lend(&self, offset: usize) {
        self.state(offset).store(LENT, Ordering::Relaxed);
    }

    /// Ends the use of the region.
    pub(crate) fn free(&self, offset: usize) {
        // What was read from it and written to it comes before.
        self.state(offset).store(FREE, Ordering::Release);
    }

    /// Whether the use of the region has ended.
    pub(crate) fn is_free(&self, offset: usize) -> bool {
        self.state(offset).load(Ordering::Acquire) == FREE
    }

    /// The contents of a region, for writing. The caller has the only reference of this process to them.
    #[expect(clippy::mut_from_ref, reason = "the pool hands out each region once")]
    pub(crate) fn contents_mut(&self, offset: usize, length: usize) -> &mut [u8] {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: the range is within the mapping, and the pool lends each region once. The other process may write
        // there at any time: nothing is concluded from bytes that were read.
        unsafe { slice::from_raw_parts_mut(self.at(offset), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped, and every region in it holds a reference, so none is left.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Contents that the other end lent. The drop lets it use the place again.
pub struct Region {
    mapping: Arc<Mapping>,
    offset: usize,
    length: usize,
}

impl Region {
    /// The address of the contents. The caller may write there while no other thread reads.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.at(self.offset)
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// The contents. The other process may change them at any time: what has to stay as it was checked is copied first.
impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is within the mapping, as was checked, and the mapping lives as long as the slice.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.mapping.free(self.offset);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.length)
    }
}

/// A segment that the other end has announced.
#[derive(Debug)]
struct AnnouncedSegment {
    length: usize,
    state: Mutex<SegmentState>,
}

#[derive(Debug)]
enum SegmentState {
    /// Not mapped yet, or the last attempt failed.
    Unmapped(OwnedFd),
    Mapped(Arc<Mapping>),
}

impl AnnouncedSegment {
    /// Checks a file that the other end sent. It is mapped with the first region, so that a failure, such as a lack of
    /// memory, is one of that region and not of the channel.
    fn new(file: OwnedFd, length: u64) -> io::Result<Self> {
        let seals = fcntl_get_seals(&file).map_err(|_| Malformed("a segment is not a memory file"))?;
        let actual = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if !seals.contains(SealFlags::SHRINK) || actual != length || length == 0 {
            return Err(Malformed("a segment can be cut short, or is not as long as it should be").into());
        }
        let length = usize::try_from(length).map_err(|_| Malformed("a segment is too long"))?;
        Ok(Self { length, state: Mutex::new(SegmentState::Unmapped(file)) })
    }

    /// A region, as the other end names it.
    fn region(&self, offset: u64, length: u64) -> Result<io::Result<Region>, Malformed> {
        let end = offset.checked_add(length).filter(|end| *end <= self.length as u64);
        if end.is_none() || offset < REGION_HEADER as u64 || !offset.is_multiple_of(REGION_HEADER as u64) {
            return Err(Malformed("a region is not within its segment"));
        }
        let mapping = self.mapping(offset);
        Ok(mapping.map(|mapping| Region { mapping, offset: offset as usize, length: length as usize }))
    }

    /// The mapping. If it fails, the region at the offset is freed.
    fn mapping(&self, offset: u64) -> io::Result<Arc<Mapping>> {
        // Each change is one assignment.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &*state {
            SegmentState::Mapped(mapping) => return Ok(Arc::clone(mapping)),
            SegmentState::Unmapped(file) => file,
        };
        match Mapping::new(file, self.length) {
            Ok(mapping) => {
                *state = SegmentState::Mapped(Arc::clone(&mapping));
                Ok(mapping)
            }
            Err(error) => {
                // Without a mapping, the state in front of the region is written through the file. If that fails, the
                // place stays lent until the channel ends.
                let _ = pwrite(file, &FREE.to_ne_bytes(), offset - REGION_HEADER as u64);
                Err(error)
            }
        }
    }
}

/// The segments that the other end has announced, by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments(Vec<Arc<AnnouncedSegment>>);

impl Segments {
    /// Adds the next one.
    ///
    /// # Errors
    /// The file is not sealed or has another length, or the number is not the next one.
    pub(crate) fn add(&mut self, number: u32, file: OwnedFd, length: u64) -> io::Result<()> {
        if number as usize != self.0.len() || self.0.len() == MAX_SEGMENTS {
            return Err(Malformed("a segment has the wrong number").into());
        }
        self.0.push(Arc::new(AnnouncedSegment::new(file, length)?));
        Ok(())
    }

    /// A region; the error of the system if its segment cannot be mapped.
    pub(crate) fn region(
        &self,
        number: u32,
        offset: u64,
        length: u64,
    ) -> Result<io::Result<Region>, Malformed> {
        self.0.get(number as usize).ok_or(Malformed("unknown segment"))?.region(offset, length)
    }
}
