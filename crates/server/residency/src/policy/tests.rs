//! The rules one by one, and a simulation that compares them with LRU on demand by Zipf's law and on recorded demand.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn note(policy: &mut Policy, name: &str, total: u64, size: u64, cost: Duration) {
    let uses = policy.count(name, total);
    policy.note(name, uses, size, cost);
}

#[test]
fn models_that_are_rarely_used_quickly_loaded_or_large_leave_first() {
    for (what, keep, leave) in [
        ("uses", (9, 10, SECOND), (2, 10, SECOND)),
        ("cost", (5, 10, 4 * SECOND), (5, 10, SECOND)),
        ("size", (5, 10, SECOND), (5, 40, SECOND)),
        ("product", (2, 10, 10 * SECOND), (9, 10, SECOND)),
    ] {
        let mut policy = Policy::default();
        note(&mut policy, "keep", keep.0, keep.1, keep.2);
        note(&mut policy, "leave", leave.0, leave.1, leave.2);
        assert_eq!(policy.least(["keep", "leave"].into_iter()), Some("leave"), "{what}");
        assert_eq!(policy.least(["keep"].into_iter()), Some("keep"), "{what}");
        assert_eq!(policy.least([].into_iter()), None);
    }
}

#[test]
fn a_model_that_is_no_longer_used_leaves_however_often_it_was_used() {
    let mut policy = Policy::default();
    note(&mut policy, "old", 100, 10, SECOND);
    // Others come and go; each is used a few times.
    for round in 0..200 {
        let name = format!("new{}", round % 3);
        note(&mut policy, &name, 2, 10, SECOND);
        match policy.least(["old", &name].into_iter()) {
            Some("old") => return,
            _ => policy.left(&name),
        }
    }
    panic!("the model stays forever");
}

#[test]
fn a_counter_that_starts_again_counts_from_there() {
    let mut policy = Policy::default();
    note(&mut policy, "a", 10, 1, SECOND);
    note(&mut policy, "a", 13, 1, SECOND);
    assert!((policy.models["a"].uses - 13.0).abs() < 1e-9);
    policy.left("a");
    note(&mut policy, "a", 4, 1, SECOND);
    assert!((policy.models["a"].uses - 10.5).abs() < 1e-9);
    // A reload, which the policy did not see.
    note(&mut policy, "a", 1, 1, SECOND);
    assert!((policy.models["a"].uses - 11.5).abs() < 1e-9);
}

/// Random numbers that are the same in each run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) as f64 / u64::MAX as f64
    }
}

/// A model of a simulation.
struct Simulated {
    name: String,
    size: u64,
    cost: Duration,
}

/// Models of 50 MB to 5 GB, which are loaded at 0.2 to 2 GB a second.
fn models(count: usize, random: &mut Random) -> Vec<Simulated> {
    let model = |number| {
        let size = 50e6 * 100_f64.powf(random.next());
        let cost = Duration::from_secs_f64(0.3 + size / (2e8 * 10_f64.powf(random.next())));
        Simulated { name: format!("m{number}"), size: size as u64, cost }
    };
    (0..count).map(model).collect()
}

/// Requests to models by Zipf's law. The popular ones change `shifts` times.
fn demand(models: usize, requests: usize, shifts: usize, random: &mut Random) -> Vec<usize> {
    let weights: Vec<_> = (1..=models).map(|rank| 1.0 / (rank as f64).powf(0.9)).collect();
    let sum: f64 = weights.iter().sum();
    let request = |number: usize| {
        let mut left = random.next() * sum;
        let rank = weights.iter().position(|weight| {
            left -= weight;
            left <= 0.0
        });
        let offset = number * (shifts + 1) / requests * 37;
        (rank.unwrap_or(0) + offset) % models
    };
    (0..requests).map(request).collect()
}

