//! Which version a request goes to, by the weights of the versions.
//!
//! A request has a point in [0, 2^64). Each candidate has an interval of these points that grows with its weight, and the
//! established version has the rest. So a key stays with its candidate when the candidate's share grows, and nearly all keys do
//! when another one's share changes.

/// The weights of versions, the established one first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shares(Vec<(u64, f64)>);

/// 2^64 divided by the golden ratio: the points of successive requests with this distance cover any interval evenly.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Shares {
    /// The shares of versions with these weights, which are finite and not negative.
    pub(crate) fn new(weights: Vec<(u64, f64)>) -> Self {
        Self(weights)
    }

    /// The weights, the established version's first.
    pub(crate) fn weights(&self) -> &[(u64, f64)] {
        &self.0
    }

    /// The versions, the established one first.
    pub(crate) fn versions(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(version, _)| *version)
    }

    /// The share of a version, from 0 to 1, among all.
    pub(crate) fn of(&self, version: u64) -> f64 {
        let all: f64 = self.0.iter().map(|(_, weight)| weight).sum();
        let own = self.0.iter().find(|(other, _)| *other == version).map_or(0.0, |(_, weight)| *weight);
        if all > 0.0 { own / all } else { 0.0 }
    }

    /// The version of a point, among the versions that `is_served` accepts; `None` if all their weights are 0.
    pub(crate) fn at(&self, point: u64, is_served: impl Fn(u64) -> bool) -> Option<u64> {
        let served = || self.0.iter().filter(|(version, weight)| *weight > 0.0 && is_served(*version));
        let all: f64 = served().map(|(_, weight)| weight).sum();
        // The highest 53 bits, which a floating-point number holds exactly.
        let position = (point >> 11) as f64 / (1_u64 << 53) as f64 * all;
        let mut end = 0.0;
        for (version, weight) in served().skip(1) {
            end += weight;
            if position < end {
                return Some(*version);
            }
        }
        served().next().map(|(version, _)| *version)
    }
}

/// The point of the request with this number: any number of successive requests is divided by the weights.
pub(crate) fn point_of(number: u64) -> u64 {
    number.wrapping_mul(STEP)
}

/// The point of a key. It depends on nothing else, so that all servers of a fleet agree.
pub(crate) fn point_of_key(key: &[u8]) -> u64 {
    // FNV-1a, whose highest bits depend little on the last bytes: they are mixed afterwards.
    let hash = key.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn count(shares: &Shares, points: impl Iterator<Item = u64>) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for point in points {
            *counts.entry(shares.at(point, |_| true).unwrap()).or_default() += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn every_row_of_requests_is_divided_by_the_weights(
            weights in prop::collection::vec(0.0..100.0_f64, 1..5),
            first in any::<u64>(),
            requests in 1..5_000_usize,
        ) {
            prop_assume!(weights.iter().sum::<f64>() > 1.0);
            let shares = Shares::new((1..).zip(weights).collect());
            let numbers = (0..requests as u64).map(|number| first.wrapping_add(number));
            let counts = count(&shares, numbers.map(point_of));
            for version in shares.versions() {
                let expected = shares.of(version) * requests as f64;
                let found = *counts.get(&version).unwrap_or(&0) as f64;
                // The discrepancy of this sequence grows with the logarithm of its length.
                prop_assert!((found - expected).abs() <= 3.0 + (requests as f64).ln(), "{found} for {expected}");
            }
        }

        #[test]
        fn keys_keep_their_version_when_a_candidate_grows(
            keys in prop::collection::vec("[a-z0-9-]{0,20}", 1..200),
            before in 0.0..100.0_f64,
            growth in 0.0..100.0_f64,
        ) {
            let of = |weight: f64| Shares::new(vec![(1, 100.0 - weight), (2, weight)]);
            let (small, large) = (of(before), of((before + growth).min(100.0)));
            for key in &keys {
                let point = point_of_key(key.as_bytes());
                let (then, now) = (small.at(point, |_| true), large.at(point, |_| true));
                prop_assert_eq!(then, small.at(point, |_| true));
                prop_assert!(then != Some(2) || now == Some(2), "{} left the candidate", key);
            }
        }

        #[test]
        fn only_served_versions_with_a_weight_are_chosen(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.1..9.0_f64], 1..6),
            served in prop::collection::vec(any::<bool>(), 6),
            point in any::<u64>(),
        ) {
            let is_served = |version: u64| served[version as usize];
            let shares = Shares::new((0..).zip(weights.clone()).collect());
            let possible = |version: u64| is_served(version) && weights[version as usize] > 0.0;
            match shares.at(point, is_served) {
                Some(version) => prop_assert!(possible(version)),
                None => prop_assert!(!(0..weights.len() as u64).any(possible)),
            }
        }
    }

    #[test]
    fn keys_are_divided_by_the_weights() {
        let shares = Shares::new(vec![(1, 70.0), (2, 20.0), (3, 10.0)]);
        for kind in ["user-", "", "00000000-0000-4000-8000-0000000"] {
            let keys = (0..20_000).map(|number| point_of_key(format!("{kind}{number}").as_bytes()));
            let counts = count(&shares, keys);
            for (version, expected) in [(1, 14_000_i64), (2, 4_000), (3, 2_000)] {
                let found = counts[&version] as i64;
                assert!((found - expected).abs() < 300, "{kind}: {found} for {expected}");
            }
        }
    }
}
