//! Reusable large blocks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_long;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The smallest cached block, in bytes. Smaller ones belong to mimalloc.
const LEAST: usize = 128 << 10;

/// The largest cached block, in bytes. Larger ones belong to the system: clearing their pages is cheap compared to
/// filling them.
const LARGEST: usize = 32 << 20;

/// Number of size classes per power of two, as a power of two.
const STEPS: u32 = 2;

const CLASSES: usize = ((LARGEST.ilog2() - LEAST.ilog2()) << STEPS) as usize + 1;

/// The largest alignment of a block: the page size.
const ALIGNMENT: usize = 4096;

/// A global allocator that reuses large blocks as long as they are needed, see the [crate].
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// The free blocks, by class.
static FREE: [Mutex<FreeBlocks>; CLASSES] = [const { Mutex::new(FreeBlocks::new()) }; CLASSES];

/// The size class of a block: its number, and the size of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    number: usize,
    size: usize,
}

impl Class {
    /// The class of blocks of this size.
    fn of(size: usize) -> Self {
        let doubling = size.ilog2();
        let step = 1 << (doubling - STEPS);
        let steps = (size - (1 << doubling)).div_ceil(step);
        let number = (((doubling - LEAST.ilog2()) as usize) << STEPS) + steps;
        Self { number, size: (1 << doubling) + steps * step }
    }

    /// The class with this number.
    fn numbered(number: usize) -> Self {
        let doubling = LEAST.ilog2() as usize + (number >> STEPS);
        let steps = number & ((1 << STEPS) - 1);
        Self { number, size: (1 << doubling) + steps * (1 << (doubling - STEPS as usize)) }
    }

    fn free(self) -> MutexGuard<'static, FreeBlocks> {
        FREE[self.number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of zeroed pages, or null if the system refuses.
    fn map(self) -> *mut u8 {
        let map = || {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, placed by the system, overlaps no other.
            unsafe { mmap_anonymous(ptr::null_mut(), self.size, access, MapFlags::PRIVATE) }
        };
        let mapped = map().or_else(|_| {
            release(FreeBlocks::take_all);
            map()
        });
        mapped.map_or(ptr::null_mut(), |block| block.cast())
    }
}

/// Free blocks of one class: an intrusive list, the most recently used first.
struct FreeBlocks {
    first: Option<NonNull<Link>>,
    count: usize,
    /// The lowest `count` since the last release: the number of blocks not needed.
    spare: usize,
}

/// The start of a free block.
struct Link {
    next: Option<NonNull<Link>>,
}

// SAFETY: the list owns its blocks.
unsafe impl Send for FreeBlocks {}

impl FreeBlocks {
    const fn new() -> Self {
        Self { first: None, count: 0, spare: 0 }
    }

    fn take(&mut self) -> Option<NonNull<u8>> {
        let block = self.first?;
        // SAFETY: `put` wrote the link, and the block belongs to the list.
        self.first = unsafe { block.read() }.next;
        self.count -= 1;
        self.spare = self.spare.min(self.count);
        Some(block.cast())
    }

    /// # Safety
    /// The block belongs to this class and is unused.
    unsafe fn put(&mut self, block: NonNull<u8>) {
        let block = block.cast();
        // SAFETY: the block has room for a link, is aligned to a page, and belongs to the list now.
        unsafe { block.write(Link { next: self.first }) };
        self.first = Some(block);
        self.count += 1;
    }

    /// Takes all blocks.
    fn take_all(&mut self) -> Self {
        mem::replace(self, Self::new())
    }

