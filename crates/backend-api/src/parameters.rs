//! Parameters of a request or a response.

use std::borrow::Cow;

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

/// Parameters in their order. There are few, so searching a list is faster than a map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(Vec<(Cow<'static, str>, ParameterValue)>);

impl Parameters {
    /// Sets a parameter; an existing one keeps its place.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: ParameterValue) {
        let name = name.into();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&ParameterValue> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &ParameterValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_again_replaces_in_place() {
        let mut parameters = Parameters::default();
        parameters.set("a", ParameterValue::Int(1));
        parameters.set("b", ParameterValue::Bool(true));
        parameters.set("a", ParameterValue::String("x".into()));
        let all: Vec<_> = parameters.iter().collect();
        assert_eq!(all, [("a", &ParameterValue::String("x".into())), ("b", &ParameterValue::Bool(true))]);
        assert_eq!(parameters.get("c"), None);
    }
}
