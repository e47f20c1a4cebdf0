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
    /// On models in some namespaces only.
    namespaces: Vec<NamespaceGrant>,
}

/// Rights on models whose names and namespaces match patterns.
#[derive(Clone, Debug)]
struct NamespaceGrant {
    models: Pattern,
    namespaces: Vec<Pattern>,
    rights: Rights,
}

impl NamespaceGrant {
    /// The rights on models of this name and namespace; of this name, if it has no namespace.
    fn on(&self, model: &str, namespace: Option<&str>) -> Rights {
        let is_in = |namespace| self.namespaces.iter().any(|pattern| pattern.matches(namespace));
        let matches = self.models.matches(model) && namespace.is_none_or(is_in);
        if matches { self.rights } else { Rights::default() }
    }
}

impl Grants {
    /// Adds rights on the models that match a pattern, in namespaces that match one of `namespaces`.
    pub(crate) fn add(&mut self, rights: Rights, models: &Pattern, namespaces: &[Pattern]) {
        self.any = self.any.and(rights);
        if !namespaces.iter().any(Pattern::is_any) {
            let (models, namespaces) = (models.clone(), namespaces.to_vec());
            self.namespaces.push(NamespaceGrant { models, namespaces, rights });
        } else if models.is_any() {
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

    /// Whether rights depend on namespaces.
    pub(crate) fn have_namespaces(&self) -> bool {
        !self.namespaces.is_empty()
    }

    /// Whether an action with this need is permitted on a model of this namespace.
    pub(crate) fn permit_in(&self, need: Need, model: &str, namespace: &str) -> bool {
        let rights = || self.on(model, Some(namespace));
        match need {
            Need::Nothing => true,
            Need::Sight => !rights().is_empty(),
            Need::Any(right) | Need::Every(right) => rights().has(right),
        }
    }

    /// Whether an action with this need is permitted, on this model if the request names one. Namespaces are not known yet: a right in
    /// any of them counts.
    pub(crate) fn permit(&self, need: Need, model: Option<&str>) -> bool {
        match (need, model) {
            (Need::Nothing, _) | (Need::Sight, None) => true,
            (Need::Sight, Some(model)) => !self.on(model, None).is_empty(),
            (Need::Any(right) | Need::Every(right), Some(model)) => {
                self.every.has(right) || self.on(model, None).has(right)
            }
            (Need::Any(right), None) => self.any.has(right),
            (Need::Every(right), None) => self.every.has(right),
        }
    }

    /// The rights on a model of a namespace, or of any.
    fn on(&self, model: &str, namespace: Option<&str>) -> Rights {
        let named = self.names.get(model).copied().unwrap_or_default();
        let matching = self.patterns.iter().filter(|(pattern, _)| pattern.matches(model));
        let known = matching.fold(self.every.and(named), |rights, (_, further)| rights.and(*further));
        self.namespaces.iter().fold(known, |rights, grant| rights.and(grant.on(model, namespace)))
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
            grants in prop::collection::vec((0_u8..5, "[ab*]{0,3}", prop::collection::vec("[cd*]{1,2}", 1..3)), 0..12),
            wanted in 0_u8..5,
            model in "[ab]{0,3}",
            namespace in "[cd]{0,2}",
        ) {
            let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::new(text.as_str())).collect::<Vec<_>>();
            let mut compiled = Grants::default();
            for (given, models, namespaces) in &grants {
                let rights = [right(*given)].into_iter().collect();
                compiled.add(rights, &Pattern::new(models.as_str()), &patterns(namespaces));
            }
            let matching = || grants.iter().filter(|(_, models, _)| Pattern::new(models.as_str()).matches(&model));
            let given = || grants.iter().filter(|(given, ..)| *given == wanted);
            let (some, every) = (Need::Any(right(wanted)), Need::Every(right(wanted)));
            let on_model = matching().any(|(given, ..)| *given == wanted);
            let is_in = |namespaces: &[String]| patterns(namespaces).iter().any(|pattern| pattern.matches(&namespace));
            let mut in_namespace = matching().filter(|(_, _, namespaces)| is_in(namespaces));
            let sees = in_namespace.clone().count() > 0;
            prop_assert_eq!(compiled.permit_in(Need::Sight, &model, &namespace), sees);
            let may = in_namespace.any(|(given, ..)| *given == wanted);
            prop_assert_eq!(compiled.permit_in(some, &model, &namespace), may);
            prop_assert_eq!(compiled.permit_in(every, &model, &namespace), may);
            prop_assert_eq!(compiled.permit(some, Some(&model)), on_model);
            prop_assert_eq!(compiled.permit(every, Some(&model)), on_model);
            prop_assert_eq!(compiled.permit(some, None), given().count() > 0);
            let is_any = |text: &String| Pattern::new(text.as_str()).is_any();
            let on_every = given().any(|(_, models, namespaces)| is_any(models) && namespaces.iter().any(is_any));
            prop_assert_eq!(compiled.permit(every, None), on_every);
            prop_assert_eq!(compiled.permit(Need::Sight, Some(&model)), matching().count() > 0);
            prop_assert!(compiled.permit(Need::Sight, None) && compiled.permit(Need::Nothing, Some(&model)));
        }
    }
}
