//! Where the contents of tensors are on their way: regions of segments, which a sender allocates and the receiver frees.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use range_alloc::RangeAllocator;

use crate::memory::{MAX_SEGMENTS, REGION_HEADER, Segment};

/// Largest contents that travel within a message, in bytes.
pub const MAX_INLINE: usize = 8 << 10;

/// Smallest segment. Pages take memory only once they are used.
const SEGMENT: usize = 64 << 20;

/// Segments that have to be larger double up to this; beyond, they are as large as needed.
const DOUBLES_UP_TO: usize = 4 << 30;

/// Longer contents than any machine has memory for.
const MAX_CONTENTS: usize = 1 << 46;

/// Memory is taken in steps of this.
const STEP: usize = 1 << 20;

/// A region that is in use by the receiver.
#[derive(Clone, Debug)]
pub(crate) struct LentRegion {
    pub(crate) segment: usize,
    /// With its header.
    range: Range<usize>,
}

impl LentRegion {
    /// Where its contents begin.
    pub(crate) fn offset(&self) -> usize {
        self.range.start + REGION_HEADER
    }
}

/// The segments of a sender.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    segments: Vec<OwnedSegment>,
    lent: VecDeque<LentRegion>,
    /// Allocations since the lent regions were last searched for free ones.
    unswept: usize,
    /// Allocations since memory was last trimmed.
    untrimmed: usize,
}

#[derive(Debug)]
struct OwnedSegment {
    segment: Segment,
    ranges: RangeAllocator<usize>,
    /// Up to here, memory was taken.
    reserved: usize,
    length: usize,
}

impl Pool {
    /// A region for contents of that length.
    ///
    /// # Errors
    /// The system is out of memory.
    pub(crate) fn lend(&mut self, length: usize) -> io::Result<LentRegion> {
        self.unswept += 1;
        self.untrimmed += 1;
        if self.unswept > self.lent.len() / 4 {
            self.sweep();
        }
        let length = length
            .checked_add(REGION_HEADER)
            .and_then(|length| length.checked_next_multiple_of(REGION_HEADER))
            .filter(|length| *length <= MAX_CONTENTS)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let lent = match self.allocate(length) {
            Some(lent) => lent,
            None => {
                self.sweep();
                match self.allocate(length) {
                    Some(lent) => lent,
                    None => {
                        self.grow(length)?;
                        self.allocate(length).ok_or(io::ErrorKind::OutOfMemory)?
                    }
                }
            }
        };
        let owned = &mut self.segments[lent.segment];
        if let Err(error) = owned.reserve(lent.range.end) {
            owned.ranges.free_range(lent.range);
            return Err(error);
        }
        owned.segment.mapping.lend(lent.offset());
        self.lent.push_back(lent.clone());
        Ok(lent)
    }

    fn allocate(&mut self, length: usize) -> Option<LentRegion> {
        let find = |(segment, owned): (usize, &mut OwnedSegment)| {
            let range = owned.ranges.allocate_range(length).ok()?;
            Some(LentRegion { segment, range })
        };
        self.segments.iter_mut().enumerate().find_map(find)
    }

    fn grow(&mut self, length: usize) -> io::Result<()> {
        if self.segments.len() == MAX_SEGMENTS {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let largest = self.segments.iter().map(|owned| owned.length).max().unwrap_or(0);
        let doubled = largest.saturating_mul(2).min(DOUBLES_UP_TO);
        let length = length.max(SEGMENT).max(doubled).next_multiple_of(STEP);
        let segment = Segment::create(length)?;
        let ranges = RangeAllocator::new(0..length);
        self.segments.push(OwnedSegment { segment, ranges, reserved: 0, length });
        Ok(())
    }

    /// Takes back what the receiver has freed.
    fn sweep(&mut self) {
        self.unswept = 0;
        let segments = &mut self.segments;
        self.lent.retain(|lent| {
            let owned = &mut segments[lent.segment];
            let free = owned.segment.mapping.is_free(lent.offset());
            if free {
                owned.ranges.free_range(lent.range.clone());
            }
            !free
        });
    }

    /// The segments, in the order of their numbers.
    pub(crate) fn segments(&self) -> impl ExactSizeIterator<Item = (&Segment, usize)> {
        self.segments.iter().map(|owned| (&owned.segment, owned.length))
    }

    /// The contents of a lent region, to be written.
    pub(crate) fn contents_mut(&self, lent: &LentRegion, length: usize) -> &mut [u8] {
        debug_assert!(length + REGION_HEADER <= lent.range.len());
        self.segments[lent.segment].segment.mapping.contents_mut(lent.offset(), length)
    }

    /// Frees a region that was not sent.
    pub(crate) fn free(&self, lent: &LentRegion) {
        self.segments[lent.segment].segment.mapping.free(lent.offset());
    }

    fn trim(&mut self) {
        if std::mem::take(&mut self.untrimmed) > 0 {
            return;
        }
        self.sweep();
        for owned in &mut self.segments {
            let used = owned.ranges.allocated_ranges().map(|range| range.end).max().unwrap_or(0);
            let used = used.next_multiple_of(STEP);
            if used < owned.reserved && owned.segment.release(used, owned.length - used).is_ok() {
                owned.reserved = used;
            }
        }
    }

    #[cfg(test)]
    fn reserved(&self) -> usize {
        self.segments.iter().map(|owned| owned.reserved).sum()
    }
}

impl OwnedSegment {
    fn reserve(&mut self, end: usize) -> io::Result<()> {
        if end > self.reserved {
            let end = end.next_multiple_of(STEP).min(self.length);
            self.segment.reserve(self.reserved, end - self.reserved)?;
            self.reserved = end;
        }
        Ok(())
    }
}

/// Gives memory back that a sender used for contents in flight.
#[derive(Clone, Debug)]
pub struct Trimmer(pub(crate) Arc<Mutex<Pool>>);

impl Trimmer {
    /// Gives memory that is not in use back to the system, if nothing was sent in it since the last call. To be called at an
    /// interval of seconds.
    pub fn trim(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).trim();
    }
}

#[cfg(test)]
mod tests;
