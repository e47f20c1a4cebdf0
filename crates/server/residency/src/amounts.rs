//! Amounts of memory, of the machine and of each GPU, and the budgets of them.

use std::collections::BTreeMap;

/// A number of a GPU. Configurations have signed ones.
pub(crate) type Gpu = i32;

/// Memory that a model takes, or that all models take together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Bytes of the machine's memory.
    pub host: u64,
    /// Bytes of each GPU's memory.
    pub gpus: BTreeMap<Gpu, u64>,
}

/// A memory with a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Gpu(Gpu),
}

/// The memory that models may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryBudgets {
    /// Bytes of the machine's memory; `None` for no limit.
    pub host: Option<u64>,
    /// Bytes of each GPU with a limit.
    pub gpus: BTreeMap<Gpu, u64>,
}

/// A budget that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub place: Place,
    /// The bytes that would be in use.
    pub taken: u64,
    pub budget: u64,
}

impl Amount {
    pub(crate) fn of(&self, place: Place) -> u64 {
        match place {
            Place::Host => self.host,
            Place::Gpu(gpu) => self.gpus.get(&gpu).copied().unwrap_or(0),
        }
    }

    #[must_use]
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.host = self.host.saturating_add(other.host);
        for (gpu, bytes) in &other.gpus {
            let sum = self.gpus.entry(*gpu).or_default();
            *sum = sum.saturating_add(*bytes);
        }
        self
    }
}

impl MemoryBudgets {
    /// Whether nothing is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.host.is_none() && self.gpus.is_empty()
    }

    /// The budgets that an amount exceeds. GPUs come first: a model that leaves one also leaves the machine's memory.
    pub(crate) fn exceeded(&self, amount: &Amount) -> Vec<Shortage> {
        let host = self.host.map(|budget| (Place::Host, budget));
        let gpus = self.gpus.iter().map(|(gpu, budget)| (Place::Gpu(*gpu), *budget));
        let shortage = |(place, budget)| Shortage { place, taken: amount.of(place), budget };
        gpus.chain(host).map(shortage).filter(|short| short.taken > short.budget).collect()
    }

    /// The budgets that have no room for what is added to what is in use. Those that nothing is added to have.
    pub(crate) fn without_room(&self, used: &Amount, added: &Amount) -> Vec<Shortage> {
        let mut short = self.exceeded(&added.clone().plus(used));
        short.retain(|short| added.of(short.place) > 0);
        short
    }

    /// The size of a model for the choice of the one that leaves: the largest part that it takes of any budget, on a common scale. If
    /// only the machine's memory has a budget, that is its bytes.
    pub(crate) fn weight(&self, amount: &Amount) -> u64 {
        let of_host = |budget: u64| (amount.host, budget);
        let of_gpu = |(gpu, budget): (&Gpu, &u64)| (amount.of(Place::Gpu(*gpu)), *budget);
        let scale = self.host.or_else(|| self.gpus.values().max().copied()).unwrap_or(1).max(1);
        let scaled = |(bytes, budget): (u64, u64)| {
            u64::try_from(u128::from(bytes) * u128::from(scale) / u128::from(budget.max(1)))
                .unwrap_or(u64::MAX)
        };
        let parts = self.host.map(of_host).into_iter().chain(self.gpus.iter().map(of_gpu));
        parts.map(scaled).max().unwrap_or(amount.host)
    }
}

impl Place {
    /// Bytes of the memory, in messages.
    pub(crate) fn bytes(self, bytes: u64) -> String {
        let megabytes = format!("{:.1} MB", bytes as f64 / 1e6);
        match self {
            Self::Host => megabytes,
            Self::Gpu(gpu) => format!("{megabytes} of GPU {gpu}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    fn amount() -> impl Strategy<Value = Amount> {
        (0..100_u64, btree_map(0..4, 0..100_u64, 0..4)).prop_map(|(host, gpus)| Amount { host, gpus })
    }

    fn budgets() -> impl Strategy<Value = MemoryBudgets> {
        (prop::option::of(0..200_u64), btree_map(0..4, 0..200_u64, 0..4))
            .prop_map(|(host, gpus)| MemoryBudgets { host, gpus })
    }

    proptest! {
        #[test]
        fn an_amount_exceeds_exactly_the_budgets_that_are_smaller(
            one in amount(), other in amount(), budgets in budgets(),
        ) {
            let sum = one.clone().plus(&other);
            let short = budgets.exceeded(&sum);
            let is_short = |place| short.iter().any(|short| short.place == place);
            let taken = one.host + other.host;
            prop_assert_eq!(is_short(Place::Host), budgets.host.is_some_and(|budget| taken > budget));
            for gpu in 0..4 {
                let place = Place::Gpu(gpu);
                let taken = one.of(place) + other.of(place);
                prop_assert_eq!(sum.of(place), taken);
                prop_assert_eq!(is_short(place), budgets.gpus.get(&gpu).is_some_and(|budget| taken > *budget));
            }
        }

        #[test]
        fn what_takes_nothing_of_a_memory_has_room_there(
            used in amount(), added in amount(), budgets in budgets(),
        ) {
            let all = budgets.exceeded(&added.clone().plus(&used));
            let without_room = budgets.without_room(&used, &added);
            for short in all {
                let is_there = added.of(short.place) > 0;
                prop_assert_eq!(without_room.contains(&short), is_there);
            }
            prop_assert_eq!(budgets.without_room(&used, &Amount::default()), []);
        }

        #[test]
        fn a_model_that_takes_more_weighs_no_less(one in amount(), other in amount(), budgets in budgets()) {
            prop_assert!(budgets.weight(&one.clone().plus(&other)) >= budgets.weight(&one));
        }
    }

    #[test]
    fn bytes_of_the_machine_are_the_weight_where_only_they_are_limited() {
        let amount = Amount { host: 70, gpus: [(0, 10), (1, 30)].into() };
        for (host, gpus, expected) in [
            (Some(7), vec![], 70),
            (None, vec![], 70),
            (Some(700), vec![(0, 20), (1, 100)], 350),
            (Some(100), vec![(0, 1000)], 70),
            (None, vec![(1, 60)], 30),
            (Some(0), vec![(0, 0)], 70),
        ] {
            let budgets = MemoryBudgets { host, gpus: gpus.into_iter().collect() };
            assert_eq!(budgets.weight(&amount), expected, "{budgets:?}");
        }
    }
}
