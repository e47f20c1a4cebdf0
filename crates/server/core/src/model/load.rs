//! Builds a version: its executor comes from a factory, the rest is the same for all kinds of executors.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use nereid_backend_api::{Error, Result};
use nereid_budgets::BodyBudget;

use super::{Model, Retirement};
use crate::events::Events;
use crate::executor::{
    BuildError, Executable, ExecutorFactory, ExecutorKinds, InstanceServices, VersionLoad,
};
use crate::interceptors::{Gate, Interceptors, LoadedVersion};
use crate::signature::Signature;
use crate::spec::ModelSpec;
use crate::table::ServedModels;
use nereid_scheduling::sequence::checks::SequenceChecks;
use nereid_statistics::LatencyOptions;

/// Services that all models of a server share.
pub(crate) struct Services {
    /// Services of instances.
    pub instances: Arc<InstanceServices>,
    /// The kinds of executors.
    pub executors: ExecutorKinds,
    /// See [`ServerOptions::max_unread`](crate::ServerOptions::max_unread).
    pub max_unread: usize,
    /// See [`Server::bodies`](crate::Server::bodies).
    pub bodies: BodyBudget,
    /// The served models.
    pub models: ServedModels,
    /// See [`ServerOptions::latencies`](crate::ServerOptions::latencies).
    pub latencies: LatencyOptions,
    /// See [`ServerOptions::interceptors`](crate::ServerOptions::interceptors).
    pub interceptors: Interceptors,
    /// Where changes of readiness are announced.
    pub events: Events,
}

impl Model {
    /// Loads a version completely. If it replaces a served version, its metrics continue.
    ///
    /// # Errors
    /// The reason why it cannot be served.
    pub(crate) fn load(
        spec: &ModelSpec,
        version: u64,
        factory: &dyn ExecutorFactory,
        services: &Services,
        replaces: Option<&Self>,
    ) -> Result<Self, BuildError> {
        let executable = factory.build(&VersionLoad {
            spec,
            version,
            models: &services.models,
            latencies: services.latencies,
            replaces: replaces.map(|replaced| (&replaced.config, &replaced.statistics)),
        })?;
        let dependencies = factory.dependencies(&spec.config).unwrap_or_default();
        Self::assemble(spec, version, executable, dependencies, services).map_err(BuildError::temporary)
    }

    /// This version with the instances configured in `spec`. The model stays loaded and continues its counters; existing
    /// instances are kept.
    ///
    /// # Errors
    /// The reason why the instances cannot be created.
    pub(crate) fn with_instances(self: &Arc<Self>, spec: &ModelSpec, services: &Services) -> Result<Self> {
        let Some(instances) = &self.instances else {
            return Err(Error::internal(format!("model '{}' has no instances to be changed", self.id)));
        };
        // The model was loaded from the files of this guard.
        let spec = ModelSpec { guard: self.guard().clone(), ..spec.clone() };
        let statistics = Arc::clone(&self.statistics);
        let changed = services.instances.change_instances(instances, &spec, &self.config, statistics)?;
        let dependencies = self.dependencies.clone();
        let model = Self::assemble(&spec, self.version, changed, dependencies, services)?;
        instances.pool().model().instances_changed(&model.config.instance_group);
        model.predecessor.store(Some(Arc::clone(self)));
        Ok(model)
    }

    fn assemble(
        spec: &ModelSpec,
        version: u64,
        executable: Executable,
        dependencies: BTreeSet<String>,
        services: &Services,
    ) -> Result<Self> {
        static LOADS: AtomicU64 = AtomicU64::new(1);
        let Executable { config, labels, statistics, executor, refusal, instances } = executable;
        let signature = Signature::new(&config).inspect_err(|_| executor.close())?;
        let load_number = LOADS.fetch_add(1, Ordering::Relaxed);
        let is_composite = executor.composite().is_some();
        let interceptors = services.interceptors.for_version(&LoadedVersion {
            spec,
            version,
            load_number,
            config: &config,
            is_composite,
            statistics: &statistics,
            models: &services.models,
        });
        let gate = Gate::new(interceptors.inspect_err(|_| executor.close())?);
        let id = (spec.id.clone(), version);
        let retirement = Retirement::new(id, gate.clone(), Arc::clone(&executor), spec.guard.clone());
        Ok(Self {
            id: spec.id.clone(),
            version,
            directory: spec.directory.clone(),
            load_number,
            fingerprint: spec.fingerprint.clone(),
            given: spec.config.clone(),
            sequence_checks: SequenceChecks::new(&config),
            config,
            signature,
            labels: Arc::new(labels),
            statistics,
            gate,
            executor,
            is_composite,
            is_on_demand: spec.is_on_demand,
            instances,
            refusal,
            max_unread: services.max_unread,
            bodies: services.bodies.clone(),
            origin: spec.origin,
            dependencies,
            predecessor: ArcSwapOption::empty(),
            retirement,
        })
    }
}
