//! Which model leaves when memory is short: greedy dual size frequency (GDSF), with frequencies that age.
//!
//! The worth of a model is how often it was used, times the cost to load it again, by the memory that leaving would free. A rising
//! floor ages the models: one that is used starts from the worth at which the last one left. The rules have no clock.

use std::collections::BTreeMap;
use std::time::Duration;

/// The worth of models in memory, and of evicted ones.
#[derive(Default)]
pub(crate) struct Policy {
    /// The worth of the last model that left.
    floor: f64,
    models: BTreeMap<String, Worth>,
}

#[derive(Default)]
struct Worth {
    /// Uses; halved each time that the model leaves.
    uses: f64,
    /// The counter of its uses when it was last read.
    counted: u64,
    worth: f64,
}

impl Policy {
    /// The uses of a model since the last count. `total` is a counter that starts again with each load.
    pub(crate) fn count(&mut self, name: &str, total: u64) -> u64 {
        let model = self.models.entry(name.to_owned()).or_default();
        let before = std::mem::replace(&mut model.counted, total);
        if total < before { total } else { total - before }
    }

    /// Notes uses of a model in memory.
    pub(crate) fn note(&mut self, name: &str, uses: u64, size: u64, cost: Duration) {
        let model = self.models.entry(name.to_owned()).or_default();
        if uses > 0 || model.worth == 0.0 {
            model.uses += uses as f64;
            let cost = cost.as_secs_f64().max(1e-3);
            model.worth = self.floor + model.uses.max(1.0) * cost / size.max(1) as f64;
        }
    }

    /// The least valuable of these models.
    pub(crate) fn least<'m>(&self, models: impl Iterator<Item = &'m str>) -> Option<&'m str> {
        let worth = |name: &str| self.models.get(name).map_or(0.0, |model| model.worth);
        models.min_by(|one, other| worth(one).total_cmp(&worth(other)).then(one.cmp(other)))
    }

    /// Whether a model had no more requests than another one. A model that had none counts like one with a single request.
    pub(crate) fn is_no_busier(&self, name: &str, other: &str) -> bool {
        let uses = |name: &str| self.models.get(name).map_or(0.0, |model| model.uses);
        uses(name) <= uses(other).max(1.0)
    }

    /// A model has left the memory.
    pub(crate) fn left(&mut self, name: &str) {
        if let Some(model) = self.models.get_mut(name) {
            self.floor = self.floor.max(model.worth);
            (model.uses, model.counted, model.worth) = (model.uses / 2.0, 0, 0.0);
        }
    }
}

#[cfg(test)]
mod tests;
