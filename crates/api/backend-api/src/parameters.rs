//! Parameters of a request or a response.

use std::borrow::Cow;
use std::collections::HashMap;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// Text.
    String(Cow<'static, str>),
}

/// Largest number of parameters for linear search, which is faster than a map for few.
const MAX_SEARCHED: usize = 16;

/// Parameters in order. Setting and getting one takes constant time for any number, since clients choose the number.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    entries: Vec<(Cow<'static, str>, ParameterValue)>,
    /// The index of each name in `entries`, once it has more than [`MAX_SEARCHED`].
    #[expect(clippy::box_collection, reason = "few requests have one, and all are moved with its place")]
    places: Option<Box<HashMap<Cow<'static, str>, usize>>>,
}

impl Parameters {
    /// Sets a parameter; an existing one keeps its place.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: ParameterValue) {
        let name = name.into();
        if let Some(place) = self.place(&name) {
            self.entries[place].1 = value;
            return;
        }
        match &mut self.places {
            Some(places) => drop(places.insert(name.clone(), self.entries.len())),
            None if self.entries.len() == MAX_SEARCHED => {
                let names = self.entries.iter().map(|(name, _)| name).chain([&name]);
                self.places = Some(Box::new(names.cloned().zip(0..).collect()));
            }
            None => {}
        }
        self.entries.push((name, value));
    }

    #[inline]
    fn place(&self, name: &str) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(name).copied(),
            None => self.entries.iter().position(|(known, _)| known == name),
        }
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&ParameterValue> {
        self.place(name).map(|place| &self.entries[place].1)
    }

    /// All parameters, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &ParameterValue)> {
        self.entries.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Whether no parameter is set.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl PartialEq for Parameters {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn setting_a_parameter_again_replaces_it_in_place() {
        let mut parameters = Parameters::default();
        parameters.set("a", ParameterValue::Int(1));
        parameters.set("b", ParameterValue::Bool(true));
        parameters.set("a", ParameterValue::String("x".into()));
        let all: Vec<_> = parameters.iter().collect();
        assert_eq!(all, [("a", &ParameterValue::String("x".into())), ("b", &ParameterValue::Bool(true))]);
        assert_eq!(parameters.get("c"), None);
    }

    proptest! {
        /// The rule, without care for time: the first mention of a name decides its place, the last its value.
        #[test]
        fn repeated_names_keep_the_first_place_and_the_last_value(names in prop::collection::vec(0..60_u8, 0..200)) {
            let mut parameters = Parameters::default();
            let mut expected: Vec<(String, ParameterValue)> = Vec::new();
            for (value, name) in (0..).zip(&names) {
                let (name, value) = (format!("p{name}"), ParameterValue::Int(value));
                parameters.set(name.clone(), value.clone());
                match expected.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = value,
                    None => expected.push((name, value)),
                }
            }
            let all: Vec<_> = parameters.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
            prop_assert_eq!(&all, &expected);
            for (name, value) in &expected {
                prop_assert_eq!(parameters.get(name), Some(value));
            }
            prop_assert_eq!(parameters.get("p60"), None);
        }
    }
}
