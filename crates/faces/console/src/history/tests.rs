//! Rates, averages, and the bounds of memory.

use nereid_core::DurationStatistics;

use super::*;
use crate::gpus::{Gpu, GpuHistory};

fn key(name: &str) -> VersionKey {
    VersionKey { id: ModelId::plain(name), version: 1 }
}

fn reading(name: &str, success: u64, failures: u64, pending: usize) -> Reading {
    let totals = Totals {
        success,
        failures: [failures, 0, 0, 0, 0],
        inferences: success * 4,
        executions: success * 2,
        fallbacks: 0,
        request_ns: success * 10_000,
        queue_ns: success * 1000,
        compute_input_ns: success * 2000,
        compute_infer_ns: success * 3000,
        compute_output_ns: success * 4000,
        cache_hit: DurationStatistics { count: success / 2, ns: 0 },
        cache_miss: DurationStatistics { count: success / 5, ns: 0 },
    };
    let processes = Usage { processor: Duration::from_millis(success * 10), memory: 9 };
    let details = Details { batches: [success, success * 3, 0, 0, 0, 0, 0, 0], ..Details::default() };
    Reading { key: key(name), totals, pending, processes, details }
}

fn usage(seconds: u64) -> Usage {
    Usage { processor: Duration::from_secs(seconds), memory: 7 }
}

#[test]
fn sample_holds_rates_and_averages_since_the_one_before() {
    let mut history = History::default();
    history.tick(0, &[reading("m", 100, 1, 0)], usage(0));
    history.tick(5, &[reading("m", 150, 6, 3)], usage(10));
    let expected = Activity {
        requests: 11.0,
        failures: 1.0,
        latency: 10.0,
        queue: 1.0,
        input: 2.0,
        infer: 3.0,
        output: 4.0,
        batch: 2.0,
        pending: 3.0,
        hits: 5.0,
        misses: 2.0,
        processors: 0.1,
        memory: 9.0,
    };
    let models: Vec<_> = history.models_after(0).collect();
    assert_eq!(models.len(), 1);
    assert_eq!((models[0].at, models[0].span, models[0].activity), (5, 5, expected));
    let shares = models[0].batches.shares();
    assert!((shares[0] - 0.25).abs() < 0.003 && (shares[1] - 0.75).abs() < 0.003, "{shares:?}");
    let server: Vec<_> = history.server_after(0).collect();
    assert_eq!(server, [&ServerSample { at: 5, activity: expected, processors: 2.0, memory: 7 }]);
    assert_eq!(history.server_after(5).count(), 0);
    assert_eq!(history.last_tick(), 5);
}

#[test]
fn counts_before_the_first_tick_of_a_model_are_nobodys() {
    let mut history = History::default();
    history.tick(0, &[], usage(0));
    history.tick(5, &[reading("m", 1000, 0, 0)], usage(0));
    history.tick(10, &[reading("m", 1000, 0, 0)], usage(0));
    assert_eq!(history.models_after(0).count(), 0);
    assert!(history.server_after(0).all(|sample| sample.activity.requests == 0.0));
}

#[test]
fn idle_model_takes_no_samples_and_its_next_rate_is_that_of_one_tick() {
    let mut history = History::default();
    for tick in 0..100 {
        history.tick(tick * 5, &[reading("m", 0, 0, 0)], usage(0));
    }
    history.tick(500, &[reading("m", 50, 0, 0)], usage(0));
    let samples: Vec<_> =
        history.models_after(0).map(|sample| (sample.at, sample.activity.requests)).collect();
    assert_eq!(samples, [(500, 10.0)]);
}

#[test]
fn counters_that_restart_count_from_zero() {
    let mut history = History::default();
    history.tick(0, &[reading("m", 1000, 0, 0)], usage(0));
    history.tick(5, &[reading("m", 10, 0, 0)], usage(0));
    let rates: Vec<_> = history.models_after(0).map(|sample| sample.activity.requests).collect();
    assert_eq!(rates, [2.0]);
}

#[test]
fn hour_of_any_number_of_active_models_is_kept_within_the_bounds() {
    for models in [1_u64, 20, 21, 300, 1000] {
        let names: Vec<_> = (0..models).map(|model| format!("m{model}")).collect();
        let mut history = History::default();
        let mut gpus = GpuHistory::default();
        let gpu = |number| Gpu { name: format!("GPU-{number:036}"), ..Gpu::default() };
        let all_gpus: Vec<_> = (0..64).map(gpu).collect();
        for tick in 0..1500 {
            gpus.tick(tick * 5, &all_gpus);
            let readings: Vec<_> =
                names.iter().map(|name| reading(name, u64::from(tick) * 10, 0, 0)).collect();
            history.tick(tick * 5, &readings, usage(0));
            assert!(history.models.len() <= MAX_SAMPLES && history.server.len() <= MAX_TICKS);
        }
        let bytes = history.models.capacity() * size_of::<ModelSample>()
            + history.server.capacity() * size_of::<ServerSample>()
            + history.known.len() * (size_of::<Known>() + 3 * size_of::<VersionKey>())
            + gpus.byte_size();
        assert!(bytes < 2_000_000, "{models} models: {bytes} bytes");
        let first = history.models_after(0).next().unwrap().at;
        // The oldest sample of a model is at most a stride younger than an hour.
        let stride = (models * MAX_TICKS as u64).div_ceil(MAX_SAMPLES as u64) as u32;
        assert!(first <= 1499 * 5 - 3600 + stride * 5, "{models} models: {first}");
        // No request is lost between two samples.
        assert!(history.models_after(0).all(|sample| sample.activity.requests == 2.0), "{models} models");
    }
}

#[test]
fn model_that_is_gone_is_forgotten_with_its_last_sample() {
    let mut history = History::default();
    for tick in 0..10 {
        history.tick(tick * 5, &[reading("m", u64::from(tick), 0, 0)], usage(0));
    }
    history.tick(50, &[], usage(0));
    assert_eq!((history.known.len(), history.models.len()), (0, 9));
    for tick in 11..800 {
        history.tick(tick * 5, &[], usage(0));
    }
    assert_eq!(history.models.len(), 0);
}

#[test]
fn details_are_read_of_versions_that_are_new_or_did_something() {
    let mut history = History::default();
    assert!(history.needs_details(&reading("m", 5, 0, 0)));
    history.tick(0, &[reading("m", 5, 0, 0)], usage(0));
    for (success, failures, pending, needed) in
        [(5, 0, 0, false), (6, 0, 0, true), (5, 1, 0, true), (5, 0, 1, true)]
    {
        assert_eq!(history.needs_details(&reading("m", success, failures, pending)), needed);
    }
}
