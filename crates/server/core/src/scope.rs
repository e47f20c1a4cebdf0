//! Scopes: the models that a client may find. A name alone does not distinguish the models of several namespaces.

use std::fmt;
use std::sync::Arc;

use crate::spec::ModelId;

/// The models that a client may find. Others are unknown to it.
#[derive(Clone, Default)]
pub struct Scope(Option<Arc<Part>>);

/// Some of the models.
struct Part {
    name: String,
    contains: Box<dyn Fn(&ModelId) -> bool + Send + Sync>,
}

impl Scope {
    /// Every model.
    pub const ALL: Self = Self(None);

    /// The models for which `contains` is true. Scopes of the same name have the same models.
    pub fn of(name: impl Into<String>, contains: impl Fn(&ModelId) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(Part { name: name.into(), contains: Box::new(contains) })))
    }

    /// The scope's name; empty for all models.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |part| &part.name)
    }

    /// The models of both scopes.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self.0, other.0) {
            (None, only) | (only, None) => Self(only),
            (Some(one), Some(other)) => {
                let name = format!("{} and {}", one.name, other.name);
                Self::of(name, move |id| (one.contains)(id) && (other.contains)(id))
            }
        }
    }

    /// Whether the scope has every model.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the scope has this model.
    pub fn contains(&self, id: &ModelId) -> bool {
        self.0.as_ref().is_none_or(|part| (part.contains)(id))
    }

    /// [`contains`](Self::contains), from the parts of the identity.
    pub(crate) fn has(&self, name: &str, namespace: &str) -> bool {
        self.is_all() || self.contains(&ModelId { name: name.to_owned(), namespace: namespace.to_owned() })
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.name()).finish()
    }
}

/// A model's name as a client uses it, and the scope in which it means a model.
#[derive(Clone, Copy, Debug)]
pub struct ScopedName<'a> {
    /// The name.
    pub name: &'a str,
    /// The scope.
    pub scope: &'a Scope,
}

impl<'a> ScopedName<'a> {
    /// A name in a scope.
    pub fn new(name: &'a str, scope: &'a Scope) -> Self {
        Self { name, scope }
    }

    /// A name among all models: for requests of the server itself and of models. A client's request has its own scope.
    pub fn everywhere(name: &'a str) -> Self {
        static ALL: Scope = Scope::ALL;
        Self { name, scope: &ALL }
    }
}

impl fmt::Display for ScopedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_together_have_what_each_has() {
        let of =
            |namespace: &'static str| Scope::of(namespace, move |id| id.namespace.starts_with(namespace));
        for (scope, expected) in [
            (Scope::ALL, [true, true, true]),
            (of("a"), [true, true, false]),
            (of("ab"), [false, true, false]),
            (of("a").and(of("ab")), [false, true, false]),
            (of("a").and(of("b")), [false, false, false]),
            (Scope::ALL.and(of("b")), [false, false, true]),
            (of("b").and(Scope::ALL), [false, false, true]),
        ] {
            let found = ["a", "ab", "b"].map(|namespace| scope.has("m", namespace));
            assert_eq!(found, expected);
            assert_eq!(
                (scope.is_all(), scope.name().is_empty()),
                (expected == [true; 3], expected == [true; 3])
            );
        }
    }
}
