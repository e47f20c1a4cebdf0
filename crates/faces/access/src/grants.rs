//! The rights of a client, compiled from its roles for quick checks.

use std::collections::HashMap;

use nereid_protocol::{Need, Right};

use crate::pattern::Pattern;

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights(u8);

impl Rights {
    /// Adds a right.
    pub(crate) fn insert(&mut self, right: Right) {
        self.0 |= 1 << right as u8;
    }

    /// Whether the set has a right.
    pub(crate) fn has(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    /// Whether the set has none.
    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        let mut all = Self::default();
        rights.into_iter().for_each(|right| all.insert(right));
        all
    }
}

/// The rights of a client on models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants {
    /// On all models.
    every: Rights,
    /// On at least one model.
    any: Rights,
    /// On models by name.
    names: HashMap<String, Rights>,
    /// On models by patterns that are neither names nor match all.
    patterns: Vec<(Pattern, Rights)>,
}

impl Grants {
    /// Adds rights on the models that match a pattern.
    pub(crate) fn add(&mut self, rights: Rights, models: &Pattern) {
        self.any = self.any.and(rights);
        if models.is_any() {
            self.every = self.every.and(rights);
        } else if models.is_name() {
            let known = self.names.entry(models.text().to_owned()).or_default();
            *known = known.and(rights);
        } else if let Some((_, known)) = self.patterns.iter_mut().find(|(pattern, _)| pattern == models) {
            *known = known.and(rights);
        } else {
            self.patterns.push((models.clone(), rights));
        }
    }

    /// Whether an action with this need is permitted, on this model if the request names one.
    pub(crate) fn permit(&self, need: Need, model: Option<&str>) -> bool {
        match (need, model) {
            (Need::Nothing, _) | (Need::Sight, None) => true,
            (Need::Sight, Some(model)) => !self.on(model).is_empty(),
            (Need::Any(right) | Need::Every(right), Some(model)) => {
                self.every.has(right) || self.on(model).has(right)
            }
            (Need::Any(right), None) => self.any.has(right),
            (Need::Every(right), None) => self.every.has(right),
        }
    }

    /// The rights on a model.
    fn on(&self, model: &str) -> Rights {
        let named = self.names.get(model).copied().unwrap_or_default();
        let matching = self.patterns.iter().filter(|(pattern, _)| pattern.matches(model));
        matching.fold(self.every.and(named), |rights, (_, further)| rights.and(*further))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn right(index: u8) -> Right {
        Right::ALL[usize::from(index)].0
    }

    proptest! {
        /// Compiled grants decide as the list of grants does.
        #[test]
        fn grants_permit_what_any_of_them_does(
            grants in prop::collection::vec((0_u8..5, "[ab*]{0,3}"), 0..12),
            wanted in 0_u8..5,
            model in "[ab]{0,3}",
        ) {
            let mut compiled = Grants::default();
            for (given, pattern) in &grants {
                compiled.add([right(*given)].into_iter().collect(), &Pattern::new(pattern.as_str()));
            }
            let matching = || grants.iter().filter(|(_, pattern)| Pattern::new(pattern.as_str()).matches(&model));
            let given = || grants.iter().filter(|(given, _)| *given == wanted);
            let (some, every) = (Need::Any(right(wanted)), Need::Every(right(wanted)));
            let on_model = matching().any(|(given, _)| *given == wanted);
            prop_assert_eq!(compiled.permit(some, Some(&model)), on_model);
            prop_assert_eq!(compiled.permit(every, Some(&model)), on_model);
            prop_assert_eq!(compiled.permit(some, None), given().count() > 0);
            let on_every = given().any(|(_, pattern)| Pattern::new(pattern.as_str()).is_any());
            prop_assert_eq!(compiled.permit(every, None), on_every);
            prop_assert_eq!(compiled.permit(Need::Sight, Some(&model)), matching().count() > 0);
            prop_assert!(compiled.permit(Need::Sight, None) && compiled.permit(Need::Nothing, Some(&model)));
        }
    }
}
