//! Builds a version: its executor comes from a factory, the rest is the same for all kinds of executors.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_budgets::BodyBudget;

use super::{Model, Retirement};
use crate::events::Events;
use crate::executor::{
    BuildError, Executable, ExecutorFactory, ExecutorKinds, InstanceServices, VersionLoad,
};
use crate::interceptors::{Gate, Interceptors, LoadedVersion, ReleaseFactory};
use crate::load_guard::LoadGuard;
use crate::signature::Signature;
use crate::spec::ModelSpec;
use crate::table::ServedModels;
use nereid_scheduling::sequence::checks::SequenceChecks;
use nereid_statistics::LatencyOptions;

/// The parameters of a model whose number of instances follows the load: the least and the greatest.
pub const INSTANCES_MIN: &str = "instances_min";
/// See [`INSTANCES_MIN`].
pub const INSTANCES_MAX: &str = "instances_max";

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
    /// See [`ServerOptions::releases`](crate::ServerOptions::releases).
    pub releases: Option<Arc<dyn ReleaseFactory>>,
    /// Where changes of readiness are announced.
    pub events: Events,
}

impl Services {
    /// See [`ReleaseFactory::parameters`].
    pub(crate) fn release_parameters(&self) -> &[&str] {
        self.releases.as_ref().map_or(&[], |releases| releases.parameters())
    }
}

/// Sets the parameters of a release to those of another configuration.
pub(super) fn set_release(config: &mut ModelConfig, other: &ModelConfig, parameters: &[&str]) {
    for name in parameters.iter().copied() {
        match other.parameters.get(name) {
            Some(parameter) => config.parameters.insert(name.to_owned(), parameter.clone()),
            None => config.parameters.remove(name),
        };
    }
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

    /// This version with another number of instances, for models whose number follows the load.
    ///
    /// # Errors
    /// The number is fixed, or the instances cannot be created.
    pub(crate) fn resized(self: &Arc<Self>, instances: usize, services: &Services) -> Result<Self> {
        let (id, version) = (&self.id, self.version);
        let spec = self.scaled_spec(instances).ok_or_else(|| {
            Error::invalid_arg(format!("the number of instances of '{id}' version {version} is fixed"))
        })?;
        let resized = self.with_instances(&spec, services)?;
        Ok(Self { scaled: self.scaled.clone(), ..resized })
    }

    /// This version with the instances and the release configured in `spec`. The model stays loaded and continues its counters;
    /// existing instances are kept.
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
        let mut config = self.config.clone();
        set_release(&mut config, &spec.config, services.release_parameters());
        let changed = services.instances.change_instances(instances, &spec, &config, statistics)?;
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
        let loaded = LoadedVersion {
            spec,
            version,
            load_number,
            config: &config,
            is_composite,
            statistics: &statistics,
            models: &services.models,
        };
        let release = services.releases.as_ref().map(|releases| releases.for_version(&loaded)).transpose();
        let release = release.inspect_err(|_| executor.close())?.flatten();
        let interceptors = services.interceptors.for_version(&loaded);
        let gate = Gate::new(interceptors.inspect_err(|_| executor.close())?);
        let scaled = spec.config.parameters.contains_key(INSTANCES_MAX).then(|| {
            // The version holds its files itself.
            Box::new(ModelSpec { guard: LoadGuard::default(), ..spec.clone() })
        });
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
            release,
            scaled,
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
