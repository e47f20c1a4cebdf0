//! Cached models that keep the order of requests: hits pass the requests that execute, and leave no gap among them.

use std::task::{Context, Waker};

use super::*;

fn named(id: &str, contents: &[u8]) -> InferRequest {
    let input = tensor("A", &[1, contents.len() as i64], contents.to_vec());
    InferRequest { id: id.into(), inputs: vec![input], ..InferRequest::default() }
}

fn is_answered(stream: &mut ResponseStream) -> bool {
    stream.poll_next(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Sends hits (`h`) and misses (`m`) in this order. All misses execute at once and end in the reverse order, except that
/// the first one is cancelled if `cancels`.
fn check(kinds: &str, waits: bool, coalesces: bool, cancels: bool) {
    let case = format!("{kinds}, waits: {waits}, coalesces: {coalesces}, cancels: {cancels}");
    let config = format!(
        "name: 'm' {TENSORS} {ON} max_batch_size: 1 instance_group {{ count: {} }}
        dynamic_batching {{ preferred_batch_size: 1 preserve_ordering: true }}",
        kinds.len()
    );
    let caching = |cache| ResponseCaching::new(cache).with_coalescing(coalesces);
    let cache = MapCache { waits, ..MapCache::default() };
    let world = world_with(caching, cache, &[config], Gate::default());
    world.gate.release("warm");
    block_on(world.begin("m", named("warm", b"hit")).single()).unwrap();
    let mut misses = Vec::new();
    for (number, kind) in kinds.bytes().enumerate() {
        let id = number.to_string();
        if kind == b'm' {
            misses.push((id.clone(), world.begin("m", named(&id, &[number as u8]))));
            world.gate.entered(1 + misses.len());
        } else {
            let answer = block_on(world.begin("m", named(&id, b"hit")).single()).unwrap();
            assert_eq!(bytes(&answer, "Z"), [0], "{case}");
        }
    }
    let (hits, count) = (kinds.len() - misses.len(), misses.len());
    let (first_id, first) = misses.remove(0);
    let mut first = Some(first);
    let ids: Vec<_> = misses.iter().map(|(id, _)| id.clone()).collect();
    for (number, id) in ids.iter().rev().enumerate() {
        world.gate.release(id);
        while world.executed.load(Relaxed) < number + 2 {
            thread::yield_now();
        }
        assert!(!misses.iter_mut().any(|(_, stream)| is_answered(stream)), "{case}: {id} overtook others");
    }
    if cancels {
        first = None;
    }
    world.gate.release(&first_id);
    if let Some((_, last)) = misses.last_mut() {
        block_on(last.single()).unwrap();
        misses.pop();
    }
    for (id, stream) in &mut misses {
        assert!(is_answered(stream), "{case}: the last one overtook {id}");
    }
    if let Some(mut first) = first {
        block_on(first.single()).unwrap();
    }
    let (counted, count) = (world.counted("m"), count as u64 + 1);
    assert_eq!(counted[1], hits as u64, "{case}");
    if !cancels {
        assert_eq!([counted[0], counted[2]], [count, count], "{case}");
    }
}

#[test]
fn hits_neither_wait_for_earlier_misses_nor_hold_up_later_ones() {
    for kinds in ["m", "hm", "mh", "mhm", "hhmhhmhhm", "mmhh", "mhhhm", "mmm", "hmmhmhhm"] {
        for bits in 0..8 {
            check(kinds, bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        }
    }
}
