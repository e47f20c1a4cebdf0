//! Tests of the allocator's guarantees: room, contents, addresses, and released memory.

use std::slice;
use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use super::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Serializes the tests, which share the free blocks.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    release(FreeBlocks::take_all);
    turn
}

fn free_of(size: usize) -> usize {
    Class::of(size).free().count
}

/// A block of the heap, filled with one byte.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    byte: u8,
}

// SAFETY: a block has one owner, and any thread may free it.
unsafe impl Send for Block {}

impl Block {
    fn new(size: usize, align: usize, zeroed: bool, byte: u8) -> Self {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { if zeroed { Heap.alloc_zeroed(layout) } else { Heap.alloc(layout) } };
        let mut block = Self { start: NonNull::new(start).unwrap(), layout, byte };
        assert!((start as usize).is_multiple_of(align));
        if zeroed {
            assert!(block.holds(0, size), "{layout:?} is not zero");
        }
        block.bytes().fill(byte);
        block
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block has this size and one owner, and was filled or zeroed, or is filled before it is read.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }

    /// Whether the first bytes all equal this one. Checks both ends and some bytes between.
    fn holds(&mut self, byte: u8, count: usize) -> bool {
        let bytes = &self.bytes()[..count];
        let ends = bytes.iter().take(64).chain(bytes.iter().rev().take(64));
        ends.chain(bytes.iter().step_by(1021)).all(|found| *found == byte)
    }

    fn resize(&mut self, size: usize) {
        let kept = size.min(self.layout.size());
        // SAFETY: the block has this layout, and the size is not zero.
        let start = unsafe { Heap.realloc(self.start.as_ptr(), self.layout, size) };
        self.start = NonNull::new(start).unwrap();
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        let byte = self.byte;
        assert!(self.holds(byte, kept), "changed by a resize to {size}");
        self.bytes().fill(byte);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        assert!(self.holds(self.byte, self.layout.size()), "{:?} was overwritten", self.layout);
        // SAFETY: the block has this layout and is not used after this.
        unsafe { Heap.dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Allocates and frees a block of this size.
fn use_once(size: usize) {
    drop(Block::new(size, 8, false, 1));
}

/// Sizes on both sides of all limits.
fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..2 * LEAST, 4 => LEAST..MIB, 1 => (LEAST.ilog2()..=LARGEST.ilog2(), -2..3_isize)
        .prop_map(|(doubling, off)| (1_usize << doubling).checked_add_signed(off).unwrap())]
}

proptest! {
    #[test]
    fn size_classes_fit_and_waste_little(size in prop_oneof![LEAST..=LARGEST, sizes()], align in 0..16_u32) {
        let layout = Layout::from_size_align(size, 1 << align).unwrap();
        match Owner::of(layout) {
            Owner::Mimalloc => prop_assert!(size < LEAST || align > 12),
            Owner::System => prop_assert!(size > LARGEST),
            Owner::Class(class) => {
                prop_assert!(class.size >= size && class.size - size < size / 4, "{class:?}");
                prop_assert!(class.size.is_multiple_of(ALIGNMENT) && (1 << align) <= ALIGNMENT);
                prop_assert_eq!(Class::numbered(class.number), class);
                prop_assert_eq!(Class::of(class.size), class);
            }
        }
    }

    #[test]
    fn blocks_are_never_shared(
        steps in prop::collection::vec((0..4_u8, 0..8_usize, sizes(), 0..13_u32, any::<bool>()), 1..40)
    ) {
        let _turn = turn();
        let mut blocks: Vec<Block> = Vec::new();
        for (number, (step, which, size, align, zeroed)) in steps.into_iter().enumerate() {
            let chosen = which.checked_rem(blocks.len());
            match (step, chosen) {
                (0, Some(chosen)) => drop(blocks.swap_remove(chosen)),
                (1, Some(chosen)) => blocks[chosen].resize(size),
                (2, _) if number.is_multiple_of(5) => release_spare(),
                _ => blocks.push(Block::new(size, 1 << align, zeroed, number as u8 + 1)),
            }
        }
    }
}

#[test]
fn freed_block_is_reused() {
    let _turn = turn();
    for size in [LEAST, MIB, 3 * MIB + 5, LARGEST] {
        let addresses: Vec<_> = (0..3).map(|_| Block::new(size, 8, true, 7).start).collect();
        assert!(addresses.iter().all(|address| *address == addresses[0]), "{size}: {addresses:?}");
        assert_eq!(free_of(size), 1);
    }
}

#[test]
fn blocks_unused_since_the_last_release_are_unmapped() {
    let _turn = turn();
    let burst = |count| drop((0..count).map(|_| Block::new(MIB, 8, false, 1)).collect::<Vec<_>>());
    burst(10);
    release_spare();
    assert_eq!(free_of(MIB), 10, "all were in use in this time");
    for _ in 0..3 {
        burst(4);
        release_spare();
        assert_eq!(free_of(MIB), 4);
    }
    release_spare();
    assert_eq!(free_of(MIB), 0);
}

#[test]
fn released_blocks_take_no_memory() {
    let _turn = turn();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
    };
    drop((0..16).map(|number| Block::new(16 * MIB, 8, false, number)).collect::<Vec<_>>());
    let before = resident();
    (0..2).for_each(|_| release_spare());
    let after = resident();
    assert!(after + 200 * MIB < before, "{before} {after}");
}

