//! Tables and pages of results that are made up.

use std::time::Duration;

use super::*;
use crate::search::{Failure, Goal, Objective};
use crate::settings::Batching;
use crate::{Model, Tune};

fn tune(name: &str) -> Tune {
    let model = Model {
        program: "nereid".into(),
        options: vec![],
        repository: "models".into(),
        name: name.into(),
        others: vec![],
    };
    Tune {
        model,
        objective: Objective { goal: Goal::Throughput, p99: None },
        clients: 4.try_into().unwrap(),
        budget: Duration::from_secs(60),
        inputs: vec![],
        shapes: vec![],
    }
}

fn measured(rate: f64, p99: f64) -> Measurement {
    Measurement { rate, median: p99 / 2.0, p99, cpu: 0.1234, memory: 123 << 20 }
}

fn outcome(reason: &str) -> Outcome {
    let best = Settings { instances: Some(2), batching: Batching::Off, ..Settings::PRESENT };
    let failed = Settings { engine: Engine::OpenVino, ..Settings::PRESENT };
    let untried = Settings { engine: Engine::Embedded, ..Settings::PRESENT };
    let trial = |settings, outcome| Trial { settings, outcome, rounds: 2 };
    let trials = vec![
        trial(best, Ok(measured(2468.0, 3.5))),
        trial(Settings::PRESENT, Ok(measured(1234.0, 7.0))),
        trial(failed, Err(Failure::Reason(reason.to_owned()))),
        trial(untried, Err(Failure::Untried)),
    ];
    let curve =
        |factor: f64| [1, 8, 64].map(|clients| (clients, measured(clients as f64 * factor, 3.0))).to_vec();
    Outcome {
        trials,
        advised: best,
        config: "instance_group { count: 2 }\n".into(),
        inputs: "random x FP32 [1, 2]".into(),
        curves: vec![(best, curve(2.0)), (Settings::PRESENT, curve(1.0))],
        enough: Some(Duration::from_secs(90)),
    }
}

#[test]
fn the_table_has_what_runs_in_columns() {
    let expected = "                           requests/s  p50 ms  p99 ms  CPU ms  memory MiB\n\
                    * 2 instances, no batches        2468    1.75    3.50   0.123         123\n  \
                    present configuration          1234    3.50    7.00   0.123         123\n";
    assert_eq!(table(&outcome("not installed")), expected);
    assert_eq!(
        gain(&outcome("")),
        "Best: 2 instances, no batches. Beside the present configuration: 2.00 times the requests/s, 0.50 times the p99, \
         1.00 times the memory."
    );
    let same = Outcome { advised: Settings::PRESENT, ..outcome("") };
    assert!(gain(&same).starts_with("No settings gain"));
}

#[test]
fn candidates_without_time_are_named() {
    let sentence = "Not tried for lack of time: 1 of 4 candidates. --seconds=90 would be enough for all.";
    assert_eq!(untried(&outcome("")).as_deref(), Some(sentence));
    let text = page(&tune("m"), &outcome(""));
    assert!(text.contains(sentence), "{text}");
    assert!(
        text.contains(">embedded engine</th><td colspan=\"5\">not tried for lack of time</td>"),
        "{text}"
    );
    let complete = Outcome { enough: None, ..outcome("") };
    assert_eq!(untried(&complete), None);
    assert!(!page(&tune("m"), &complete).contains(sentence));
}

#[test]
fn a_page_without_curves_has_no_empty_picture() {
    let text = page(&tune("m"), &outcome(""));
    assert_eq!((text.matches("<svg").count(), text.matches("More clients").count()), (2, 1));
    for curves in [vec![], vec![(Settings::PRESENT, vec![])]] {
        let text = page(&tune("m"), &Outcome { curves, ..outcome("") });
        assert_eq!((text.matches("<svg").count(), text.matches("More clients").count()), (1, 0));
    }
}

#[test]
fn hostile_text_stays_text_on_the_page() {
    let hostile = "<script>alert(1)</script>\"&";
    let text = page(&tune(hostile), &outcome(hostile));
    assert!(!text.contains("<script"), "{text}");
    assert_eq!(text.matches("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&amp;").count(), 3);
    let long = page(&tune("m"), &outcome(&"x".repeat(10_000)));
    assert!(!long.contains(&"x".repeat(LONGEST_REASON + 1)));
}

#[test]
fn pictures_stay_within_their_frames() {
    let mut extreme = outcome("");
    for (at, (rate, p99)) in [(0.0, 0.0), (1e9, 1e7)].into_iter().enumerate() {
        extreme.trials[at].outcome = Ok(measured(rate, p99));
    }
    extreme.curves[1].1.clear();
    for outcome in [outcome(""), extreme] {
        let text = page(&tune("m"), &outcome);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        for part in text.split("c").filter_map(|part| part.strip_prefix("x=\"")) {
            let place: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((LEFT..=WIDTH).contains(&place), "{place}");
        }
    }
}

#[test]
fn ticks_are_round_numbers() {
    let linear = Scale::from_zero([7000.0].into_iter());
    assert_eq!(linear.ticks(), [0.0, 2000.0, 4000.0, 6000.0]);
    let logarithmic = Scale::logarithmic([1.0, 60.0].into_iter());
    assert_eq!(logarithmic.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
    assert_eq!([0.0012, 2.0, 5.5, 1500.0].map(tick_text), ["0.0012", "2", "5.5", "1500"]);
}
