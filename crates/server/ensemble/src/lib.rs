//! Ensembles: models that are graphs of other models.
//!
//! A request to an ensemble becomes requests to its members, each scheduled by the member's own scheduler like any
//! other. A request to the ensemble is a [task](nereid_tasks::TaskGroup) that continues whenever an answer arrives, on the thread that
//! delivers it. So no thread waits while members execute, and no stack grows with nested ensembles.
//!
//! This crate knows nothing of loading models: members are looked up in the model table when a request starts.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod fit;
mod flow;
mod graph;
mod plan;
mod request;
mod run;
mod wave;

use std::collections::BTreeSet;
use std::sync::Arc;

use nereid_backend_api::{Error, ModelConfig};
use nereid_core::{BuildError, Executable, ExecutorFactory, ModelSpec, VersionLoad};
use nereid_model_config::proto::ModelEnsembling;
use nereid_model_config::proto::model_config::SchedulingChoice;

use self::fit::{EnsembleFit, fit};
use self::graph::Graph;

/// Executes the models whose configuration has `ensemble_scheduling`.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnsembleFactory;

impl ExecutorFactory for EnsembleFactory {
    fn accepts(&self, spec: &ModelSpec) -> bool {
        steps_of(&spec.config).is_some()
    }

    fn dependencies(&self, config: &ModelConfig) -> Option<BTreeSet<String>> {
        let steps = &steps_of(config)?.step;
        Some(steps.iter().map(|step| step.model_name.clone()).collect())
    }

    fn build(&self, load: &VersionLoad<'_>) -> Result<Executable, BuildError> {
        let models = load.models.now().ok_or_else(|| Error::unavailable("the server has ended"))?;
        let EnsembleFit { config, labels, constants } = fit(load.spec, &models)?;
        let statistics = load.statistics(&config);
        let graph = Graph::new(&config, constants, load.models.clone(), Arc::clone(&statistics));
        Ok(Executable::new(config, labels, statistics, Arc::new(graph)))
    }
}

/// The steps of a configuration; `None` unless it is an ensemble's.
fn steps_of(config: &ModelConfig) -> Option<&ModelEnsembling> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => Some(ensemble),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
