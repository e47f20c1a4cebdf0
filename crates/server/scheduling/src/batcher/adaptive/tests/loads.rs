//! Compares the batcher with a grid of fixed settings, under loads like those of servers. docs/batching.md has the results.
//!
//! The score of a load is the number of requests that are answered within the objective, for each second that instances execute:
//! the throughput of a machine that is kept busy, by this model or by others that share it. More than one late request in a
//! hundred breaks the objective, and reduces the score in proportion: with two, half of it is left. Clients that wait for answers
//! determine the arrivals themselves; there, the score is what is answered in time in a second that passes. The score of a load
//! with several phases is the geometric mean of theirs, so that a quiet phase counts as much as a rush.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::picture;
use super::simulation::{Kinds, Load, Outcome, Phase, Random, Senders, execute};
use crate::batcher::adaptive::{AdaptiveBatcher, Objective};
use crate::batcher::{Batcher, Rules};

/// A load with its name in the table.
pub struct Named {
    pub name: &'static str,
    pub load: Load,
}

/// The results of a load: score, and share of late requests.
pub struct Row {
    pub name: &'static str,
    pub at_once: (f64, f64),
    pub fixed: (f64, f64),
    /// The best fixed setting: preferred size, delay in milliseconds.
    pub setting: (usize, f64),
    pub adaptive: (f64, f64),
}

impl Row {
    pub fn ratio(&self) -> f64 {
        self.adaptive.0 / self.fixed.0
    }
}

fn fixed_and_linear(size: f64, _: &mut Random) -> f64 {
    0.004 + 0.000_15 * size
}

fn saturating(size: f64, _: &mut Random) -> f64 {
    0.006 + 0.0004 * (size - 12.0).max(0.0)
}

/// A tenth more or less, and one run in fifty takes three times as long.
fn noisy(size: f64, random: &mut Random) -> f64 {
    let outlier = if random.even() < 0.02 { 3.0 } else { 1.0 };
    fixed_and_linear(size, random) * (1.0 + 0.1 * random.normal()).max(0.5) * outlier
}

/// Nothing in the first half of a day, then a rush with a peak.
fn day(least: f64, most: f64, part: f64) -> f64 {
    let x = (part * 2.0 - 1.0).max(0.0);
    least + (most - least) * (4.0 * x * (1.0 - x)).powi(2)
}

fn phase(seconds: f64, senders: Senders) -> Phase {
    Phase { seconds, senders, slowness: |_| 1.0 }
}

fn load(phases: Vec<Phase>) -> Load {
    Load { instances: 1, max_size: 32, objective: 0.03, service: fixed_and_linear, phases }
}

fn open(seconds: f64, rate: fn(f64) -> f64) -> Load {
    load(vec![phase(seconds, Senders::Open(rate))])
}

fn clients(count: usize) -> Load {
    load(vec![phase(2.0, Senders::Clients(count, 0.0003))])
}

/// Loads of one kind.
fn steady() -> Vec<Named> {
    let bursts = |rates, means| load(vec![phase(6.0, Senders::Bursts(rates, means))]);
    let slower = Phase {
        slowness: |part| if part < 0.5 { 1.0 } else { 2.0 },
        ..open(6.0, |_| 1000.0).phases.remove(0)
    };
    let named = |name, load| Named { name, load };
    vec![
        named("100 a second", open(20.0, |_| 100.0)),
        named("500 a second", open(10.0, |_| 500.0)),
        named("2000 a second", open(3.0, |_| 2000.0)),
        named("3500 a second, 96 % of what is possible", open(2.0, |_| 3500.0)),
        named(
            "2000 a second, saturated from 12",
            Load { service: saturating, max_size: 64, ..open(3.0, |_| 2000.0) },
        ),
        named("1000 a second, noisy executions", Load { service: noisy, ..open(10.0, |_| 1000.0) }),
        named("1000 a second, executions twice as long in the second half", load(vec![slower])),
        named("2000 a second, four instances", Load { instances: 4, ..open(3.0, |_| 2000.0) }),
        named("bursts: 100 or 2500 a second", bursts([100.0, 2500.0], [0.4, 0.2])),
        named("on and off: 2000 a second or none", bursts([0.0, 2000.0], [0.1, 0.1])),
        named("a day: 20 to 2500 a second", open(10.0, |part| day(20.0, 2500.0, part))),
        named("4 clients that wait for answers", clients(4)),
        named("16 clients that wait for answers", clients(16)),
        named("64 clients that wait for answers", clients(64)),
        named("16 clients, two instances", Load { instances: 2, ..clients(16) }),
    ]
}