#[test]
fn blocks_move_between_threads() {
    let _turn = turn();
    thread::scope(|scope| {
        for thread in 1..9 {
            scope.spawn(move || {
                for round in 0..200 {
                    let mut block = Block::new(LEAST + 64 * KIB * (round % 5), 8, round % 3 == 0, thread);
                    block.resize(LEAST + 64 * KIB * (round % 7));
                    if round % 50 == 0 {
                        release_spare();
                    }
                }
            });
        }
    });
}

#[test]
fn unmappable_size_is_refused() {
    let _turn = turn();
    use_once(MIB);
    let class = Class { number: 0, size: usize::MAX / 2 };
    assert!(class.map().is_null());
    assert_eq!(free_of(MIB), 0, "all free blocks were given back for it");
}

/// The number of blocks whose first page is in memory, used or free.
fn resident(blocks: &[usize]) -> usize {
    let is_resident = |block: &&usize| {
        let mut state = 0;
        let page = (**block / ALIGNMENT * ALIGNMENT) as *mut libc::c_void;
        // SAFETY: the call accepts any address, and writes one byte per page.
        let known = unsafe { libc::mincore(page, 1, &raw mut state) };
        known == 0 && state & 1 == 1
    };
    blocks.iter().filter(is_resident).count()
}

#[test]
fn small_blocks_freed_by_other_threads_are_released() {
    let _turn = turn();
    limit_pages_of_threads();
    // The releasing thread has small blocks of its own.
    use_once(8);
    // Each size, and after how many blocks the allocating thread frees one.
    for (size, own) in [(8 * KIB, 3), (20 * KIB, 7), (64 * KIB, 4), (64 * KIB, 100), (100 * KIB, 2)] {
        let (send, receive) = mpsc::channel();
        let (measured, end) = mpsc::channel::<()>();
        let owner = thread::spawn(move || {
            let blocks: Vec<_> = (0..64 * MIB / size).map(|_| Block::new(size, 8, false, 1)).collect();
            let addresses: Vec<_> = blocks.iter().map(|block| block.start.as_ptr() as usize).collect();
            let (own_blocks, others): (Vec<_>, Vec<_>) =
                blocks.into_iter().enumerate().partition(|(number, _)| number.is_multiple_of(own));
            drop(own_blocks);
            send.send((addresses, others)).unwrap();
            // An idle thread keeps its own pages.
            let _ = end.recv();
        });
        let (addresses, others) = receive.recv().unwrap();
        let before = resident(&addresses);
        drop(others);
        release_small();
        let after = resident(&addresses);
        let most = addresses.len() / 16;
        assert!(before > addresses.len() / 2 && after < most, "{size} {own}: {before} {after}");
        drop(measured);
        owner.join().unwrap();
    }
}
