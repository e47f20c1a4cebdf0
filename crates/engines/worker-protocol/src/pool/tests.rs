//! Tests of the allocator: regions keep their contents until they are freed.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::memory::Segments;

#[test]
fn memory_that_is_not_in_use_is_given_back_after_a_quiet_interval() {
    let mut pool = Pool::default();
    let large = pool.lend(20 << 20).unwrap();
    let kept = pool.lend(100).unwrap();
    pool.free(&large);
    assert_eq!(pool.reserved(), 21 << 20);
    pool.trim();
    assert_eq!(pool.reserved(), 21 << 20, "something was lent since the last time");
    pool.free(&kept);
    pool.trim();
    assert_eq!(pool.reserved(), 0);
    let again = pool.lend(9000).unwrap();
    assert_eq!((pool.reserved(), again.offset()), (STEP, REGION_HEADER));
}

#[test]
fn contents_beyond_a_segment_get_one_of_their_own_and_too_large_ones_an_error() {
    let mut pool = Pool::default();
    let lent = [1, SEGMENT, SEGMENT / 2, 1].map(|length| pool.lend(length).unwrap().segment);
    assert_eq!(lent, [0, 1, 0, 0]);
    assert!(pool.lend(usize::MAX).is_err());
    assert!(pool.lend(usize::MAX >> 1).is_err());
    assert_eq!(pool.lend(5).unwrap().segment, 0, "an error changes nothing");
}

#[derive(Clone, Debug)]
enum Step {
    Lend(usize),
    Free(usize),
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![1_usize..300, 8000_usize..20_000, Just(1 << 20)];
    let step = prop_oneof![
        4 => length.prop_map(Step::Lend),
        3 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// One end reads what the other wrote for as long as it keeps the region.
    #[test]
    fn regions_keep_their_contents_until_they_are_freed(steps in steps()) {
        let (mut pool, mut theirs) = (Pool::default(), Segments::default());
        let mut known = 0;
        let mut held = Vec::new();
        for (value, step) in steps.into_iter().enumerate() {
            let value = value as u8;
            match step {
                Step::Lend(length) => {
                    let lent = pool.lend(length).unwrap();
                    pool.contents_mut(&lent, length).fill(value);
                    for (number, (segment, length)) in pool.segments().enumerate().skip(known) {
                        theirs.add(number as u32, segment.file.try_clone().unwrap(), length as u64).unwrap();
                        known = number + 1;
                    }
                    let region = theirs.region(lent.segment as u32, lent.offset() as u64, length as u64);
                    held.push((value, Arc::new(region.unwrap().unwrap())));
                }
                Step::Free(which) if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                Step::Free(_) => {}
                Step::Trim => {
                    pool.trim();
                    pool.trim();
                }
            }
            for (value, region) in &held {
                let contents: &[u8] = region.as_ref().as_ref();
                prop_assert!(contents == vec![*value; contents.len()]);
            }
        }
    }
}
