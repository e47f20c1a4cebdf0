//! Models that are loaded by their schedules, on a simulated wall clock.

use std::sync::atomic::AtomicI64;

use super::*;

/// A clock that the test sets, in seconds of 1 January 1970.
#[derive(Clone, Default)]
struct Wall(Arc<AtomicI64>);

impl Wall {
    fn set(&self, hour: i64, minute: i64) {
        self.0.store(3600 * hour + 60 * minute, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let wall = Arc::clone(&self.0);
        Box::new(move || Timestamp::from_second(wall.load(Ordering::Relaxed)).unwrap())
    }
}

fn scheduled(times: &str, more: &str) -> String {
    format!(
        "parameters {{ key: 'load_schedule' value {{ string_value: '{times}' }} }} \
         parameters {{ key: 'load_schedule_keep' value {{ string_value: '2h' }} }} {more}"
    )
}

impl World {
    /// Waits until exactly these models are in memory.
    pub(super) async fn until_resident(&self, names: &[&str]) {
        let expected: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let end = Instant::now() + Duration::from_secs(60);
        while self.resident() != expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", self.resident());
            tokio::time::sleep(IDLE_CHECK / 4).await;
        }
    }

    /// Waits until the index has this reason for a model.
    async fn until_reason(&self, name: &str, reason: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.reason(name).as_deref() != Some(reason) {
            assert!(Instant::now() < end, "{:?} instead of {reason}", self.reason(name));
            tokio::time::sleep(IDLE_CHECK / 4).await;
        }
    }

    fn reason(&self, name: &str) -> Option<String> {
        let index: Vec<_> = self.server.models().index().filter(|status| status.id.name == name).collect();
        self.server.reason(&index[0])
    }

    /// Waits until the clock has been looked at a few times.
    pub(super) async fn let_time_pass(&self) {
        tokio::time::sleep(10 * IDLE_CHECK).await;
    }
}

#[tokio::test]
async fn a_model_is_there_at_its_time_and_leaves_after_it() {
    let times = scheduled("0 8 * * *", "");
    let idle =
        ResidencyOptions { idle_timeout: Some(Duration::from_millis(50)), ..ResidencyOptions::default() };
    for control in [ModelControl::None, ModelControl::Poll] {
        let wall = Wall::default();
        wall.set(7, 0);
        let world = world_at(wall.clock(), control, idle.clone(), &[("m", 1, &times)]);
        assert!(world.server.is_ready() && world.resident().is_empty());
        let reason = "loaded on demand, by its schedule next at 1970-01-01 08:00 UTC";
        assert_eq!(world.reason("m").as_deref(), Some(reason));
        wall.set(8, 0);
        world.until_resident(&["m"]).await;
        // However idle it is.
        world.let_time_pass().await;
        assert_eq!((world.resident().len(), world.loads().len(), world.reason("m")), (1, 1, None));
        assert_eq!(world.ask("m").await.unwrap(), 1);
        wall.set(10, 0);
        world.until_resident(&[]).await;
        world.until_reason("m", "loaded on demand, by its schedule next at 1970-01-02 08:00 UTC").await;
        // A request has it before.
        assert_eq!(world.ask("m").await.unwrap(), 1);
        world.until_resident(&[]).await;
        wall.set(32, 30);
        world.until_resident(&["m"]).await;
        assert_eq!(world.loads().len(), 2);
    }
}

#[tokio::test]
async fn a_server_that_starts_late_loads_what_should_be_there() {
    let times = scheduled("0 8 * * *", "");
    let wall = Wall::default();
    wall.set(9, 59);
    let world = world_at(wall.clock(), ModelControl::None, ResidencyOptions::default(), &[("m", 1, &times)]);
    world.until_resident(&["m"]).await;
    assert_eq!(world.loads(), ["m"]);
}

