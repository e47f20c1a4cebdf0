//! Blocks of large sizes, which serve again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_long;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The least size of a block that is kept here, in bytes. Smaller ones are mimalloc's.
const LEAST: usize = 128 << 10;

/// The largest size. Larger ones are the system's: clearing their pages costs little beside what fills them.
const LARGEST: usize = 32 << 20;

/// How many sizes there are between one power of two and the next, as a power of two.
const STEPS: u32 = 2;

const CLASSES: usize = ((LARGEST.ilog2() - LEAST.ilog2()) << STEPS) as usize + 1;

/// The largest alignment of a block: a page's.
const ALIGNMENT: usize = 4096;

/// The allocator of a program whose large blocks serve again as long as they are needed, see the [crate](crate).
///
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// The free blocks, by class.
static FREE: [Mutex<FreeBlocks>; CLASSES] = [const { Mutex::new(FreeBlocks::new()) }; CLASSES];

/// The class of a block: its number, and the size that each of its blocks has.
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

    /// The class of this number.
    fn numbered(number: usize) -> Self {
        let doubling = LEAST.ilog2() as usize + (number >> STEPS);
        let steps = number & ((1 << STEPS) - 1);
        Self { number, size: (1 << doubling) + steps * (1 << (doubling - STEPS as usize)) }
    }

    fn free(self) -> MutexGuard<'static, FreeBlocks> {
        FREE[self.number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block with pages that are all zero, or null if the system has none.
    fn map(self) -> *mut u8 {
        let map = || {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, wherever the system puts it, overlaps no other.
            unsafe { mmap_anonymous(ptr::null_mut(), self.size, access, MapFlags::PRIVATE) }
        };
        let mapped = map().or_else(|_| {
            release(FreeBlocks::take_all);
            map()
        });
        mapped.map_or(ptr::null_mut(), |block| block.cast())
    }
}

/// Blocks of one class that nobody uses: a list through the blocks themselves, whose first was used last.
struct FreeBlocks {
    first: Option<NonNull<Link>>,
    count: usize,
    /// The least `count` since the last release: that many blocks were not needed.
    spare: usize,
}

/// The beginning of a free block.
struct Link {
    next: Option<NonNull<Link>>,
}

// SAFETY: the blocks belong to whoever has the list.
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
    /// The block is of this class, and nobody uses it.
    unsafe fn put(&mut self, block: NonNull<u8>) {
        let block = block.cast();
        // SAFETY: it has room for a link, is aligned to a page, and belongs to the list now.
        unsafe { block.write(Link { next: self.first }) };
        self.first = Some(block);
        self.count += 1;
    }

    /// Takes all blocks.
    fn take_all(&mut self) -> Self {
        mem::replace(self, Self::new())
    }

    /// Takes the blocks that were not needed since the last time.
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

/// Gives the blocks back to the system that were not needed since the last time.
pub(crate) fn release_spare() {
    release(FreeBlocks::take_spare);
}

/// How many pages a thread takes back, of up to half a mebibyte, for each size of blocks. It gives a page up when it is full, and
/// takes it back when it frees one of its blocks. If other threads free the rest, nobody sees that the page is free before the
/// thread allocates again, so without a limit all that a burst of requests had could stay.
const PAGES_TAKEN_BACK: c_long = 4;

/// The number of `mi_option_page_max_reclaim`, which the bindings do not name.
const PAGE_MAX_RECLAIM: libmimalloc_sys::mi_option_t = 41;

/// Has mimalloc leave most pages with free blocks where any thread can release them.
pub(crate) fn limit_pages_of_threads() {
    // SAFETY: it may be called at any time, from any thread, and checks the number.
    unsafe { libmimalloc_sys::mi_option_set_default(PAGE_MAX_RECLAIM, PAGES_TAKEN_BACK) };
}

/// Has mimalloc give back what nobody uses of its pages. It does nothing in a thread that never had a small block.
pub(crate) fn release_small() {
    // SAFETY: it may be called at any time, from any thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Gives back what is taken of each class.
fn release(take: fn(&mut FreeBlocks) -> FreeBlocks) {
    for class in (0..CLASSES).map(Class::numbered) {
        let mut taken = take(&mut class.free());
        while let Some(block) = taken.take() {
            // SAFETY: it was mapped with this size, and nobody uses it.
            if unsafe { munmap(block.as_ptr().cast(), class.size) }.is_err() {
                // The system cannot split its mappings any further. The block serves again.
                // SAFETY: it is of this class, and nobody uses it.
                unsafe { class.free().put(block) };
            }
        }
    }
}

/// Whose a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It is kept here.
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

// SAFETY: a block of a class is mapped until it is freed, at least as large as its layout, and aligned to a page; nobody else
// has it meanwhile. All others are those of other allocators. The layout alone tells whose a block is.
unsafe impl GlobalAlloc for Heap {
    // SAFETY: the caller's layout has a size, as `GlobalAlloc` demands.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
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
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Owner::of(layout) {
            Owner::Class(class) => {
                let free = class.free().take();
                let Some(block) = free else { return class.map() };
                // SAFETY: the block is at least that large.
                unsafe { block.write_bytes(0, layout.size()) };
                block.as_ptr()
            }
            // SAFETY: as for the caller.
            Owner::Mimalloc => unsafe { MiMalloc.alloc_zeroed(layout) },
            // SAFETY: as for the caller.
            Owner::System => unsafe { System.alloc_zeroed(layout) },
        }
    }

    // SAFETY: the caller has the block from here, with this layout.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match (Owner::of(layout), NonNull::new(block)) {
            // SAFETY: this layout's blocks are of this class, and the caller does not use it any more.
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
        // SAFETY: the caller makes sure that the size can be rounded up to the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Owner::of(layout), Owner::of(new)) {
            // SAFETY: as for the caller.
            (Owner::Mimalloc, Owner::Mimalloc) => unsafe { MiMalloc.realloc(block, layout, size) },
            // SAFETY: as for the caller.
            (Owner::System, Owner::System) => unsafe { System.realloc(block, layout, size) },
            (old, new) if old == new => block,
            _ => {
                // SAFETY: both blocks have as many bytes as are copied, and the old one is freed with its layout.
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
