//! Equal requests in progress together.

use super::*;

fn coalescing(waits: bool) -> World {
    coalescing_in(MapCache { waits, ..MapCache::default() })
}

fn coalescing_in(cache: MapCache) -> World {
    let caching = |cache| ResponseCaching::new(cache).with_coalescing(true);
    let config = format!("name: 'm' {TENSORS} {ON} instance_group {{ count: 2 }}");
    world_with(caching, cache, &[config], Gate::default())
}

fn named(id: &str, contents: &[u8]) -> InferRequest {
    InferRequest { id: id.into(), ..request(contents) }
}

/// Sends a request and waits until it was looked up.
fn begin(world: &World, id: &str, contents: &[u8]) -> ResponseStream {
    let counts = || {
        let counts = world.caching.counts();
        counts.hits + counts.misses
    };
    let before = counts();
    let stream = world.begin("m", named(id, contents));
    while counts() == before {
        thread::yield_now();
    }
    stream
}

#[test]
fn one_of_equal_requests_is_executed() {
    for waits in [false, true] {
        let world = coalescing(waits);
        let streams: Vec<_> = (0..10).map(|number| begin(&world, &number.to_string(), b"abc")).collect();
        let other = begin(&world, "other", b"abd");
        world.gate.open();
        for mut stream in streams {
            assert_eq!(bytes(&block_on(stream.single()).unwrap(), "Y")[..1], *b"A");
        }
        block_on({ other }.single()).unwrap();
        assert_eq!(world.counted("m"), [2, 9, 2, 11, 0], "{waits}");
    }
}

#[test]
fn followers_get_an_answer_that_is_not_stored() {
    for waits in [false, true] {
        let world = coalescing_in(MapCache { waits, ..full() });
        world.gate.open();
        block_on(world.begin("m", named("first", b"xyz")).single()).unwrap();
        assert_eq!(world.cache.entries.lock().unwrap().len(), 0, "{waits}");
        block_on(world.begin("m", named("second", b"xyz")).single()).unwrap();
        assert_eq!(world.cache.entries.lock().unwrap().len(), 1, "{waits}");
        assert_eq!(world.counted("m"), [2, 0, 2, 2, 0], "{waits}");
    }
    let world = coalescing_in(full());
    let streams: Vec<_> = (0..10).map(|number| begin(&world, &number.to_string(), b"abc")).collect();
    world.gate.open();
    for mut stream in streams {
        assert_eq!(bytes(&block_on(stream.single()).unwrap(), "Y")[..1], *b"A");
    }
    assert_eq!(world.counted("m"), [1, 9, 1, 10, 0]);
}

#[test]
fn cancelled_leader_is_replaced_by_a_follower() {
    let world = coalescing(false);
    let first = begin(&world, "first", b"abc");
    world.gate.entered(1);
    let mut others: Vec<_> = (0..3).map(|number| begin(&world, &number.to_string(), b"abc")).collect();
    // A follower may be cancelled, too.
    drop(others.remove(0));
    drop(first);
    world.gate.open();
    for mut stream in others {
        block_on(stream.single()).unwrap();
    }
    assert!(world.executed.load(Relaxed) <= 2);
}

#[test]
fn error_of_the_model_answers_all_equal_requests() {
    let world = coalescing(false);
    let streams: Vec<_> = (0..5).map(|number| begin(&world, &number.to_string(), &[99])).collect();
    world.gate.open();
    for mut stream in streams {
        let error = block_on(stream.single()).unwrap_err();
        assert_eq!(error.message(), "failed on purpose");
    }
    assert_eq!(world.counted("m"), [1, 0, 1, 0, 5]);
}