#[tokio::test]
async fn a_model_that_a_client_unloaded_stays_so_and_a_broken_one_is_tried_again() {
    let times = scheduled("0 8 * * *", "");
    let wall = Wall::default();
    wall.set(7, 0);
    let models = [("m", 1, times.as_str()), ("n", 2, &times)];
    let options = ResidencyOptions { retry_pause: Duration::from_millis(300), ..ResidencyOptions::default() };
    let world = world_at(wall.clock(), ModelControl::Explicit, options, &models);
    let (done, outcome) = mpsc::channel();
    world.server.unload_model(ScopedName::everywhere("m"), move |it| done.send(it).unwrap()).unwrap();
    outcome.recv().unwrap().unwrap();
    world.is_broken.store(true, Ordering::Relaxed);
    wall.set(8, 0);
    while world.loads.lock().unwrap().is_empty() {
        tokio::time::sleep(IDLE_CHECK / 4).await;
    }
    world.is_broken.store(false, Ordering::Relaxed);
    // Whenever the pause after the failure is over.
    for minute in 1.. {
        assert!(minute < 120, "{:?}", world.resident());
        wall.set(8, minute);
        world.let_time_pass().await;
        if !world.resident().is_empty() {
            break;
        }
    }
    world.until_resident(&["n"]).await;
    world.let_time_pass().await;
    assert_eq!(world.resident().len(), 1);
}

#[tokio::test]
async fn a_schedule_makes_room_but_not_by_busier_models() {
    let (plain, times) = (sized(10, ""), sized(10, &scheduled("0 8 * * *", "")));
    let models = [("busy", 1, plain.as_str()), ("lazy", 2, &plain), ("m", 3, &times)];
    let wall = Wall::default();
    wall.set(7, 0);
    let world = world_at(wall.clock(), ModelControl::OnDemand, budget(20), &models);
    // The schedule is known from the first load on.
    for name in ["m", "m", "m"] {
        world.ask(name).await.unwrap();
    }
    world.evict("m");
    // Its memory is free.
    world.until_reason("m", "loaded on demand, by its schedule next at 1970-01-01 08:00 UTC").await;
    for _ in 0..20 {
        world.ask("busy").await.unwrap();
    }
    world.ask("lazy").await.unwrap();
    world.until_resident(&["busy", "lazy"]).await;
    wall.set(8, 0);
    world.until_resident(&["busy", "m"]).await;
    wall.set(10, 0);
    world.evict("m");
    world.until_reason("m", "loaded on demand, by its schedule next at 1970-01-02 08:00 UTC").await;
    for _ in 0..20 {
        world.ask("lazy").await.unwrap();
    }
    wall.set(32, 0);
    // All other models are busier: the scheduled load gives up, and no request waits.
    let retry = Timestamp::from_second(32 * 3600 + 60).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while world.residency.schedules.due_at("m") != Some(retry) {
        assert!(Instant::now() < end, "{:?}", world.residency.schedules);
        tokio::time::sleep(IDLE_CHECK / 4).await;
    }
    assert_eq!(world.resident(), ["busy", "lazy"].map(str::to_owned).into());
    assert_eq!(world.ask("m").await.unwrap(), 3);
    assert!(world.resident().contains("m"));
    // The model stays until its schedule ends, even if others need room.
    for _ in 0..10 {
        world.ask("busy").await.unwrap();
        world.ask("lazy").await.unwrap();
    }
    assert!(world.resident().contains("m"), "{:?}", world.resident());
}

#[tokio::test]
async fn requests_share_the_load_of_a_schedule() {
    let times = scheduled("0 8 * * *", "");
    let wall = Wall::default();
    wall.set(7, 0);
    let world = world_at(wall.clock(), ModelControl::None, ResidencyOptions::default(), &[("m", 1, &times)]);
    world.hold(true);
    wall.set(8, 0);
    while world.loads.lock().unwrap().is_empty() {
        tokio::time::sleep(IDLE_CHECK / 4).await;
    }
    let asking = async {
        world.let_time_pass().await;
        world.hold(false);
    };
    let (answers, ()) = tokio::join!(join_all((0..20).map(|_| world.ask("m"))), asking);
    assert!(answers.into_iter().all(|answer| answer == Ok(1)));
    assert_eq!(world.loads(), ["m"]);
}