    /// Takes the blocks that were not needed since the last call.
    fn take_spare(&mut self) -> Self {
        let mut end = &mut self.first;
        for _ in self.spare..self.count {
            let Some(block) = end else { break };
            // SAFETY: the blocks belong to the list, and `put` wrote their links.
            end = unsafe { &mut block.as_mut().next };
        }
        let spare = Self { first: end.take(), count: self.spare, spare: 0 };
        self.count -= spare.count;
        self.spare = self.count;
        spare
    }
}

/// Unmaps the blocks that were not needed since the last call.
pub(crate) fn release_spare() {
    release(FreeBlocks::take_spare);
}

/// Limit of the pages, of up to half a mebibyte, that a thread reclaims per block size. A thread abandons a page when
/// it is full, and reclaims it when it frees one of its blocks. If other threads free the rest, the page is not
/// recognized as free before the thread allocates again, so without a limit all memory of a burst of requests could
/// stay allocated.
const PAGES_TAKEN_BACK: c_long = 4;

/// The number of `mi_option_page_max_reclaim`, which the bindings lack.
const PAGE_MAX_RECLAIM: libmimalloc_sys::mi_option_t = 41;

/// Makes mimalloc leave most pages with free blocks where any thread can release them.
pub(crate) fn limit_pages_of_threads() {
    // SAFETY: the function may be called at any time, from any thread, and checks the number.
    unsafe { libmimalloc_sys::mi_option_set_default(PAGE_MAX_RECLAIM, PAGES_TAKEN_BACK) };
}

/// Makes mimalloc return its unused pages. Has no effect in a thread that never had a small block.
pub(crate) fn release_small() {
    // SAFETY: the function may be called at any time, from any thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Unmaps the blocks that `take` selects in each class.
fn release(take: fn(&mut FreeBlocks) -> FreeBlocks) {
    for class in (0..CLASSES).map(Class::numbered) {
        let mut taken = take(&mut class.free());
        while let Some(block) = taken.take() {
            // SAFETY: the block was mapped with this size, and is unused.
            if unsafe { munmap(block.as_ptr().cast(), class.size) }.is_err() {
                // The system cannot split its mappings any further. Keep the block.
                // SAFETY: the block belongs to this class, and is unused.
                unsafe { class.free().put(block) };
            }
        }
    }
}

/// The alignment of mimalloc's blocks; smaller blocks are aligned to their size.
const NATURAL_ALIGNMENT: usize = 16;

/// Whether `mi_malloc` alone provides this layout. `mi_malloc_aligned` often allocates a larger block to align within, at several
/// times the cost.
#[inline]
fn is_plain(layout: Layout) -> bool {
    layout.size() < LEAST && layout.align() <= NATURAL_ALIGNMENT.min(layout.size())
}

/// The allocator of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// This file, with the block's class.
    Class(Class),
    Mimalloc,
    System,
}

impl Owner {
    fn of(layout: Layout) -> Self {
        match layout.size() {
            size if size < LEAST || layout.align() > ALIGNMENT => Self::Mimalloc,
            size if size <= LARGEST => Self::Class(Class::of(size)),
            _ => Self::System,
        }
    }
}

// SAFETY: a block of a class stays mapped until it is freed, is at least as large as its layout, is aligned to a
// page, and has a single user. All others come from the other allocators. The layout alone determines a block's
// allocator.
unsafe impl GlobalAlloc for Heap {
    // SAFETY: the caller's layout is not empty, as `GlobalAlloc` requires.
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_plain(layout) {
            // SAFETY: `mi_malloc` may be called with any size, from any thread.
            return unsafe { libmimalloc_sys::mi_malloc(layout.size()).cast() };
        }
        match Owner::of(layout) {
            Owner::Class(class) => {
                let free = class.free().take();
                free.map_or_else(|| class.map(), NonNull::as_ptr)
            }
            // SAFETY: as for the caller.
            Owner::Mimalloc => unsafe { MiMalloc.alloc(layout) },
            // SAFETY: as for the caller.
            Owner::System => unsafe { System.alloc(layout) },
        }
    }

    // SAFETY: as `alloc`.
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_plain(layout) {
            // SAFETY: as for `mi_malloc`.
            return unsafe { libmimalloc_sys::mi_zalloc(layout.size()).cast() };
        }
        match Owner::of(layout) {
            Owner::Class(class) => {
                let free = class.free().take();
                let Some(block) = free else { return class.map() };
                // SAFETY: the block has at least this size.
                unsafe { block.write_bytes(0, layout.size()) };
                block.as_ptr()
            }
            // SAFETY: as for the caller.
            Owner::Mimalloc => unsafe { MiMalloc.alloc_zeroed(layout) },
            // SAFETY: as for the caller.
            Owner::System => unsafe { System.alloc_zeroed(layout) },
        }
    }

    // SAFETY: the block comes from this allocator, with this layout.
    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_plain(layout) {
            // SAFETY: blocks with this layout belong to mimalloc, and the caller no longer uses it.
            return unsafe { libmimalloc_sys::mi_free(block.cast()) };
        }
        match (Owner::of(layout), NonNull::new(block)) {
            // SAFETY: blocks with this layout belong to this class, and the caller no longer uses it.
            (Owner::Class(class), Some(block)) => unsafe { class.free().put(block) },
            (Owner::Class(_), None) => {}
            // SAFETY: as for the caller.
            (Owner::Mimalloc, _) => unsafe { MiMalloc.dealloc(block, layout) },
            // SAFETY: as for the caller.
            (Owner::System, _) => unsafe { System.dealloc(block, layout) },
        }
    }

    // SAFETY: as `dealloc`, and the new size is not zero.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size can be rounded up to the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Owner::of(layout), Owner::of(new)) {
            // SAFETY: the block belongs to mimalloc, and the caller no longer uses it if this succeeds.
            (Owner::Mimalloc, Owner::Mimalloc) if is_plain(new) => unsafe {
                libmimalloc_sys::mi_realloc(block.cast(), size).cast()
            },
            // SAFETY: as for the caller.
            (Owner::Mimalloc, Owner::Mimalloc) => unsafe { MiMalloc.realloc(block, layout, size) },
            // SAFETY: as for the caller.
            (Owner::System, Owner::System) => unsafe { System.realloc(block, layout, size) },
            (old, new) if old == new => block,
            _ => {
                // SAFETY: the copy is within both blocks, and the old one is freed with its layout.
                unsafe {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
