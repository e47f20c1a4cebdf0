//! Searches of a machine that is simulated, on a paused clock.

use std::cell::RefCell;
use std::collections::BTreeMap;

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
struct Searched {
    trials: Vec<Trial>,
    took: Duration,
    /// The windows in which each candidate was measured, by its delay.
    windows: BTreeMap<u64, Vec<Duration>>,
    progress: Vec<Progress>,
}

/// A search in which a server takes `start`, and `run` has what a candidate shows.
async fn searched(
    candidates: Vec<Settings>,
    objective: Objective,
    budget: u64,
    start: Duration,
    mut run: impl FnMut(&Settings, Duration) -> Result<Measurement, String>,
) -> Searched {
    let (windows, mut seen) = (RefCell::new(BTreeMap::<_, Vec<_>>::new()), Vec::new());
    let began = Instant::now();
    let measure = async |settings: &Settings, window: Duration| {
        sleep(start).await;
        let outcome = run(settings, window);
        if outcome.is_ok() {
            sleep(window).await;
        }
        windows.borrow_mut().entry(delay(settings)).or_default().push(window);
        outcome
    };
    let trials =
        search(candidates, &objective, Duration::from_secs(budget), measure, |progress| seen.push(progress))
            .await;
    Searched { trials, took: began.elapsed(), windows: windows.into_inner(), progress: seen }
}

#[test]
fn each_round_has_a_third_of_the_one_before() {
    for (count, expected) in [
        (0, &[1][..]),
        (1, &[1]),
        (3, &[3]),
        (4, &[4, 3]),
        (9, &[9, 3]),
        (10, &[10, 4, 3]),
        (64, &[64, 22, 8, 3]),
        (100, &[100, 34, 12, 4, 3]),
    ] {
        assert_eq!(rounds(count), expected, "{count}");
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
            assert!(found.took <= Duration::from_secs(budget) * 5 / 4, "{count}: {:?}", found.took);
            // The present configuration is measured in each round, and each round longer.
            let present = &found.windows[&0];
            assert_eq!(present.len(), rounds(count as usize).len());
            assert!(present.is_sorted(), "{present:?}");
            let measured: usize = found.windows.values().map(Vec::len).sum();
            assert_eq!(found.progress.len(), measured);
            let last = found.progress.last().unwrap();
            assert_eq!((last.done, last.all), (measured, measured));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_not_there_is_asked_once() {
    let mut all = Vec::new();
    for engine in [Engine::Configured, Engine::OpenVino, Engine::Embedded] {
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
async fn a_search_in_which_nothing_runs_ends_with_the_reasons() {
    let run = |_: &Settings, _: Duration| Err("no".to_owned());
    let found = searched(candidates(20), THROUGHPUT, 60, Duration::from_millis(10), run).await;
    assert_eq!(found.trials.len(), 20);
    assert!(found.trials.iter().all(|trial| trial.outcome.as_ref().is_err_and(|why| why == "no")));
    assert!(THROUGHPUT.advised(&found.trials).is_none());
    // Without the time, too, each is measured once.
    let run = |_: &Settings, _: Duration| Ok(measurement(1.0));
    let found = searched(candidates(20), THROUGHPUT, 0, Duration::from_secs(1), run).await;
    assert!(found.trials.iter().all(|trial| trial.outcome.is_ok()));
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
}
