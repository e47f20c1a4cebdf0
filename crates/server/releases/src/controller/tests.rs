//! Simulated candidates, and what becomes of them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::compare::Comparison;

const RULES: Rules =
    Rules { promote_after: Some(500), error_margin: 0.01, latency_ratio: 1.5, difference_limit: 0.02 };

fn settings(weights: &[(u64, f64)], rules: Option<Rules>) -> Settings {
    Settings {
        shares: Shares::new(weights.to_vec()),
        sticky_header: None,
        shadows: Vec::new(),
        comparison: Comparison::Exact,
        rules,
    }
}

fn answered(millis: f64) -> Outcome {
    Outcome::Answered(Duration::from_secs_f64(millis / 1000.0))
}

/// Pseudo-random numbers in [0, 1).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How a version behaves.
#[derive(Clone, Copy, Debug)]
struct Behaviour {
    errors: f64,
    /// The least latency; the distribution has a long tail.
    millis: f64,
    different: f64,
}

const GOOD: Behaviour = Behaviour { errors: 0.005, millis: 10.0, different: 0.0 };

impl Behaviour {
    fn outcome(self, numbers: &mut Numbers) -> Outcome {
        if numbers.next() < self.errors {
            return Outcome::Failed;
        }
        answered(self.millis * (1.0 - 0.5 * (1.0 - numbers.next()).ln()))
    }
}

/// Runs a release with a share of 10 % until a decision about version 2. Returns it with the number of its results.
fn run(base: Behaviour, candidate: Behaviour, seed: u64) -> (Decision, u64) {
    let mut controller = Controller::new(&settings(&[(1, 90.0), (2, 10.0)], Some(RULES)));
    let mut numbers = Numbers(seed);
    loop {
        let version = if numbers.next() < 0.1 { 2 } else { 1 };
        let behaviour = if version == 1 { base } else { candidate };
        let mut decision = controller.add(version, behaviour.outcome(&mut numbers));
        if version == 2 && decision.is_none() {
            decision = controller.compared(2, numbers.next() >= candidate.different);
        }
        if let Some(decision) = decision {
            let results = controller.version(2).unwrap().1.results;
            return (decision, results);
        }
    }
}

#[test]
fn good_candidates_are_promoted_and_bad_ones_withdrawn_early() {
    for (name, candidate, is_promotion, most) in [
        ("equal", GOOD, true, 500),
        ("faster", Behaviour { millis: 3.0, ..GOOD }, true, 500),
        ("a little slower", Behaviour { millis: 12.0, ..GOOD }, true, 500),
        ("fails", Behaviour { errors: 1.0, ..GOOD }, false, 30),
        ("fails often", Behaviour { errors: 0.3, ..GOOD }, false, 120),
        ("slow", Behaviour { millis: 40.0, ..GOOD }, false, 120),
        ("slower", Behaviour { millis: 20.0, ..GOOD }, false, 500),
        ("wrong", Behaviour { different: 1.0, ..GOOD }, false, 30),
        ("often wrong", Behaviour { different: 0.3, ..GOOD }, false, 200),
    ] {
        let mut unlucky = Vec::new();
        for seed in 0..60 {
            let (decision, results) = run(GOOD, candidate, seed);
            assert!(results <= most, "{name}, seed {seed}: {decision:?} after {results}");
            unlucky.extend((decision.is_promotion() != is_promotion).then_some(decision));
        }
        // A few of a hundred good candidates may meet more errors than the margin by chance.
        assert!(unlucky.len() <= if is_promotion { 2 } else { 0 }, "{name}: {unlucky:?}");
    }
}

#[test]
fn an_established_version_with_errors_of_its_own_sets_the_standard() {
    let poor = Behaviour { errors: 0.3, ..GOOD };
    let promoted = (0..200).filter(|seed| run(poor, GOOD, *seed).0.is_promotion()).count();
    assert_eq!(promoted, 200);
    let withdrawn =
        (0..200).filter(|seed| !run(poor, Behaviour { errors: 0.7, ..GOOD }, *seed).0.is_promotion());
    assert_eq!(withdrawn.count(), 200);
}

