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

/// Begins requests, each of which has been looked up when this returns.
fn begin(world: &World, id: &str, contents: &[u8]) -> ResponseStream {
    let counts = || {
        let counts = world.server.options().response_cache.as_ref().unwrap().counts();
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
            assert_eq!(bytes(&crate::block_on(stream.single()).unwrap(), "Y")[..1], *b"A");
        }
        crate::block_on({ other }.single()).unwrap();
        assert_eq!(world.counted("m"), [2, 9, 2, 11, 0], "{waits}");
    }
}

#[test]
fn those_who_wait_get_an_answer_that_is_not_stored() {
    for waits in [false, true] {
        let world = coalescing_in(MapCache { waits, ..full() });
        world.gate.open();
        crate::block_on(world.begin("m", named("first", b"xyz")).single()).unwrap();
        assert_eq!(world.cache.entries.lock().unwrap().len(), 0, "{waits}");
        crate::block_on(world.begin("m", named("second", b"xyz")).single()).unwrap();
        assert_eq!(world.cache.entries.lock().unwrap().len(), 1, "{waits}");
        assert_eq!(world.counted("m"), [2, 0, 2, 2, 0], "{waits}");
    }
    let world = coalescing_in(full());
    let streams: Vec<_> = (0..10).map(|number| begin(&world, &number.to_string(), b"abc")).collect();
    world.gate.open();
    for mut stream in streams {
        assert_eq!(bytes(&crate::block_on(stream.single()).unwrap(), "Y")[..1], *b"A");
    }
    assert_eq!(world.counted("m"), [1, 9, 1, 10, 0]);
}

#[test]
fn where_the_first_is_cancelled_the_next_is_executed() {
    let world = coalescing(false);
    let first = begin(&world, "first", b"abc");
    world.gate.entered(1);
    let mut others: Vec<_> = (0..3).map(|number| begin(&world, &number.to_string(), b"abc")).collect();
    // One that waits may go, too.
    drop(others.remove(0));
    drop(first);
    world.gate.open();
    for mut stream in others {
        crate::block_on(stream.single()).unwrap();
    }
    assert!(world.executed.load(Relaxed) <= 2);
}

#[test]
fn an_error_of_the_model_is_everybodys() {
    let world = coalescing(false);
    let streams: Vec<_> = (0..5).map(|number| begin(&world, &number.to_string(), &[99])).collect();
    world.gate.open();
    for mut stream in streams {
        let error = crate::block_on(stream.single()).unwrap_err();
        assert_eq!(error.message(), "failed on purpose");
    }
    assert_eq!(world.counted("m"), [1, 0, 1, 0, 5]);
}
