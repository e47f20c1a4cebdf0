//! The distribution of drawn tokens by the parameters, penalties, probabilities, and properties of all logits.

use proptest::prelude::*;

use super::*;

fn sampler(parameters: &SamplingParameters) -> Sampler {
    Sampler::new(parameters, &[])
}

fn greedy() -> SamplingParameters {
    SamplingParameters { temperature: 0.0, ..SamplingParameters::default() }
}

/// How often each token is chosen in many draws, as fractions.
fn frequencies(logits: &[f32], parameters: &SamplingParameters) -> Vec<f64> {
    const DRAWS: u32 = 20_000;
    let mut counts = vec![0_u32; logits.len()];
    let random = fastrand::Rng::with_seed(7);
    let mut sampler = Sampler { random, ..sampler(parameters) };
    for _ in 0..DRAWS {
        sampler.seen.clear();
        let token = sampler.sample(logits, parameters, |_| false).unwrap().token;
        counts[usize::try_from(token).unwrap()] += 1;
    }
    counts.iter().map(|count| f64::from(*count) / f64::from(DRAWS)).collect()
}

/// Logits of these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|probability| probability.ln() + 3.0).collect()
}

#[test]
fn draws_follow_the_probabilities_that_the_parameters_leave() {
    let default = SamplingParameters::default();
    let given = [0.5, 0.25, 0.15, 0.1];
    for (parameters, expected) in [
        (default.clone(), [0.5, 0.25, 0.15, 0.1]),
        (SamplingParameters { temperature: 0.5, ..default.clone() }, [0.725, 0.181, 0.065, 0.029]),
        (SamplingParameters { temperature: 1e6, ..default.clone() }, [0.25, 0.25, 0.25, 0.25]),
        (SamplingParameters { top_k: 2, ..default.clone() }, [0.667, 0.333, 0.0, 0.0]),
        (SamplingParameters { top_k: 9, ..default.clone() }, [0.5, 0.25, 0.15, 0.1]),
        (SamplingParameters { top_p: 0.6, ..default.clone() }, [0.667, 0.333, 0.0, 0.0]),
        (SamplingParameters { top_p: 0.01, ..default.clone() }, [1.0, 0.0, 0.0, 0.0]),
        (SamplingParameters { min_p: 0.29, ..default.clone() }, [0.556, 0.278, 0.167, 0.0]),
        (SamplingParameters { min_p: 1.0, ..default.clone() }, [1.0, 0.0, 0.0, 0.0]),
        (SamplingParameters { logit_bias: vec![(0, -100.0)], ..default.clone() }, [0.0, 0.5, 0.3, 0.2]),
        (SamplingParameters { logit_bias: vec![(3, 100.0)], ..default.clone() }, [0.0, 0.0, 0.0, 1.0]),
        (SamplingParameters { top_k: 3, top_p: 0.5, ..default.clone() }, [1.0, 0.0, 0.0, 0.0]),
    ] {
        let found = frequencies(&logits(&given), &parameters);
        let is_near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.015);
        assert!(is_near, "{parameters:?}: {found:?}");
    }
}

#[test]
fn penalties_lower_tokens_that_occurred() {
    let default = greedy();
    // The third token is second best until the best has occurred.
    let logits = [0.0, 2.0, 1.5, -1.0];
    for (parameters, expected) in [
        (default.clone(), [1, 1, 1, 1]),
        (SamplingParameters { repetition_penalty: 2.0, ..default.clone() }, [1, 2, 1, 1]),
        (SamplingParameters { presence_penalty: 0.6, ..default.clone() }, [1, 2, 1, 1]),
        (SamplingParameters { frequency_penalty: 0.6, ..default.clone() }, [1, 2, 1, 2]),
        (SamplingParameters { frequency_penalty: 2.0, ..default.clone() }, [1, 2, 0, 1]),
        (SamplingParameters { presence_penalty: -1.0, ..default.clone() }, [1, 1, 1, 1]),
    ] {
        let mut sampler = sampler(&parameters);
        let found = [(); 4].map(|()| sampler.sample(&logits, &parameters, |_| false).unwrap().token);
        assert_eq!(found, expected, "{parameters:?}");
    }
    // Only the penalty of repetitions counts the prompt.
    for (parameters, expected) in [
        (SamplingParameters { repetition_penalty: 2.0, ..default.clone() }, 2),
        (SamplingParameters { presence_penalty: 2.0, ..default.clone() }, 1),
        (SamplingParameters { frequency_penalty: 2.0, ..default }, 1),
    ] {
        let mut sampler = Sampler::new(&parameters, &[1, 1, 1]);
        assert_eq!(sampler.sample(&logits, &parameters, |_| false).unwrap().token, expected);
    }
}

