//! The loads of one model on a clock of the tests' own.

use nereid_core::ScopedName;
use proptest::prelude::*;

use super::*;

const PAUSE: Duration = Duration::from_secs(10);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Loads on a clock of the test's own.
struct World {
    loads: Loads,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self { loads: Loads::new(PAUSE), now: Instant::now() }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.loads.expire(self.now);
    }

    fn request(&mut self, patience: Duration) -> Answer {
        self.loads.request(ScopedName::everywhere("m"), self.now, self.now, self.now + patience)
    }

    fn end(&mut self, outcome: Result<()>) {
        self.loads.ended(ScopedName::everywhere("m"), self.now, &outcome);
    }
}

fn broken() -> Result<()> {
    Err(Error::internal("broken on purpose"))
}

fn is_woken(receiver: &mut Receiver<()>) -> bool {
    receiver.try_recv().is_ok()
}

#[test]
fn concurrent_requests_share_one_load_and_end_with_it() {
    for outcome in [Ok(()), broken()] {
        let mut world = World::new();
        let answers: Vec<_> = (0..100).map(|_| world.request(seconds(60))).collect();
        let starts = answers.iter().filter(|answer| answer.starts_load).count();
        assert!(answers[0].starts_load && starts == 1);
        let mut waiting: Vec<_> = answers.into_iter().map(|answer| answer.wait.unwrap()).collect();
        assert!(!waiting.iter_mut().any(is_woken));
        world.end(outcome);
        assert!(waiting.iter_mut().all(is_woken));
    }
}

#[test]
fn a_failed_load_is_tried_again_after_pauses_that_double() {
    let mut world = World::new();
    for pause in [10, 20, 40, 80, 80] {
        let arrived = world.now;
        assert!(world.request(seconds(60)).starts_load);
        world.end(broken());
        for (passed, retry_after) in [(0, pause), (1, pause - 1), (pause - 2, 1)] {
            world.pass(seconds(passed));
            let answer = world.request(seconds(60));
            let error = answer.wait.unwrap_err();
            assert!(!answer.starts_load);
            assert_eq!(error.code(), nereid_backend_api::ErrorCode::Unavailable);
            assert_eq!(error.message(), "model 'm' could not be loaded for this request: broken on purpose");
            assert_eq!(error.retry_after().map(|it| u64::from(it.get())), Some(retry_after));
            assert!(
                world.loads.is_paused(ScopedName::everywhere("m"), world.now)
                    && world.loads.is_active(ScopedName::everywhere("m"))
            );
        }
        world.pass(seconds(1));
        assert!(!world.loads.is_paused(ScopedName::everywhere("m"), world.now));
        // A request that waited for this load starts no other one.
        let answer =
            world.loads.request(ScopedName::everywhere("m"), arrived, world.now, world.now + seconds(60));
        assert!(!answer.starts_load && answer.wait.is_err());
    }
    assert!(world.request(seconds(60)).starts_load);
    world.end(Ok(()));
    assert!(!world.loads.is_active(ScopedName::everywhere("m")));
    // A success ends the doubling.
    assert!(world.request(seconds(60)).starts_load);
    world.end(broken());
    world.pass(PAUSE);
    assert!(world.request(seconds(60)).starts_load);
}

#[test]
fn the_time_to_try_again_is_that_of_the_failure_if_it_is_later() {
    for (own, expected) in [(None, 10), (Some(3), 10), (Some(40), 40)] {
        let mut world = World::new();
        assert!(world.request(seconds(60)).starts_load);
        let error = Error::unavailable("no room");
        world.end(Err(own.map_or(error.clone(), |own| error.with_retry_after(seconds(own)))));
        let error = world.request(seconds(60)).wait.unwrap_err();
        assert_eq!(error.retry_after().map(|it| it.get()), Some(expected));
    }
}

#[test]
fn a_request_waits_no_longer_than_it_may() {
    let mut world = World::new();
    let mut short = world.request(seconds(2)).wait.unwrap();
    let mut long = world.request(seconds(9)).wait.unwrap();
    world.pass(seconds(1));
    assert!(!is_woken(&mut short));
    world.pass(seconds(1));
    assert!(is_woken(&mut short) && !is_woken(&mut long));
    // The woken request is decided about again.
    let answer =
        world.loads.request(ScopedName::everywhere("m"), world.now - seconds(2), world.now, world.now);
    let error = answer.wait.unwrap_err();
    assert!(!answer.starts_load);
    assert_eq!(error.message(), "model 'm' is still being loaded after 2.0 s; try again later");
    world.pass(seconds(7));
    assert!(is_woken(&mut long));
}

