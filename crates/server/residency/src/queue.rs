//! The loads that wait for room, first come first served: room that one waits for is not given to a later one, however small.
//!
//! Loads that need memory in different places do not wait for each other.

use std::collections::BTreeMap;

/// A load's place in the queue; earlier ones are less.
pub(crate) type Place = u64;

/// The loads that wait, by their places.
#[derive(Default)]
pub(crate) struct Queue {
    next: Place,
    waiting: BTreeMap<Place, String>,
}

impl Queue {
    /// The load of a model begins to wait.
    pub(crate) fn enter(&mut self, name: &str) -> Place {
        let place = self.next;
        self.next += 1;
        self.waiting.insert(place, name.to_owned());
        place
    }

    /// A load waits no longer.
    pub(crate) fn leave(&mut self, place: Place) {
        self.waiting.remove(&place);
    }

    /// The models whose loads have waited for longer than the one at this place.
    pub(crate) fn ahead_of(&self, place: Place) -> impl Iterator<Item = &str> {
        self.waiting.range(..place).map(|(_, name)| name.as_str())
    }

    /// The models of all loads that wait.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.waiting.values().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::amounts::{Amount, MemoryBudgets};

    const BUDGET: u64 = 100;

    #[test]
    fn places_are_by_arrival_whoever_leaves() {
        let mut queue = Queue::default();
        let places: Vec<_> = ["a", "b", "c", "b"].iter().map(|name| queue.enter(name)).collect();
        let ahead = |queue: &Queue, place: usize| {
            queue.ahead_of(places[place]).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(ahead(&queue, 3), ["a", "b", "c"]);
        queue.leave(places[1]);
        queue.leave(places[1]);
        assert_eq!(ahead(&queue, 3), ["a", "c"]);
        assert_eq!(ahead(&queue, 0), [""; 0]);
        assert_eq!(queue.all().collect::<Vec<_>>(), ["a", "c", "b"]);
    }

    /// A load of a simulation: when it begins to wait, what it needs of the machine and of a GPU, and for how long it has it.
    #[derive(Clone, Debug)]
    struct Load {
        arrives: u64,
        needed: Amount,
        takes: u64,
    }

    fn loads() -> impl Strategy<Value = Vec<Load>> {
        let amount = prop_oneof![4 => 1..=10_u64, 1 => 60..=BUDGET];
        let load = (0..20_u64, amount.clone(), prop_oneof![3 => Just(0), 1 => amount], 1..8_u64);
        let load = load.prop_map(|(arrives, host, gpu, takes)| Load {
            arrives,
            needed: Amount { host, gpus: [(0, gpu)].into() },
            takes,
        });
        prop::collection::vec(load, 1..12).prop_map(|mut loads| {
            loads.sort_by_key(|load| load.arrives);
            loads
        })
    }

    /// When each load begins, on a simulated clock, by the queue and the budgets.
    fn begins(loads: &[Load]) -> Vec<u64> {
        let budgets = MemoryBudgets { host: Some(BUDGET), gpus: [(0, BUDGET)].into() };
        let (mut queue, mut places) = (Queue::default(), BTreeMap::new());
        let mut began = vec![None; loads.len()];
        for now in 0.. {
            for (number, _) in loads.iter().enumerate().filter(|(_, load)| load.arrives == now) {
                places.insert(number, queue.enter(&number.to_string()));
            }
            // The later ones look first: that must not matter.
            for number in (0..loads.len()).rev() {
                let Some(place) = places.get(&number).copied() else { continue };
                let has_it = |(load, began): (&Load, &Option<u64>)| {
                    began.is_some_and(|began| now < began + load.takes).then(|| load.needed.clone())
                };
                let running = loads.iter().zip(&began).filter_map(has_it);
                let ahead =
                    queue.ahead_of(place).map(|name| loads[name.parse::<usize>().unwrap()].needed.clone());
                let used = running.chain(ahead).fold(Amount::default(), |sum, one| sum.plus(&one));
                if budgets.without_room(&used, &loads[number].needed).is_empty() {
                    began[number] = Some(now);
                    queue.leave(place);
                    places.remove(&number);
                }
            }
            if began.iter().all(Option::is_some) {
                return began.into_iter().flatten().collect();
            }
            assert!(now < 1000, "loads wait for ever: {began:?}");
        }
        unreachable!("the clock does not end")
    }

    proptest! {
        /// A load begins once all earlier ones are done, at the latest.
        #[test]
        fn no_load_is_overtaken_for_the_memory_that_it_waits_for(loads in loads()) {
            let began = begins(&loads);
            for (number, load) in loads.iter().enumerate() {
                let later = loads.iter().zip(&began).skip(number + 1);
                for (other, at) in later.filter(|(_, at)| **at < began[number]) {
                    // It overtook, so both had room at the same time, with all that waited ahead.
                    let both = load.needed.clone().plus(&other.needed);
                    prop_assert!(both.host <= BUDGET, "{other:?} at {at} overtook {load:?}");
                }
                // Whatever comes later, it begins at the latest when all before it are done.
                let before = loads.iter().zip(&began).take(number);
                let done = before.map(|(other, at)| at + other.takes).max().unwrap_or(0);
                prop_assert!(began[number] <= done.max(load.arrives), "{load:?} at {}", began[number]);
            }
        }
    }
}
