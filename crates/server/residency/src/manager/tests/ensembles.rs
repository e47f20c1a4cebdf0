//! Ensembles whose members are loaded on demand, by a schedule, or under a budget: they come and leave together.

use super::*;

/// A schedule without a time in the next years.
const SCHEDULED: &str = "parameters { key: 'load_schedule' value { string_value: '0 0 29 2 *' } }";

/// An ensemble that passes its input through these members, and answers what the last one answers.
fn ensemble(members: &[&str]) -> String {
    let last = members.len() - 1;
    let tensor = |step: usize| if step == last { "Y".to_owned() } else { format!("t{step}") };
    let step = |(number, member): (usize, &&str)| {
        let from = number.checked_sub(1).map_or("X".to_owned(), tensor);
        format!(
            "step {{ model_name: '{member}' model_version: -1 input_map {{ key: 'X' value: '{from}' }} \
             output_map {{ key: 'Y' value: '{}' }} }} ",
            tensor(number)
        )
    };
    let steps: String = members.iter().enumerate().map(step).collect();
    format!("platform: 'ensemble' ensemble_scheduling {{ {steps} }}")
}

fn started(
    control: ModelControl,
    options: ResidencyOptions,
    models: &[(&str, u8, &str)],
    named: Option<&[&str]>,
) -> (World, Vec<(String, Error)>) {
    let world = idle_world(Box::new(Timestamp::now), control, options, models);
    let named = named.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let failures = world.server.start(named).unwrap();
    (world, failures)
}

type Done = Box<dyn FnOnce(Result<()>) + Send>;

impl World {
    fn resident_names(&self) -> String {
        self.resident().into_iter().collect::<Vec<_>>().join(" ")
    }

    fn poll_twice(&self) {
        (0..2).for_each(|_| assert!(self.server.poll(Duration::from_secs(60)).is_ok()));
    }

