//! Searches of a machine that is simulated, on a paused clock.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use tokio::time::sleep;

use super::*;
use crate::settings::Batching;

const THROUGHPUT: Objective = Objective { goal: Goal::Throughput, p99: None };

fn measurement(rate: f64) -> Measurement {
    Measurement { rate, median: 1.0, p99: 2.0, cpu: 0.1, memory: 1 << 20 }
}

/// Candidates that differ in the delay of their batches; the first is the present configuration.
fn candidates(count: u64) -> Vec<Settings> {
    let delayed = |delay| Settings { batching: Batching::Dynamic { size: 8, delay }, ..Settings::PRESENT };
    [Settings::PRESENT].into_iter().chain((1..count).map(delayed)).collect()
}

fn delay(settings: &Settings) -> u64 {
    match settings.batching {
        Batching::Dynamic { delay, .. } => delay,
        _ => 0,
    }
}

/// A simulated search.
#[derive(Debug)]
struct Searched {
    trials: Vec<Trial>,
    took: Duration,
    enough: Duration,
    point: Option<Duration>,
    /// The windows in which each candidate was measured, by its delay.
    windows: BTreeMap<u64, Vec<Duration>>,
    progress: Vec<(Duration, Progress)>,
}

impl Searched {
    fn count(&self, is_counted: impl Fn(&Trial) -> bool) -> usize {
        self.trials.iter().filter(|trial| is_counted(trial)).count()
    }
}

/// A search with servers that start in `start`. `run` returns the figures of a candidate and the time beyond its window.
async fn searched_slowly(
    candidates: Vec<Settings>,
    objective: Objective,
    budget: Duration,
    start: impl Fn(&Settings) -> Duration,
    mut run: impl FnMut(&Settings, Slot) -> Result<(Measurement, Duration), String>,
) -> Searched {
    let (windows, mut seen) = (RefCell::new(BTreeMap::<_, Vec<_>>::new()), Vec::new());
    let began = Instant::now();
    // The present configuration is loaded before the search.
    let mut is_loaded = true;
    sleep(start(&Settings::PRESENT).min(budget)).await;
    let measure = async |settings: &Settings, slot: Slot| {
        if !std::mem::take(&mut is_loaded) {
            sleep(start(settings)).await;
        }
        let outcome = run(settings, slot);
        if let Ok((_, further)) = &outcome {
            sleep(slot.window + *further).await;
        }
        windows.borrow_mut().entry(delay(settings)).or_default().push(slot.window);
        outcome.map(|(measured, _)| measured)
    };
    let limit = Limit { began, budget, points: 6 };
    let progress = |progress| seen.push((began.elapsed(), progress));
    let Found { trials, point, enough } = search(candidates, &objective, limit, measure, progress).await;
    let took = began.elapsed();
    Searched { trials, took, enough, point, windows: windows.into_inner(), progress: seen }
}

async fn searched(
    candidates: Vec<Settings>,
    objective: Objective,
    budget: u64,
    start: Duration,
    mut run: impl FnMut(&Settings, Duration) -> Result<Measurement, String>,
) -> Searched {
    let run = |settings: &Settings, slot: Slot| Ok((run(settings, slot.window)?, Duration::ZERO));
    searched_slowly(candidates, objective, Duration::from_secs(budget), |_| start, run).await
}