#[test]
fn reasons_have_the_figures() {
    let mut controller = Controller::new(&settings(&[(1, 1.0), (2, 1.0)], Some(RULES)));
    (0..100).for_each(|_| assert_eq!(controller.add(1, answered(8.0)), None));
    let decision = (0..100).find_map(|_| controller.add(2, Outcome::Failed)).unwrap();
    assert!(
        decision.reason.0.ends_with(" requests failed, 0 of 100 of the established version"),
        "{decision:?}"
    );
    assert_eq!(controller.version(2).unwrap().0, Part::Withdrawn(decision.reason));
    assert_eq!((controller.shares().of(1), controller.shares().of(2)), (1.0, 0.0));
    let mut controller = Controller::new(&settings(&[(1, 1.0), (2, 1.0)], Some(RULES)));
    (0..100).for_each(|_| assert_eq!(controller.add(1, answered(8.0)), None));
    let decision = (0..500).find_map(|_| controller.add(2, answered(64.0))).unwrap();
    assert!(
        decision.reason.0.contains("median of latencies is 6") && !decision.is_promotion(),
        "{decision:?}"
    );
}

#[test]
fn without_rules_nothing_is_decided() {
    let mut controller = Controller::new(&settings(&[(1, 1.0), (2, 1.0)], None));
    assert!((0..10_000).all(|_| controller.add(2, Outcome::Failed).is_none()));
    let withdraw_only = Rules { promote_after: None, ..RULES };
    let mut controller = Controller::new(&settings(&[(1, 1.0), (2, 1.0)], Some(withdraw_only)));
    for _ in 0..10_000 {
        assert_eq!(controller.add(1, answered(1.0)).or(controller.add(2, answered(1.0))), None);
    }
    assert!((0..10_000).any(|_| controller.add(2, Outcome::Failed).is_some()));
}

#[test]
fn a_candidate_waits_for_results_of_a_version_that_has_requests() {
    let mut controller = Controller::new(&settings(&[(1, 1.0), (2, 1.0)], Some(RULES)));
    assert!((0..1_000).all(|_| controller.add(2, answered(1.0)).is_none()));
    assert!((0..99).all(|_| controller.add(1, answered(1.0)).is_none()));
    assert_eq!(controller.add(2, answered(1.0)), None);
    assert_eq!(controller.add(1, answered(1.0)), None);
    assert!(controller.add(2, answered(1.0)).unwrap().is_promotion());
    // The established version has no requests at all.
    let mut controller = Controller::new(&settings(&[(1, 0.0), (2, 1.0)], Some(RULES)));
    assert!((0..499).all(|_| controller.add(2, answered(1.0)).is_none()));
    assert!(controller.add(2, answered(1.0)).unwrap().is_promotion());
}

#[test]
fn copies_count_with_their_errors_and_without_their_latencies() {
    let mut controller = Controller::new(&settings(&[(1, 1.0), (2, 0.0)], Some(RULES)));
    (0..100).for_each(|_| assert_eq!(controller.add(1, answered(5.0)), None));
    assert!((0..499).all(|_| controller.add(2, Outcome::Copied).is_none()));
    let (_, trial) = controller.version(2).unwrap();
    assert_eq!((trial.results, trial.errors, trial.latencies.count()), (499, 0, 0));
    let decision = controller.add(2, Outcome::Copied).unwrap();
    assert!(decision.is_promotion() && !decision.reason.0.contains("latencies"), "{decision:?}");
}