    fn control(
        &self,
        name: &str,
        how: impl FnOnce(&Server, ScopedName<'_>, Done) -> Result<()>,
    ) -> Result<()> {
        let (done, outcome) = mpsc::channel();
        let done = Box::new(move |result| done.send(result).unwrap());
        how(&self.server, ScopedName::everywhere(name), done)?;
        outcome.recv().unwrap()
    }

    fn load(&self, name: &str) -> Result<()> {
        self.control(name, |server, name, done| server.load_model(name, Overrides::default(), done))
    }

    fn unload(&self, name: &str) {
        self.control(name, |server, name, done| server.unload_model(name, done)).unwrap();
    }

    /// Evicts a model once no load concerns it and no thread holds its ensembles.
    fn evict_in_the_end(&self, name: &str) {
        while let Err(error) = self.server.evict_model_and_wait(name) {
            assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
        }
    }
}

#[tokio::test]
async fn whatever_loads_an_ensemble_loads_its_members() {
    let (inner, outer) = (ensemble(&["a", "b"]), ensemble(&["inner", "c", "a"]));
    let asleep = "parameters { key: 'load_on_demand' value { string_value: 'false' } }";
    let kept = format!("{SCHEDULED} {asleep}");
    let all = "a b c inner outer";
    for of_members in
        [["", "", ""], [ON_DEMAND; 3], [SCHEDULED; 3], [ON_DEMAND, SCHEDULED, ""], ["", &kept, ""]]
    {
        for (of_inner, of_outer) in [("", ""), ("", ON_DEMAND), (ON_DEMAND, ""), (SCHEDULED, ON_DEMAND)] {
            let (inner, outer) = (format!("{inner} {of_inner}"), format!("{outer} {of_outer}"));
            let [a, b, c] = of_members;
            let models = [("a", 1, a), ("b", 2, b), ("c", 3, c), ("inner", 4, &inner), ("outer", 5, &outer)];
            for (control, named) in [
                (ModelControl::None, None),
                (ModelControl::Poll, None),
                (ModelControl::Explicit, None),
                (ModelControl::Explicit, Some(&["outer"][..])),
                (ModelControl::Explicit, Some(&["a", "outer", "c"])),
                (ModelControl::Explicit, Some(&["outer", "inner", "a"])),
                (ModelControl::OnDemand, Some(&["outer"])),
                (ModelControl::OnDemand, Some(&[])),
            ] {
                let (world, failures) = started(control, ResidencyOptions::default(), &models, named);
                let case = format!("{of_members:?} {of_inner} {of_outer} {control:?} {named:?}");
                assert!(failures.is_empty(), "{case}: {failures:?}");
                assert!(world.server.is_ready(), "{case}");
                // Ensembles that wait for their first request leave their members to it.
                let is_loaded =
                    named != Some(&[]) && (of_outer.is_empty() || control == ModelControl::OnDemand);
                if is_loaded {
                    assert_eq!(world.resident_names(), all, "{case}");
                } else if named.is_none() && !of_inner.is_empty() && of_members == [ON_DEMAND; 3] {
                    assert_eq!(world.resident_names(), "", "{case}");
                }
                world.server.model_ready(ScopedName::everywhere("outer"), None).await.unwrap();
                assert_eq!(world.ask("outer").await.unwrap(), 1, "{case}");
                assert_eq!(world.ask("inner").await.unwrap(), 2, "{case}");
                assert_eq!(world.resident_names(), all, "{case}");
                let loads = world.loads();
                assert_eq!(loads.len(), 3, "{case}: {loads:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_brings_back_an_ensemble_and_a_member_that_left() {
    let (one, two, outer) = (ensemble(&["a", "b"]), ensemble(&["b", "c"]), ensemble(&["one", "c"]));
    for control in [ModelControl::None, ModelControl::Poll, ModelControl::Explicit, ModelControl::OnDemand] {
        for text in ["", ON_DEMAND] {
            let models = [
                ("a", 1, text),
                ("b", 2, text),
                ("c", 3, text),
                ("one", 0, &one),
                ("two", 0, &two),
                ("outer", 0, &outer),
            ];
            let named = (control == ModelControl::OnDemand).then_some(&["one", "outer", "two"][..]);
            let (world, _) = started(control, ResidencyOptions::default(), &models, named);
            world.loads();
            for (leaving, left, asked, answer, loads) in [
                ("a", "b c two", "outer", 3, &["a"][..]),
                ("b", "a c", "two", 3, &["b"]),
                ("c", "a b one", "one", 2, &[]),
            ] {
                world.evict_in_the_end(leaving);
                assert_eq!(world.resident_names(), left, "{control:?} without {leaving}");
                assert!(world.server.is_ready());
                assert_eq!(world.ask(asked).await.unwrap(), answer, "{control:?} without {leaving}");
                assert_eq!(world.loads(), loads, "{control:?} without {leaving}");
                for name in ["one", "two", "outer"] {
                    world.ask(name).await.unwrap();
                }
                world.loads();
            }
            // A poll leaves them alone.
            world.evict_in_the_end("b");
            if matches!(control, ModelControl::Poll | ModelControl::OnDemand) {
                world.poll_twice();
                assert_eq!(world.resident_names(), "a c", "{control:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_unloads_members_and_loads_ensembles() {
    let pair = ensemble(&["a", "b"]);
    for control in [ModelControl::Explicit, ModelControl::OnDemand] {
        for of_pair in ["", ON_DEMAND] {
            let pair = format!("{pair} {of_pair}");
            let models = [("a", 1, ON_DEMAND), ("b", 2, ""), ("pair", 0, pair.as_str())];
            let (world, _) = started(control, ResidencyOptions::default(), &models, Some(&[]));
            world.load("pair").unwrap();
            assert_eq!(world.resident_names(), "a b pair");
            for is_evicted in [false, true] {
                if is_evicted {
                    world.evict_in_the_end("b");
                }
                world.unload("a");
                let answer = world.ask("pair").await;
                // The next request loads it again only where all models are loaded on demand.
                assert_eq!(answer.is_ok(), control == ModelControl::OnDemand, "{is_evicted} {answer:?}");
                if let Err(error) = answer {
                    assert!(error.message().contains("'a'"), "{error}");
                }
                world.load("pair").unwrap();
                assert_eq!(world.ask("pair").await.unwrap(), 2);
            }
            world.unload("pair");
            assert_eq!(world.resident_names(), "a b");
        }
    }
}

#[tokio::test]
async fn a_member_that_cannot_be_loaded_is_named_with_its_reason() {
    let (inner, outer) = (ensemble(&["a"]), ensemble(&["inner", "b"]));
    for text in ["", ON_DEMAND, SCHEDULED] {
        let models = [("a", 1, text), ("b", 2, ""), ("inner", 0, inner.as_str()), ("outer", 0, &outer)];
        for control in
            [ModelControl::None, ModelControl::Poll, ModelControl::Explicit, ModelControl::OnDemand]
        {
            let options = ResidencyOptions { retry_pause: Duration::ZERO, ..ResidencyOptions::default() };
            let world = idle_world(Box::new(Timestamp::now), control, options, &models);
            world.is_broken.store(true, Ordering::Relaxed);
            let named = (control == ModelControl::OnDemand).then(Vec::new);
            let failures: BTreeMap<_, _> = world.server.start(named).unwrap().into_iter().collect();
            let error = if control == ModelControl::OnDemand {
                world.ask("outer").await.unwrap_err()
            } else {
                failures["outer"].clone()
            };
            for part in ["'outer'", "'inner'", "'a'", "broken on purpose"] {
                assert!(error.message().contains(part), "{control:?} {text}: {error}");
            }
            world.is_broken.store(false, Ordering::Relaxed);
            // A member that is loaded on demand is loaded for its own requests, too.
            let is_on_demand = control == ModelControl::OnDemand || !text.is_empty();
            assert_eq!(world.ask("a").await.is_ok(), is_on_demand, "{control:?} {text}");
            if is_on_demand {
                assert_eq!(world.ask("inner").await.unwrap(), 1, "{control:?} {text}");
            }
        }
    }
}

#[tokio::test]
async fn an_ensemble_whose_members_have_no_room_waits_for_its_first_request() {
    let ten = sized(10, "");
    let waiting = sized(10, ON_DEMAND);
    let (pair, one) = (ensemble(&["x", "y"]), ensemble(&["y"]));
    for text in [&ten, &waiting] {
        let models = [
            ("a", 1, ten.as_str()),
            ("pair", 0, pair.as_str()),
            ("one", 0, one.as_str()),
            ("x", 3, text),
            ("y", 4, text),
        ];
        for control in [ModelControl::None, ModelControl::Poll] {
            let (world, failures) = started(control, budget(25), &models, None);
            assert!(failures.is_empty(), "{failures:?}");
            assert!(world.server.is_ready());
            assert!(!world.resident().contains("pair") || !world.resident().contains("a"));
            for _ in 0..3 {
                assert_eq!(world.ask("a").await.unwrap(), 1);
                assert_eq!(world.ask("pair").await.unwrap(), 4);
                assert!(["pair", "x", "y"].iter().all(|name| world.resident().contains(*name)));
                assert!(!world.resident().contains("a"));
                assert_eq!(world.ask("one").await.unwrap(), 4);
                assert_eq!(world.ask("a").await.unwrap(), 1);
            }
        }
        // Too little for both members: the request learns why, and the others go on.
        for control in [ModelControl::None, ModelControl::OnDemand] {
            let named = (control == ModelControl::OnDemand).then_some(&[][..]);
            let (world, failures) = started(control, budget(15), &models, named);
            assert!(failures.is_empty(), "{failures:?}");
            for _ in 0..2 {
                let error = world.ask("pair").await.unwrap_err();
                assert!(error.message().contains("'pair' depends on '"), "{error}");
                assert!(error.message().contains("no room for model '"), "{error}");
                assert!(error.retry_after().is_some());
                assert_eq!(world.ask("one").await.unwrap(), 4);
                assert_eq!(world.ask("a").await.unwrap(), 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ensembles_take_turns_in_a_budget_with_room_for_one() {
    let ten = sized(10, "");
    let (one, two) = (ensemble(&["a", "b"]), ensemble(&["x", "y"]));
    let models = [
        ("a", 1, ten.as_str()),
        ("b", 2, &ten),
        ("x", 3, &ten),
        ("y", 4, &ten),
        ("one", 0, &one),
        ("two", 0, &two),
    ];
    for control in [ModelControl::None, ModelControl::OnDemand] {
        let world = Arc::new(world(control, budget(25), &models));
        let asking = [("one", 2), ("two", 4), ("one", 2), ("two", 4)].map(|(name, answer)| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                for _ in 0..10 {
                    let end = Instant::now() + Duration::from_secs(120);
                    loop {
                        match world.ask(name).await {
                            Ok(found) => break assert_eq!(found, answer, "{control:?}"),
                            // Each has a member that the other one waits for.
                            Err(error) => assert!(error.retry_after().is_some(), "{control:?}: {error}"),
                        }
                        assert!(Instant::now() < end, "{control:?}: '{name}' never has room");
                    }
                }
            })
        });
        join_all(asking).await.into_iter().for_each(|answered| answered.unwrap());
    }
}

/// Three members fit in memory, and each of six ensembles shares its two with others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ensembles_that_share_members_do_not_block_each_other() {
    let ten = sized(10, "");
    let names = ["a", "b", "c", "d", "e", "f"];
    let pairs = ["ab", "bc", "cd", "de", "ef", "fa"];
    let configs = pairs.map(|pair| ensemble(&[&pair[..1], &pair[1..]]));
    let mut models: Vec<_> = names.iter().map(|name| (*name, 1, ten.as_str())).collect();
    models.extend(pairs.iter().zip(&configs).map(|(name, config)| (*name, 0, config.as_str())));
    for control in [ModelControl::None, ModelControl::OnDemand] {
        let world = Arc::new(world(control, budget(35), &models));
        let mut refused = 0;
        for _ in 0..60 {
            let asking = pairs.map(|name| {
                let world = Arc::clone(&world);
                tokio::spawn(async move { world.ask(name).await })
            });
            for answer in join_all(asking).await {
                refused += u32::from(answer.unwrap().is_err());
            }
        }
        // A few may find none that can leave in time on a busy machine.
        assert!(refused <= 6, "{control:?}: {refused} of 360 requests were refused");
    }
}

#[tokio::test]
async fn members_leave_when_neither_they_nor_their_ensembles_are_used() {
    let parameter =
        |key: &str, value: &str| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
    let (one, never) = (parameter("idle_timeout_secs", "1"), parameter("idle_timeout_secs", "0"));
    let pair = ensemble(&["a", "b"]);
    let kept = format!("{} {}", ensemble(&["c", "b"]), parameter("keep_loaded", "true"));
    for (of_all, of_ac, of_b) in [(None, one.as_str(), ""), (Some(Duration::from_millis(500)), "", &never)] {
        let models =
            [("a", 1, of_ac), ("b", 2, of_b), ("pair", 0, &pair), ("c", 3, of_ac), ("kept", 0, &kept)];
        let options = ResidencyOptions { idle_timeout: of_all, ..ResidencyOptions::default() };
        let world = world(ModelControl::None, options, &models);
        assert_eq!(world.loads().len(), 3);
        world.until_resident(&["b", "c", "kept"]).await;
        assert_eq!(world.ask("pair").await.unwrap(), 2);
        assert_eq!(world.loads(), ["a"]);
        // A request in progress holds all of them.
        world.source.put("b", HELD, of_b);
        world.evict_in_the_end("b");
        let load = |server: &Server, name: ScopedName<'_>, done: Done| {
            server.load_on_demand(name, done);
            Ok(())
        };
        world.control("pair", load).unwrap();
        let (asked, held) = tokio::join!(world.ask("pair"), async {
            world.gate.entered(1);
            world.let_time_pass().await;
            let held = world.resident();
            world.gate.open();
            held
        });
        assert_eq!(asked.unwrap(), HELD);
        assert!(["a", "b", "pair"].iter().all(|name| held.contains(*name)), "{held:?}");
        // What kept the other member is gone.
        world.until_resident(&["b"]).await;
    }
}

#[test]
fn polls_find_ensembles_with_members_that_nobody_has_wanted_yet() {
    let (one, two) = (ensemble(&["a"]), ensemble(&["a", "b"]));
    for control in [ModelControl::Poll, ModelControl::OnDemand] {
        let named = (control == ModelControl::OnDemand).then_some(&["m"][..]);
        let models = [("a", 1, ON_DEMAND), ("b", 2, ON_DEMAND), ("m", 0, one.as_str())];
        let (world, failures) = started(control, ResidencyOptions::default(), &models, named);
        assert_eq!((failures.len(), world.resident_names().as_str()), (0, "a m"), "{control:?}");
        // A changed ensemble has another member.
        world.source.put("m", 1, &two);
        world.poll_twice();
        assert_eq!(world.resident_names(), "a b m", "{control:?}");
        // A new one with new members.
        world.source.put("c", 3, ON_DEMAND);
        world.source.put("n", 0, &ensemble(&["b", "c"]));
        world.poll_twice();
        let expected = if control == ModelControl::Poll { "a b c m n" } else { "a b m" };
        assert_eq!(world.resident_names(), expected, "{control:?}");
    }
}

#[tokio::test]
async fn members_are_loaded_in_the_namespace_of_their_ensemble() {
    let member = ON_DEMAND;
    let user = ensemble(&["both_m"]);
    for control in [ModelControl::None, ModelControl::Poll, ModelControl::Explicit, ModelControl::OnDemand] {
        let named = (control == ModelControl::OnDemand).then_some(&["both_e"][..]);
        let models = [("both_m", 1, member), ("both_e", 0, user.as_str())];
        let (world, failures) = started(control, ResidencyOptions::default(), &models, named);
        assert!(failures.is_empty(), "{control:?}: {failures:?}");
        let served = |world: &World| {
            let models = world.server.models();
            models.ready().map(|model| model.id().to_string()).collect::<Vec<_>>().join(" ")
        };
        let before = served(&world);
        assert_eq!(before.split(' ').count(), 4, "{control:?}: {before}");
        world.evict_in_the_end("both_m");
        assert_eq!(served(&world), "");
        for namespace in ["one", "two"] {
            let scope = Scope::of(namespace, move |id| id.namespace == namespace);
            let model = world.server.resolve(ScopedName::new("both_e", &scope), None).await.unwrap();
            assert_eq!(model.model().id().namespace, namespace);
        }
        assert_eq!(served(&world), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_is_lost_while_members_leave_and_are_reloaded() {
    let (one, two, outer) = (ensemble(&["a", "b"]), ensemble(&["b", "c"]), ensemble(&["one", "c"]));
    let models = [
        ("a", 1, ON_DEMAND),
        ("b", 2, ON_DEMAND),
        ("c", 3, ON_DEMAND),
        ("one", 0, one.as_str()),
        ("two", 0, &two),
        ("outer", 0, &outer),
    ];
    for control in [ModelControl::Poll, ModelControl::OnDemand, ModelControl::Explicit] {
        let named = (control == ModelControl::OnDemand).then_some(&[][..]);
        let world = Arc::new(started(control, ResidencyOptions::default(), &models, named).0);
        let is_over = Arc::new(AtomicBool::new(false));
        let changing = {
            let (world, is_over) = (Arc::clone(&world), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut evictions = 0;
                for round in 0_u32.. {
                    if is_over.load(Ordering::Relaxed) {
                        return evictions;
                    }
                    let name = ["a", "b", "c"][round as usize % 3];
                    match round % 4 {
                        0 if control == ModelControl::Poll => world.poll_twice(),
                        0 => world.load("two").unwrap(),
                        1 => evictions += usize::from(world.server.evict_model(name).is_ok()),
                        _ => evictions += usize::from(world.server.evict_model_and_wait(name).is_ok()),
                    }
                }
                evictions
            })
        };
        let asking = ["a", "b", "c", "one", "two", "outer"].map(|name| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let answer = match name {
                    "a" => 1,
                    "b" | "one" => 2,
                    _ => 3,
                };
                for _ in 0..200 {
                    assert_eq!(world.ask(name).await.unwrap(), answer, "{control:?} {name}");
                    tokio::task::yield_now().await;
                }
            })
        });
        let answered = join_all(asking).await;
        is_over.store(true, Ordering::Relaxed);
        let evictions = changing.join().unwrap();
        answered.into_iter().for_each(|answered| answered.unwrap());
        assert!(evictions > 0, "{control:?}");
    }
}