/// Loads whose kind changes.
fn changing() -> Vec<Named> {
    let slow = |seconds, rate| Phase { slowness: |_| 3.0, ..phase(seconds, Senders::Open(rate)) };
    let office = vec![
        phase(20.0, Senders::Open(|_| 100.0)),
        phase(3.0, Senders::Open(|_| 2000.0)),
        phase(2.0, Senders::Clients(16, 0.0003)),
        slow(10.0, |_| 200.0),
        phase(3.0, Senders::Clients(4, 0.0003)),
        phase(8.0, Senders::Open(|_| 500.0)),
    ];
    let neighbour = vec![
        phase(20.0, Senders::Open(|_| 100.0)),
        phase(6.0, Senders::Open(|_| 800.0)),
        slow(20.0, |_| 150.0),
        phase(8.0, Senders::Open(|_| 400.0)),
    ];
    vec![
        Named { name: "users by day, batch jobs by night, a neighbour in between", load: load(office) },
        Named { name: "users by day, a neighbour for a while", load: load(neighbour) },
    ]
}

fn score(load: &Load, outcomes: &[Outcome]) -> (f64, f64) {
    let scores = outcomes.iter().zip(&load.phases).map(|(outcome, phase)| {
        let seconds =
            if matches!(phase.senders, Senders::Clients(..)) { outcome.passed } else { outcome.busy };
        let in_time = (outcome.answered - outcome.late) as f64;
        in_time / seconds * (0.01 / outcome.late_share().max(0.01))
    });
    let late: usize = outcomes.iter().map(|outcome| outcome.late).sum();
    let answered: usize = outcomes.iter().map(|outcome| outcome.answered).sum();
    let score = scores.product::<f64>().powf(1.0 / outcomes.len() as f64);
    (score, late as f64 / answered as f64)
}

fn fixed(load: &Load, preferred: usize, delay: f64) -> Vec<Outcome> {
    let rules = Rules {
        max_batch_size: load.max_size,
        preferred: [preferred].into(),
        delay: Duration::from_secs_f64(delay),
        ..Rules::default()
    };
    execute(Batcher::new(rules, Kinds), load, Instant::now())
}

fn adaptive(load: &Load) -> Vec<Outcome> {
    let rules = Rules { max_batch_size: load.max_size, ..Rules::default() };
    let latency = Duration::from_secs_f64(load.objective);
    let objective = Objective { model: "m".to_owned(), latency, instances: load.instances };
    let start = Instant::now();
    execute(AdaptiveBatcher::new(rules, Kinds, objective, start), load, start)
}

/// Delays in milliseconds, for an objective of 30 ms.
const DELAYS: [f64; 8] = [0.0, 1.0, 3.0, 7.0, 11.0, 14.0, 18.0, 23.0];

fn compare(named: &Named) -> Row {
    let load = &named.load;
    let sizes = [4, 8, 16, load.max_size];
    let settings = sizes.iter().flat_map(|&size| DELAYS.map(|delay| (size, delay)));
    let scores = settings.map(|setting| (score(load, &fixed(load, setting.0, setting.1 / 1000.0)), setting));
    let scores: Vec<_> = scores.collect();
    let better = |one: &((f64, f64), _), other: &((f64, f64), _)| one.0.0.total_cmp(&other.0.0);
    let (best, setting) = scores.iter().copied().max_by(better).unwrap();
    let at_once = scores.iter().find(|(_, setting)| *setting == (load.max_size, 0.0)).unwrap().0;
    let adaptive = score(load, &adaptive(load));
    Row { name: named.name, at_once, fixed: best, setting, adaptive }
}