#[test]
fn clients_that_leave_a_slow_candidate_count_as_slow_answers() {
    for (millis, is_counted) in [(1.0, false), (400.0, true)] {
        let mut controller = Controller::new(&settings(&[(1, 1.0), (2, 1.0)], Some(RULES)));
        let left = Outcome::Cancelled(Duration::from_secs_f64(millis / 1000.0));
        assert!((0..1_000).all(|_| controller.add(2, left).is_none()));
        assert_eq!(controller.version(2).unwrap().1.results, 0);
        (0..100).for_each(|_| assert_eq!(controller.add(1, answered(5.0)), None));
        let decision = (0..1_000).find_map(|_| controller.add(2, left));
        assert_eq!(decision.is_some_and(|decision| !decision.is_promotion()), is_counted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn each_candidate_is_decided_about_at_most_once(
        seed in any::<u64>(),
        candidates in prop::collection::vec((0.0..1.0_f64, 1.0..60.0_f64, 0.0..1.0_f64), 1..4),
        base_weight in 0.0..2.0_f64,
    ) {
        let mut weights = vec![(1, base_weight)];
        weights.extend((2..).zip(&candidates).map(|(version, _)| (version, 1.0)));
        let mut controller = Controller::new(&settings(&weights, Some(RULES)));
        let (mut numbers, mut decided, mut promoted) = (Numbers(seed), BTreeSet::new(), 0);
        for _ in 0..4_000 {
            let shares = controller.shares();
            let point = (numbers.next() * u64::MAX as f64) as u64;
            let version = shares.at(point, |_| true).unwrap();
            let (errors, millis, different) = match version {
                1 => (0.0, 10.0, 0.0),
                _ => candidates[version as usize - 2],
            };
            let behaviour = Behaviour { errors, millis, different };
            let outcome = behaviour.outcome(&mut numbers);
            let added = controller.add(version, outcome);
            let is_equal = numbers.next() >= behaviour.different;
            let compared = if version > 1 { controller.compared(version, is_equal) } else { None };
            for decision in added.into_iter().chain(compared) {
                prop_assert!(decided.insert(decision.version), "twice about {}", decision.version);
                prop_assert_eq!(promoted, 0, "a decision after a promotion");
                promoted += usize::from(decision.is_promotion());
                prop_assert_eq!(controller.established() == decision.version, decision.is_promotion());
            }
            // Versions that were decided about get no further requests, except a promoted one.
            for version in decided.iter().filter(|version| **version != controller.established()) {
                prop_assert_eq!(controller.shares().of(*version), 0.0);
            }
            let sum: f64 = controller.shares().versions().map(|version| controller.shares().of(version)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9);
        }
    }
}

#[test]
fn the_first_decision_holds_whoever_makes_it() {
    use Verdict::{Promoted, Withdrawn};
    let mut controller = Controller::new(&settings(&[(1, 80.0), (2, 10.0), (3, 10.0)], Some(RULES)));
    let mut by_hand = |version, verdict| {
        controller.decide_by_hand(version, verdict, "by hand".into()).map(|it| it.is_some())
    };
    assert_eq!(by_hand(4, Promoted), Err(None));
    for verdict in [Promoted, Withdrawn] {
        assert_eq!(by_hand(1, verdict), Err(Some(Part::Established)));
    }
    assert_eq!([by_hand(2, Withdrawn), by_hand(2, Withdrawn)], [Ok(true), Ok(false)]);
    let reason = Reason("by hand".into());
    assert_eq!(by_hand(2, Promoted), Err(Some(Part::Withdrawn(reason.clone()))));
    assert_eq!([by_hand(3, Promoted), by_hand(3, Promoted)], [Ok(true), Ok(false)]);
    assert_eq!(by_hand(3, Withdrawn), Err(Some(Part::Promoted(reason))));
    for verdict in [Promoted, Withdrawn] {
        assert_eq!(by_hand(1, verdict), Err(Some(Part::Replaced)));
    }
    assert_eq!((controller.established(), controller.shares().of(3)), (3, 1.0));
    // Results no longer decide.
    for _ in 0..1_000 {
        assert_eq!(controller.add(3, Outcome::Failed), None);
        assert_eq!(controller.add(2, answered(1.0)), None);
    }
}

#[test]
fn releases_without_rules_are_decided_by_hand_only() {
    let mut controller = Controller::new(&settings(&[(1, 90.0), (2, 10.0)], None));
    (0..1_000).for_each(|_| assert_eq!(controller.add(2, Outcome::Failed), None));
    let decision = controller.decide_by_hand(2, Verdict::Withdrawn, "by hand".into()).unwrap().unwrap();
    assert_eq!((decision.version, decision.is_promotion(), controller.shares().of(1)), (2, false, 1.0));
}
