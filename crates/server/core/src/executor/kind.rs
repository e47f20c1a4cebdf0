//! What executes a model, as its specification says: the one place that tells the kinds of executors apart.

use std::collections::BTreeSet;
use std::sync::Arc;

use nereid_backend_api::{Backend, ModelConfig, Peers, Result};

use crate::backends::Backends;
use crate::ensemble::steps_of;
use crate::spec::ModelSpec;

/// What a version is loaded into.
pub(crate) enum ExecutorKind {
    /// Instances of a backend's model.
    Instances(Arc<dyn Backend>),
    /// A graph of other models.
    Graph,
}

impl ExecutorKind {
    /// The kind for a version.
    ///
    /// # Errors
    /// What is wrong with the specification, or why its backend cannot be used.
    pub(crate) fn of(
        spec: &ModelSpec,
        version: u64,
        backends: &Backends,
        peers: &Arc<dyn Peers>,
    ) -> Result<Self> {
        match &spec.fault {
            Some(fault) => Err(fault.clone()),
            None if dependencies(&spec.config).is_some() => Ok(Self::Graph),
            None => backends.select(&spec.context(version, peers)).map(Self::Instances),
        }
    }

    /// Whether a load that failed may succeed if it is tried again, while nothing else has changed.
    pub(crate) fn may_recover(&self) -> bool {
        matches!(self, Self::Instances(_))
    }
}

/// The names of the models that a model hands requests to: it is loaded after them, and served while it fits them. `None`
/// if it executes its requests itself.
pub(crate) fn dependencies(config: &ModelConfig) -> Option<BTreeSet<String>> {
    let steps = &steps_of(config)?.step;
    Some(steps.iter().map(|step| step.model_name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_depends_on_the_models_of_its_steps_once_each_and_others_on_none() {
        for (text, expected) in [
            ("backend: 'x'", None),
            ("backend: 'x' dynamic_batching { }", None),
            ("backend: 'x' sequence_batching { }", None),
            ("ensemble_scheduling { }", Some(vec![])),
            (
                "ensemble_scheduling { step { model_name: 'b' } step { model_name: 'a' } }",
                Some(vec!["a", "b"]),
            ),
            ("ensemble_scheduling { step { model_name: 'b' } step { model_name: 'b' } }", Some(vec!["b"])),
        ] {
            let config = nereid_model_config::parse_text(text).unwrap();
            let found = dependencies(&config);
            let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
            assert_eq!(found, expected, "{text}");
        }
    }
}