#[test]
fn each_round_has_a_third_of_the_one_before() {
    for (count, expected) in [
        (0, &[][..]),
        (1, &[]),
        (2, &[2]),
        (3, &[3]),
        (4, &[3]),
        (9, &[3]),
        (10, &[4, 3]),
        (64, &[22, 8, 3]),
        (100, &[34, 12, 4, 3]),
    ] {
        assert_eq!(later_sizes(count), expected, "{count}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_best_is_found_within_the_time_although_short_measurements_are_noisy() {
    for (count, budget) in [(4, 20), (25, 60), (60, 120), (120, 300)] {
        for best in [1, count / 2, count - 1] {
            // More than all others, by more than a short measurement is wrong, most of the time.
            let mut number = 0_u64;
            let run = |settings: &Settings, window: Duration| {
                number += 1;
                let rate = if delay(settings) == best { 1150.0 } else { 1000.0 };
                let noise = ((number * 7919) % 201) as f64 / 100.0 - 1.0;
                Ok(measurement(rate * (1.0 + 0.05 * noise / window.as_secs_f64().sqrt())))
            };
            let found =
                searched(candidates(count), THROUGHPUT, budget, Duration::from_millis(300), run).await;
            assert_eq!(delay(&found.trials[0].settings), best, "{count} {budget}");
            assert_eq!(found.trials.len() as u64, count);
            assert_eq!(found.count(Trial::is_untried), 0);
            assert!(found.took <= Duration::from_secs(budget), "{count}: {:?}", found.took);
            // The present configuration is measured first and in each later round, and each round longer.
            let present = &found.windows[&0];
            assert_eq!(present.len(), 1 + later_sizes(count as usize).len());
            assert!(present[1..].is_sorted(), "{present:?}");
            let measured: usize = found.windows.values().map(Vec::len).sum();
            assert_eq!(found.progress.len(), measured);
            let (_, last) = found.progress.last().unwrap();
            assert_eq!((last.done, last.all), (measured, measured));
        }
    }
}

/// A model with requests of `service`. Other candidates are up to twice as fast as the present configuration.
fn slow_model(
    service: Duration,
    clients: usize,
) -> impl FnMut(&Settings, Slot) -> Result<(Measurement, Duration), String> {
    move |settings, slot| {
        let service = service.div_f64(1.0 + (delay(settings) % 7) as f64 / 6.0);
        // Two answers to each client, or the first one.
        let warm_up = (service * 2 * clients as u32).min(slot.warm_up.max(service));
        let further = service.saturating_sub(slot.window);
        Ok((measurement(1.0 / service.as_secs_f64()), warm_up + further))
    }
}

/// A duration from a range whose ends are orders of magnitude apart.
fn log_uniform(range: std::ops::Range<f64>) -> impl Strategy<Value = Duration> {
    (range.start.ln()..range.end.ln()).prop_map(|power| Duration::from_secs_f64(power.exp()))
}

fn on_a_paused_clock<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(run)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_search_ends_within_its_time(
        service in log_uniform(1e-5..10.0),
        start in log_uniform(0.05..20.0),
        budget in 5_u64..3600,
        count in 2_u64..130,
        clients in 1_usize..64,
    ) {
        let budget = Duration::from_secs(budget);
        let found = on_a_paused_clock(searched_slowly(candidates(count), THROUGHPUT, budget, |_| start, slow_model(service, clients)));
        // Timers have milliseconds.
        let rounding = Duration::from_millis(2);
        prop_assert!(found.took <= budget + rounding, "{:?}", found.took);
        prop_assert_eq!(found.trials.len() as u64, count);
        let measured = found.count(|trial| trial.outcome.is_ok());
        prop_assert_eq!(measured + found.count(Trial::is_untried), found.trials.len());
        // The curves have the time that they need.
        if let Some(point) = found.point {
            prop_assert!(found.took + (start + point * 6) * 2 <= budget + rounding, "{:?} {point:?}", found.took);
        }
        // The time left is never more than the rest of the budget, and the bar ends full.
        for (at, progress) in &found.progress {
            prop_assert!(*at + progress.left <= budget + rounding, "{at:?} {progress:?}");
            prop_assert!(progress.done <= progress.all);
        }
        if let Some((_, last)) = found.progress.last() {
            prop_assert_eq!(last.done, last.all);
        }
        // With time for three loads and measurements, two configurations are compared.
        let least = (start + 6 * service + Duration::from_millis(600)) * 3 + budget / 20;
        if least <= budget {
            prop_assert!(measured >= 2, "{measured}");
        }
        // The suggested time is sufficient.
        if measured < found.trials.len() {
            let again = on_a_paused_clock(searched_slowly(candidates(count), THROUGHPUT, found.enough, |_| start, slow_model(service, clients)));
            let least = if measured >= 2 { found.trials.len() } else { 2.min(measured * 2) };
            prop_assert!(found.enough > budget && again.count(|trial| trial.outcome.is_ok()) >= least, "{:?} {measured} {again:?}", found.enough);
        }
    }

    #[test]
    fn servers_that_hang_cost_no_more_than_the_time(
        hanging in proptest::collection::btree_set(1_u64..30, 1..29),
        budget in 5_u64..600,
    ) {
        let start = |settings: &Settings| {
            Duration::from_millis(if hanging.contains(&delay(settings)) { 10_000_000 } else { 300 })
        };
        let budget = Duration::from_secs(budget);
        let run = slow_model(Duration::from_millis(2), 16);
        let found = on_a_paused_clock(searched_slowly(candidates(30), THROUGHPUT, budget, start, run));
        prop_assert!(found.took <= budget + Duration::from_millis(2), "{:?}", found.took);
        for trial in &found.trials {
            match &trial.outcome {
                Ok(_) => prop_assert!(!hanging.contains(&delay(&trial.settings))),
                Err(Failure::Untried) => {}
                Err(failure) => {
                    let is_slow = matches!(failure, Failure::Slow(_));
                    prop_assert!(hanging.contains(&delay(&trial.settings)) && is_slow);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_time_for_all_the_likely_ones_are_tried() {
    let mut all = vec![Settings::PRESENT];
    for engine in [Engine::OnnxRuntime, Engine::OpenVino, Engine::Embedded] {
        for instances in [4, 2, 1] {
            for size in [1, 8] {
                let batching = Batching::Dynamic { size, delay: 0 };
                all.push(Settings { engine, instances: Some(instances), threads: None, batching });
            }
        }
    }
    let tried = RefCell::new(Vec::new());
    let run = |settings: &Settings, slot: Slot| {
        tried.borrow_mut().push(*settings);
        let factor = match settings.engine {
            Engine::OpenVino => 4.0,
            _ => 1.0,
        };
        let service = Duration::from_secs_f64(1.0 / factor / f64::from(settings.instances.unwrap_or(1)));
        Ok((measurement(1.0 / service.as_secs_f64()), slot.warm_up + service))
    };
    let start = |_: &Settings| Duration::from_secs(1);
    let found = searched_slowly(all, THROUGHPUT, Duration::from_secs(40), start, run).await;
    let (present, best) = (Settings::PRESENT, found.trials[0].settings);
    assert_eq!((best.engine, best.instances), (Engine::OpenVino, Some(4)));
    assert!(found.count(Trial::is_untried) > 3);
    // Each engine, then the neighbours of the best candidate.
    let tried = tried.into_inner();
    let engines: Vec<_> = tried[..4].iter().map(|settings| settings.engine).collect();
    assert_eq!(engines, [present.engine, Engine::OnnxRuntime, Engine::OpenVino, Engine::Embedded]);
    assert!(tried[4].engine == Engine::OpenVino && tried[4].distance(&best) <= 1, "{tried:?}");
    // The best and the present configuration are measured again.
    let rounds = |settings| found.trials.iter().find(|trial| trial.settings == settings).unwrap().rounds;
    assert!(rounds(present) > 1 && rounds(best) > 1);
    assert!(found.trials.iter().map(Trial::is_untried).is_sorted());
}

#[tokio::test(start_paused = true)]
async fn a_present_configuration_without_an_answer_ends_the_search() {
    let run = slow_model(Duration::from_secs(100), 1);
    let found =
        searched_slowly(candidates(5), THROUGHPUT, Duration::from_secs(10), |_| Duration::ZERO, run).await;
    assert_eq!((found.count(Trial::is_untried), found.took), (5, Duration::from_secs(10)));
    assert_eq!(found.enough, Duration::from_secs(45));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_not_there_is_asked_once() {
    let mut all = candidates(8);
    for engine in [Engine::OpenVino, Engine::Embedded] {
        all.extend(candidates(8).into_iter().map(|settings| Settings { engine, ..settings }));
    }
    let asked = RefCell::new(BTreeMap::<_, u32>::new());
    let run = |settings: &Settings, _: Duration| {
        *asked.borrow_mut().entry(settings.engine).or_default() += 1;
        match settings.engine {
            Engine::OpenVino => Err("OpenVINO is not installed".into()),
            // One of several.
            Engine::Embedded if delay(settings) == 3 => Err("out of memory".into()),
            // Failures of the configured engine are those of a setting.
            Engine::Configured if (1..4).contains(&delay(settings)) => Err("no".into()),
            _ => Ok(measurement(1000.0 + delay(settings) as f64)),
        }
    };
    let found = searched(all, THROUGHPUT, 60, Duration::ZERO, run).await;
    let asked = asked.into_inner();
    assert_eq!(asked[&Engine::OpenVino], 1);
    assert!(asked[&Engine::Embedded] >= 8 && asked[&Engine::Configured] >= 8, "{asked:?}");
    assert_eq!(found.trials.len(), 24);
    let failed =
        |engine| found.trials.iter().filter(|it| it.settings.engine == engine && it.outcome.is_err()).count();
    assert_eq!([Engine::Configured, Engine::OpenVino, Engine::Embedded].map(failed), [3, 8, 1]);
    // Those that do not run are last.
    assert!(found.trials.iter().map(|trial| trial.outcome.is_err()).is_sorted());
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_given_up_after_two_slow_candidates() {
    for slow in 1..=2 {
        let mut all = candidates(6);
        all.extend(
            candidates(6).into_iter().map(|settings| Settings { engine: Engine::OpenVino, ..settings }),
        );
        let asked = RefCell::new(0);
        let start = |settings: &Settings| {
            let is_slow = settings.engine == Engine::OpenVino && {
                *asked.borrow_mut() += 1;
                *asked.borrow() <= slow
            };
            Duration::from_secs(if is_slow { 10_000 } else { 1 })
        };
        let run = |_: &Settings, _: Slot| Ok((measurement(100.0), Duration::ZERO));
        let found = searched_slowly(all, THROUGHPUT, Duration::from_secs(300), start, run).await;
        let failed = found.count(|trial| matches!(trial.outcome, Err(Failure::Slow(_))));
        assert_eq!(failed, if slow == 1 { 1 } else { 6 });
        assert_eq!(found.count(Trial::is_untried), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_delayed_in_a_later_round_keeps_its_rank() {
    for budget in [10, 16, 60] {
        for delayed in [Duration::from_secs(3), Duration::from_secs(3600)] {
            let mut measured = 0;
            let run = |settings: &Settings, _: Slot| {
                let is_better = delay(settings) == 1;
                measured += u32::from(is_better);
                let further = if is_better && measured > 1 { delayed } else { Duration::ZERO };
                Ok((measurement(if is_better { 100.0 } else { 30.0 }), further))
            };
            let start = |_: &Settings| Duration::from_millis(500);
            let found =
                searched_slowly(candidates(3), THROUGHPUT, Duration::from_secs(budget), start, run).await;
            assert_eq!(found.windows[&1].len().max(2), 2, "{budget}: measured more than twice");
            assert_eq!(
                THROUGHPUT.advised(&found.trials).map(|it| delay(&it.settings)),
                Some(1),
                "{budget} {delayed:?}"
            );
            assert!(found.took <= Duration::from_secs(budget));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_in_which_nothing_runs_ends_with_the_reasons() {
    let run = |_: &Settings, _: Duration| Err("no".to_owned());
    let found = searched(candidates(20), THROUGHPUT, 60, Duration::from_millis(10), run).await;
    assert_eq!(found.trials.len(), 20);
    assert!(found.trials.iter().all(|trial| trial.failure() == Some(&Failure::Reason("no".into()))));
    assert!(THROUGHPUT.advised(&found.trials).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_model_that_fails_later_is_not_the_best() {
    let asked = RefCell::new(BTreeMap::<_, u32>::new());
    let run = |settings: &Settings, _: Duration| {
        let mut asked = asked.borrow_mut();
        let count = asked.entry(delay(settings)).or_default();
        *count += 1;
        if delay(settings) == 2 && *count > 1 {
            Err("out of memory".into())
        } else {
            Ok(measurement(100.0 + delay(settings) as f64))
        }
    };
    let found = searched(candidates(3), THROUGHPUT, 30, Duration::from_millis(100), run).await;
    assert_eq!(found.trials.iter().map(|trial| delay(&trial.settings)).collect::<Vec<_>>(), [1, 0, 2]);
    assert_eq!(found.trials[2].failure(), Some(&Failure::Reason("out of memory".into())));
}

/// The place of the best of some measurements.
fn best(objective: Objective, measurements: &[Measurement]) -> usize {
    let trial = |(at, measured): (usize, &Measurement)| Trial {
        settings: candidates(measurements.len() as u64)[at],
        outcome: Ok(*measured),
        rounds: 1,
    };
    let mut trials: Vec<_> = measurements.iter().enumerate().map(trial).collect();
    objective.sort(&mut trials);
    delay(&trials[0].settings) as usize
}

#[test]
fn the_objective_decides_what_is_best() {
    let of = |rate, p99, memory| Measurement { rate, median: 1.0, p99, cpu: 0.1, memory };
    let all = [of(100.0, 9.0, 50), of(300.0, 40.0, 400), of(250.0, 20.0, 90), of(90.0, 2.0, 10)];
    for (goal, p99, expected) in [
        (Goal::Throughput, None, 1),
        (Goal::Throughput, Some(30.0), 2),
        (Goal::Throughput, Some(10.0), 0),
        // None is fast enough: the nearest to it.
        (Goal::Throughput, Some(1.0), 3),
        (Goal::Latency, None, 3),
        (Goal::Latency, Some(10.0), 3),
        // 240 a second are enough.
        (Goal::Memory, None, 2),
        (Goal::Memory, Some(10.0), 0),
    ] {
        assert_eq!(best(Objective { goal, p99 }, &all), expected, "{goal:?} {p99:?}");
    }
}

#[test]
fn a_change_is_advised_if_it_gains_more_than_chance() {
    let of = |rate, p99, memory| Measurement { rate, median: 1.0, p99, cpu: 0.1, memory };
    let present = of(100.0, 10.0, 100);
    for (goal, p99, other, is_better) in [
        (Goal::Throughput, None, of(102.0, 10.0, 100), false),
        (Goal::Throughput, None, of(104.0, 99.0, 999), true),
        (Goal::Throughput, None, of(90.0, 1.0, 1), false),
        // The present configuration is too slow.
        (Goal::Throughput, Some(5.0), of(50.0, 4.0, 100), true),
        (Goal::Latency, None, of(10.0, 9.9, 100), false),
        (Goal::Latency, None, of(10.0, 9.0, 100), true),
        (Goal::Memory, None, of(85.0, 10.0, 90), true),
        (Goal::Memory, None, of(85.0, 10.0, 99), false),
        (Goal::Memory, None, of(60.0, 10.0, 10), false),
    ] {
        let objective = Objective { goal, p99 };
        let [first, second] = [present, other].map(Ok);
        let settings = candidates(2);
        let mut trials = vec![
            Trial { settings: settings[0], outcome: first, rounds: 2 },
            Trial { settings: settings[1], outcome: second, rounds: 2 },
        ];
        objective.sort(&mut trials);
        let advised = objective.advised(&trials).unwrap().settings;
        assert_eq!(advised != Settings::PRESENT, is_better, "{goal:?} {p99:?} {other:?}");
    }
    // One measurement alone is less exact.
    for (rounds, rate, is_better) in
        [(2, 104.0, true), (1, 104.0, false), (1, 114.0, false), (1, 116.0, true)]
    {
        let settings = candidates(2);
        let trial =
            |at: usize, rate| Trial { settings: settings[at], outcome: Ok(of(rate, 10.0, 100)), rounds };
        let trials = [trial(1, rate), trial(0, 100.0)];
        let advised = THROUGHPUT.advised(&trials).unwrap().settings;
        assert_eq!(advised != Settings::PRESENT, is_better, "{rounds} {rate}");
    }
}
