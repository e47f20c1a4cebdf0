//! Loads that wait for room, side by side.

use super::*;

/// A server with the model `busy` of 10, whose request waits at the gate, and that request.
async fn crowded(bytes: u64, models: &[(&str, u8, &str)]) -> (World, nereid_core::ResponseStream) {
    let ten = sized(10, "");
    let mut all = vec![("busy", HELD, ten.as_str())];
    all.extend_from_slice(models);
    let world = world(ModelControl::OnDemand, budget(bytes), &all);
    let busy = world.server.resolve(ScopedName::everywhere("busy"), None).await.unwrap();
    let answers = world.server.infer(&busy, input(), Caller::default()).unwrap();
    (world, answers)
}

/// Asks for models one after the other while `busy` holds memory, each once the load before waits. `None` if the machine was too slow,
/// so that the first one was refused meanwhile.
async fn asked_in_order(names: [&'static str; 3], models: &[(&str, u8, &str)]) -> Option<Vec<String>> {
    let (world, mut answers) = crowded(30, models).await;
    assert_eq!(world.loads(), ["busy"]);
    let world = Arc::new(world);
    let mut waiting = Vec::new();
    for name in names {
        let asking = Arc::clone(&world);
        let asked = tokio::spawn(async move { asking.ask(name).await });
        while !world.residency.rooms.waits(name) && !asked.is_finished() {
            std::thread::yield_now();
        }
        waiting.push(asked);
    }
    let early = world.loads();
    world.gate.open();
    answers.single().await.unwrap();
    drop(answers);
    let answers = join_all(waiting).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap()).collect();
    if answers[0].as_ref().is_err_and(|error| error.message().contains("none can leave now")) {
        return None;
    }
    for (answer, content) in answers.iter().zip(1..) {
        // The others may find on a slow machine that none can leave in time.
        assert!(answer.as_ref().is_ok_and(|answer| *answer == content) || answer.is_err(), "{answer:?}");
    }
    assert_eq!(*answers[0].as_ref().unwrap(), 1);
    assert_eq!(early, [""; 0], "what is free waits for the first one");
    Some(world.loads())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_model_is_not_overtaken_by_small_ones_that_fit() {
    let (large, small) = (sized(30, ""), sized(5, ""));
    let models = [("large", 1, large.as_str()), ("small", 2, &small), ("other", 3, &small)];
    loop {
        if let Some(loads) = asked_in_order(["large", "small", "other"], &models).await {
            assert_eq!(loads[0], "large");
            return;
        }
    }
}

#[tokio::test]
async fn nothing_leaves_for_a_model_that_models_that_stay_leave_no_room() {
    let kept = sized(10, "parameters { key: 'keep_loaded' value { string_value: 'true' } }");
    let (plain, large) = (sized(10, ""), sized(25, ""));
    let models = [("kept", 1, kept.as_str()), ("a", 2, &plain), ("b", 3, &plain), ("large", 4, &large)];
    let world = world(ModelControl::OnDemand, budget(30), &models);
    for name in ["kept", "a", "b"] {
        world.ask(name).await.unwrap();
    }
    let error = world.ask("large").await.unwrap_err();
    assert!(error.message().contains("and models that stay in memory take 0.0 MB of 0.0 MB"), "{error}");
    assert!(error.retry_after().is_some());
    assert_eq!(world.resident(), ["a", "b", "kept"].map(str::to_owned).into());
}