#[test]
fn a_request_that_cannot_wait_is_refused_at_once_and_starts_the_load() {
    let mut world = World::new();
    let answer = world.request(Duration::ZERO);
    assert!(answer.starts_load && answer.wait.is_err());
    world.pass(seconds(8));
    world.end(Ok(()));
    // The next load is expected to take as long as this one.
    for (patience, expected) in [(3, None), (7, None), (9, Some(())), (8, Some(()))] {
        let answer = world.request(seconds(patience));
        assert_eq!(answer.wait.as_ref().ok().map(drop), expected, "{patience}");
        if let Err(error) = answer.wait {
            assert_eq!(error.retry_after().map(|it| it.get()), Some(8));
            assert!(error.message().contains("for about 8.0 s more"), "{error}");
        }
    }
    world.pass(seconds(5));
    assert!(world.request(seconds(3)).wait.is_ok());
    // Longer than the last time: it may end any moment.
    world.pass(seconds(60));
    assert!(world.request(Duration::from_millis(1)).wait.is_ok());
}

#[test]
fn requests_whose_clients_left_take_no_memory() {
    let mut world = World::new();
    let held = world.request(seconds(60)).wait.unwrap();
    for _ in 0..10_000 {
        drop(world.request(seconds(60)));
    }
    let Some(ModelLoads { state: State::Loading { waiting, .. }, .. }) =
        world.loads.models.get(&key(ScopedName::everywhere("m")))
    else {
        panic!("the model is being loaded");
    };
    assert!(waiting.len() <= FEW, "{}", waiting.len());
    drop(held);
}

#[derive(Clone, Debug)]
enum Event {
    Request { patience: u64 },
    Leave(prop::sample::Index),
    Pass(u64),
    End(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (0..30_u64).prop_map(|patience| Event::Request { patience }),
        1 => any::<prop::sample::Index>().prop_map(Event::Leave),
        3 => (1..25_u64).prop_map(Event::Pass),
        2 => any::<bool>().prop_map(Event::End),
    ];
    proptest::collection::vec(event, 1..60)
}

proptest! {
    /// One load at a time, no request waits past its time or past the end of the load, and none is woken earlier.
    #[test]
    fn every_request_is_answered_in_time(events in events()) {
        let mut world = World::new();
        let mut waiting: Vec<(Instant, Receiver<()>)> = Vec::new();
        let (mut is_loading, mut failed_at) = (false, None);
        for event in events {
            match event {
                Event::Request { patience } => {
                    let until = world.now + seconds(patience);
                    let paused = world.loads.is_paused(ScopedName::everywhere("m"), world.now);
                    let answer = world.request(seconds(patience));
                    // A failure at this very moment counts for a request that arrives at it.
                    prop_assert_eq!(answer.starts_load, !is_loading && !paused && failed_at != Some(world.now));
                    is_loading |= answer.starts_load;
                    if let Ok(receiver) = answer.wait {
                        prop_assert!(is_loading && patience > 0);
                        waiting.push((until, receiver));
                    }
                }
                Event::Leave(index) => {
                    if !waiting.is_empty() {
                        waiting.swap_remove(index.index(waiting.len()));
                    }
                }
                Event::Pass(time) => world.pass(seconds(time)),
                Event::End(succeeds) => {
                    world.end(if succeeds { Ok(()) } else { broken() });
                    if std::mem::take(&mut is_loading) {
                        failed_at = (!succeeds).then_some(world.now);
                        for (_, mut receiver) in waiting.drain(..) {
                            prop_assert!(is_woken(&mut receiver));
                        }
                    }
                }
            }
            let now = world.now;
            let mut wrong = false;
            waiting.retain_mut(|(until, receiver)| {
                let woken = is_woken(receiver);
                wrong |= woken != (*until <= now);
                !woken
            });
            prop_assert!(!wrong);
        }
    }
}