fn table(rows: &[Row]) -> String {
    let mut text =
        "| load | no delay | best fixed setting | with the objective | |\n|---|---|---|---|---|\n".to_owned();
    let cell = |(score, late): (f64, f64)| format!("{score:.0} ({:.2} %)", late * 100.0);
    for row in rows {
        let (size, delay) = row.setting;
        writeln!(
            text,
            "| {} | {} | {} with {size}, {delay} ms | {} | {} |",
            row.name,
            cell(row.at_once),
            cell(row.fixed),
            cell(row.adaptive),
            percent(row.ratio())
        )
        .unwrap();
    }
    text
}

/// The difference to 1.
fn percent(ratio: f64) -> String {
    match ((ratio - 1.0) * 100.0).round() as i64 {
        0 => "0 %".to_owned(),
        more @ 1.. => format!("+{more} %"),
        less => format!("−{} %", -less),
    }
}

const UPDATE: &str = "UPDATE_BATCHING";

/// Compares a file with its expected contents, or writes these if the environment has [`UPDATE`].
fn check_file(path: PathBuf, change: impl Fn(&str) -> String) {
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let new = change(&old);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, new).unwrap();
    } else {
        assert!(old == new, "{} is not up to date: run this test with {UPDATE}=1", path.display());
    }
}

#[test]
fn batches_are_as_good_as_the_best_fixed_ones_and_better_where_the_load_changes() {
    let steady: Vec<_> = steady().iter().map(compare).collect();
    let changing: Vec<_> = changing().iter().map(compare).collect();
    let tables = [&steady, &changing].map(|rows| table(rows));
    println!("{}\n{}", tables[0], tables[1]);
    for row in &steady {
        assert!(row.ratio() >= 0.95, "{}: {}", row.name, row.ratio());
    }
    for row in &changing {
        assert!(row.ratio() >= 1.2, "{}: {}", row.name, row.ratio());
    }
    let docs = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs"));
    check_file(docs.join("batching.md"), |page| {
        let parts = ["steady", "changing"].iter().zip(&tables);
        parts.fold(page.to_owned(), |page, (name, table)| {
            let (begin, end) = (format!("<!-- {name} -->\n\n"), format!("\n<!-- end of {name} -->"));
            let Some((before, rest)) = page.split_once(&begin) else { panic!("no {begin}") };
            let Some((_, after)) = rest.split_once(&end) else { panic!("no {end}") };
            format!("{before}{begin}{table}{end}{after}")
        })
    });
    let rows: Vec<_> = steady.iter().chain(&changing).collect();
    for (theme, colors) in picture::THEMES {
        let file = docs.join(format!("pictures/batching-objective-{theme}.svg"));
        check_file(file, |_| picture::bars(&rows, &colors));
    }
}

#[test]
fn little_traffic_is_answered_as_soon_as_without_batching() {
    let load = open(60.0, |_| 10.0);
    let outcome = &adaptive(&load)[0];
    let alone = fixed_and_linear(1.0, &mut Random::new(1));
    assert!(outcome.median() < 1.05 * alone, "{}", outcome.median());
    assert!(outcome.late_share() < 0.005, "{}", outcome.late);
}

#[test]
fn the_rate_that_meets_the_objective_is_that_of_the_best_fixed_setting() {
    // The steps are 5 %.
    let rates = [|_| 3000.0, |_| 3150.0, |_| 3300.0, |_| 3465.0, |_| 3640.0, |_| 3820.0];
    let highest = |run: &dyn Fn(&Load) -> Vec<Outcome>| {
        rates.iter().rposition(|rate| run(&open(3.0, *rate))[0].late_share() <= 0.01)
    };
    let best =
        [0.0, 0.005, 0.01].map(|delay| highest(&|load| fixed(load, load.max_size, delay))).into_iter().max();
    assert!(best.flatten().is_some_and(|best| best < rates.len() - 1), "{best:?}");
    assert_eq!(Some(highest(&adaptive)), best);
}