#[test]
fn excluded_and_undefined_tokens_are_never_chosen() {
    let parameters = greedy();
    let logits = [f32::NAN, 1.0, 5.0, f32::NEG_INFINITY];
    let choose = |excluded: &[Token]| {
        let sampled = sampler(&parameters).sample(&logits, &parameters, |token| excluded.contains(&token));
        sampled.map(|sampled| sampled.token)
    };
    assert_eq!([choose(&[]), choose(&[2]), choose(&[1, 2])], [Some(2), Some(1), None]);
    assert_eq!(sampler(&parameters).sample(&[], &parameters, |_| false), None);
}

#[test]
fn logprobs_are_those_of_the_unchanged_logits() {
    let logits = logits(&[0.1, 0.6, 0.3]);
    let parameters = SamplingParameters { logit_bias: vec![(1, -100.0)], logprobs: Some(2), ..greedy() };
    let found = sampler(&parameters).sample(&logits, &parameters, |_| false).unwrap();
    let expected = [(2, 0.3_f32, 2), (1, 0.6, 1)];
    assert_eq!(found.token, 2);
    assert_eq!(found.logprobs.len(), expected.len());
    for (found, (token, probability, rank)) in found.logprobs.iter().zip(expected) {
        assert_eq!((found.token, found.rank), (token, rank));
        assert!((found.logprob - probability.ln()).abs() < 1e-5, "{found:?}");
    }
    let alone = SamplingParameters { logprobs: Some(0), ..parameters.clone() };
    assert_eq!(sampler(&alone).sample(&logits, &alone, |_| false).unwrap().logprobs.len(), 1);
    let none = SamplingParameters { logprobs: None, ..parameters };
    assert_eq!(sampler(&none).sample(&logits, &none, |_| false).unwrap().logprobs, []);
}

proptest! {
    #[test]
    fn greedy_takes_the_first_of_the_highest(logits in prop::collection::vec(-5_i8..5, 1..50)) {
        let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected = logits.iter().position(|logit| *logit == highest).unwrap();
        let found = sampler(&greedy()).sample(&logits, &greedy(), |_| false).unwrap().token;
        prop_assert_eq!(usize::try_from(found).unwrap(), expected);
    }

    #[test]
    fn seed_decides_alone(
        logits in prop::collection::vec(-8.0_f32..8.0, 2..1500),
        seed: u64,
        top_p in 0.1_f32..=1.0,
        top_k in 0_usize..600,
        min_p in 0.0_f32..0.3,
    ) {
        let parameters = SamplingParameters { seed: Some(seed), top_p, top_k, min_p, ..SamplingParameters::default() };
        let draw = || {
            let mut sampler = sampler(&parameters);
            [(); 8].map(|()| sampler.sample(&logits, &parameters, |_| false).unwrap().token)
        };
        prop_assert_eq!(draw(), draw());
    }

    #[test]
    fn nucleus_is_the_smallest_set_that_is_likely_enough(
        weights in prop::collection::vec(1_u16..1000, 1..1200),
        top_p in 0.01_f32..0.999,
    ) {
        let parameters = SamplingParameters::default();
        let mut sampler = sampler(&parameters);
        sampler.candidates = (0..).zip(&weights).map(|(token, weight)| Candidate { token, value: f32::from(*weight) }).collect();
        sampler.keep_nucleus(top_p);
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let wanted = total * f64::from(top_p);
        let mut sorted: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        sorted.sort_by(|one, other| other.total_cmp(one));
        let kept: f64 = sampler.candidates.iter().map(|candidate| f64::from(candidate.value)).sum();
        let smallest = sorted.iter().scan(0.0, |sum, weight| { *sum += weight; Some(*sum) }).position(|sum| sum >= wanted);
        prop_assert_eq!(sampler.candidates.len(), smallest.unwrap() + 1);
        prop_assert!(kept >= wanted);
    }

    /// As by comparing all tokens that may follow one by one.
    #[test]
    fn greedy_choice_is_the_first_of_the_highest(
        scores in prop::collection::vec(
            prop::sample::select(vec![-1.0, 0.0, -0.0, 1.0, 2.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
            0..100,
        ),
        excluded in prop::collection::vec(0_i32..100, 0..3),
    ) {
        let allowed = (0..).zip(&scores).filter(|(token, score)| !excluded.contains(token) && **score > f32::NEG_INFINITY);
        let expected = allowed.reduce(|best, other| if other.1 > best.1 { other } else { best });
        let found = sampler(&greedy()).sample(&scores, &greedy(), |token| excluded.contains(&token));
        prop_assert_eq!(found.map(|sampled| sampled.token), expected.map(|(token, _)| token));
    }
}