/// The seconds that requests wait for loads, with one rule to choose who leaves.
fn waiting(
    models: &[Simulated],
    demand: &[usize],
    budget: u64,
    mut leaves: impl FnMut(&[usize], usize) -> usize,
    mut used: impl FnMut(usize, bool),
) -> f64 {
    let (mut resident, mut waited): (Vec<usize>, f64) = (Vec::new(), 0.0);
    for &wanted in demand {
        let is_resident = resident.contains(&wanted);
        if !is_resident {
            waited += models[wanted].cost.as_secs_f64();
            let taken = |resident: &[usize]| resident.iter().map(|model| models[*model].size).sum::<u64>();
            while !resident.is_empty() && taken(&resident) + models[wanted].size > budget {
                let index = leaves(&resident, wanted);
                resident.remove(index);
            }
            resident.push(wanted);
        }
        used(wanted, !is_resident);
    }
    waited
}

/// Requests to the 300 pages of a shop that had most of them, on a busy day in December 2013: numbers of 16 bits, in the order in which
/// the pages were first requested. Of the trace `web12`, copyright headissue GmbH, Jens Wilke, under CC BY 4.0
/// (<https://creativecommons.org/licenses/by/4.0/>), from Caffeine's simulator; reduced to these pages.
fn recorded() -> Vec<usize> {
    let numbers = include_bytes!("web12.trace").chunks_exact(2);
    numbers.map(|number| usize::from(u16::from_le_bytes([number[0], number[1]]))).collect()
}

/// The waiting of both rules: the least recently used model leaves, and the least valuable one.
fn compared(models: &[Simulated], demand: &[usize]) -> (f64, f64) {
    let budget = models.iter().map(|model| model.size).sum::<u64>() / 15;
    let last_use = std::cell::RefCell::new(vec![0; models.len()]);
    let clock = std::cell::Cell::new(0);
    let recent = waiting(
        models,
        demand,
        budget,
        |resident, _| {
            let last_use = last_use.borrow();
            (0..resident.len()).min_by_key(|index| last_use[resident[*index]]).unwrap()
        },
        |model, _| {
            clock.set(clock.get() + 1);
            last_use.borrow_mut()[model] = clock.get();
        },
    );
    let policy = std::cell::RefCell::new((Policy::default(), vec![0; models.len()]));
    let valuable = waiting(
        models,
        demand,
        budget,
        |resident, _| {
            let mut policy = policy.borrow_mut();
            let names = resident.iter().map(|model| models[*model].name.as_str());
            let name = policy.0.least(names).unwrap().to_owned();
            policy.0.left(&name);
            resident.iter().position(|model| models[*model].name == name).unwrap()
        },
        |model, is_loaded| {
            let (policy, counters) = &mut *policy.borrow_mut();
            counters[model] = if is_loaded { 1 } else { counters[model] + 1 };
            note(policy, &models[model].name, counters[model], models[model].size, models[model].cost);
        },
    );
    (recent, valuable)
}

/// docs/many-models.md has these figures.
#[test]
fn requests_wait_less_than_with_the_least_recently_used_model() {
    for (name, shifts, at_most) in [
        ("steady", Some(0), 0.85),
        ("popular models change 4 times", Some(4), 0.93),
        ("popular models change 16 times", Some(16), 0.95),
        ("recorded", None, 0.95),
    ] {
        let waited = (1..=3).map(|seed| {
            let mut random = Random(seed);
            let models = models(300, &mut random);
            let by_law = |shifts| demand(models.len(), 40_000, shifts, &mut random);
            compared(&models, &shifts.map_or_else(recorded, by_law))
        });
        let waited: Vec<_> = waited.collect();
        let sum = |of: fn(&(f64, f64)) -> f64| waited.iter().map(of).sum::<f64>();
        let (recent, valuable) = (sum(|it| it.0), sum(|it| it.1));
        println!("{name}: LRU {recent:.0} s, GDSF {valuable:.0} s ({:.2})", valuable / recent);
        assert!(valuable <= at_most * recent, "{name}: LRU {recent:.0} s, GDSF {valuable:.0} s");
    }
}
