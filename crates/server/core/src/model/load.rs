//! Builds a version from its specification and its backend or members.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use nereid_backend_api::{Backend, Error, ModelConfig, Peers, Result};
use nereid_model_config::prefer_groups;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::model_sequence_batching::StrategyChoice;

use super::{Model, Retirement};
use crate::bodies::BodyBudget;
use crate::completion;
use crate::ensemble::{EnsembleFit, Graph, fit};
use crate::events::Events;
use crate::executor::{Executor, ExecutorKind, Instances};
use crate::gpu_limits::GpuLimits;
use crate::host_policies::HostPolicies;
use crate::instance::{Pool, plan_instances, refused_groups};
use crate::interceptors::{Gate, Interceptors};
use crate::readiness::{self, Readiness};
use crate::response_cache::{Caching, Load, ResponseCaching};
use crate::signature::Signature;
use crate::spec::{Labels, ModelSpec};
use crate::table::ModelTable;
use crate::warm_up::warm_up;
use nereid_scheduling::configured::{self, SchedulerContext};
use nereid_scheduling::rate_limiter::RateLimiter;
use nereid_scheduling::sequence::checks::SequenceChecks;
use nereid_scheduling::sequence::configured::initial_states;
use nereid_scheduling::timer::Timer;
use nereid_statistics::{Latencies, LatencyOptions, ModelStatistics};

/// What all models of a server share.
pub(crate) struct Services {
    /// Watches over requests that wait.
    pub timer: Timer,
    /// Limits executions, if they are limited.
    pub limiter: Option<Arc<RateLimiter>>,
    /// See [`ServerOptions::hold_batches`](crate::ServerOptions::hold_batches).
    pub hold_batches: (usize, usize),
    /// See [`ServerOptions::gpus`](crate::ServerOptions::gpus).
    pub gpus: Vec<i32>,
    /// See [`ServerOptions::gpu_limits`](crate::ServerOptions::gpu_limits).
    pub gpu_limits: GpuLimits,
    /// See [`ServerOptions::host_policies`](crate::ServerOptions::host_policies).
    pub host_policies: HostPolicies,
    /// See [`ServerOptions::max_unread`](crate::ServerOptions::max_unread).
    pub max_unread: usize,
    /// See [`Server::bodies`](crate::Server::bodies).
    pub bodies: BodyBudget,
    /// All models, where ensembles find their members.
    pub models: Weak<ArcSwap<ModelTable>>,
    /// See [`ServerOptions::latencies`](crate::ServerOptions::latencies).
    pub latencies: LatencyOptions,
    /// The server, as backends ask it.
    pub peers: Arc<dyn Peers>,
    /// See [`ServerOptions::interceptors`](crate::ServerOptions::interceptors).
    pub interceptors: Interceptors,
    /// See [`ServerOptions::response_cache`](crate::ServerOptions::response_cache).
    pub response_cache: Option<ResponseCaching>,
    /// Where changes of readiness are announced.
    pub events: Events,
}

impl Services {
    /// What the requests to a version pass before they are queued. The cache comes last: what stands before it holds for
    /// requests that it answers, too.
    fn gate(
        &self,
        config: &ModelConfig,
        load: &Load,
        statistics: &Arc<ModelStatistics>,
    ) -> Option<Arc<Gate>> {
        let caching =
            Caching::interceptor(self.response_cache.as_ref(), config, load, &self.models, statistics);
        Gate::new(&self.interceptors, caching)
    }
}

/// What a version consists of, besides what its specification says.
struct Parts {
    config: ModelConfig,
    signature: Signature,
    labels: BTreeMap<String, Labels>,
    statistics: Arc<ModelStatistics>,
    executor: Arc<dyn Executor>,
    /// Why it takes no requests at all, if it takes none.
    refusal: Option<Error>,
}

impl Model {
    /// Loads a version completely: its files, its instances, its threads, or its graph. If it takes the place of one that
    /// serves, its metrics go on from there.
    ///
    /// # Errors
    /// Says why it cannot be served.
    pub(crate) fn load(
        spec: &ModelSpec,
        version: u64,
        kind: &ExecutorKind,
        services: &Services,
        before: Option<&Self>,
    ) -> Result<Self> {
        match kind {
            ExecutorKind::Instances(backend) => {
                Self::of_instances(spec, version, &**backend, services, before)
            }
            ExecutorKind::Graph => Self::of_graph(spec, version, services, before),
        }
    }

    fn of_instances(
        spec: &ModelSpec,
        version: u64,
        backend: &dyn Backend,
        services: &Services,
        before: Option<&Self>,
    ) -> Result<Self> {
        // A backend goes to the GPU when it reads the model, and what it finds there tells less of what is wrong.
        if let Some((_, refused)) = refused_groups(&spec.id.name, &spec.config, &services.gpus).next() {
            return Err(refused);
        }
        services.gpu_limits.check(&spec.id.name, &spec.config, &services.gpus)?;
        let begin = Instant::now();
        let (model, config) = completion::load(spec, version, backend, &services.peers)?;
        let statistics = Self::statistics_after(before, &config, services);
        let model = (model.into(), None);
        let loaded = Self::make(spec, version, model, config, Arc::clone(&statistics), services)?;
        statistics.loaded_in(begin.elapsed());
        Ok(loaded)
    }

    /// A version that hands its requests to the models that are served now.
    fn of_graph(spec: &ModelSpec, version: u64, services: &Services, before: Option<&Self>) -> Result<Self> {
        let models = services.models.upgrade().ok_or_else(|| Error::unavailable("the server has ended"))?;
        let EnsembleFit { config, labels } = fit(spec, &models.load())?;
        let signature = Signature::new(&config)?;
        let statistics = Self::statistics_after(before, &config, services);
        let graph = Graph::new(&config, Weak::clone(&services.models), Arc::clone(&statistics));
        let parts = Parts { config, signature, labels, statistics, executor: Arc::new(graph), refusal: None };
        Self::assemble(spec, version, parts, services)
    }

    /// The counters of a version with this configuration, which takes the place of `before`.
    fn statistics_after(
        before: Option<&Self>,
        config: &ModelConfig,
        services: &Services,
    ) -> Arc<ModelStatistics> {
        // Other tags are other series.
        let before = before.filter(|before| before.config.metric_tags == config.metric_tags);
        let latencies = Latencies::new(services.latencies, config);
        Arc::new(ModelStatistics::new(before.map(|before| &before.statistics), latencies))
    }

    /// The same version with the instances that `spec` asks for. The model is not loaded anew, and goes on counting;
    /// instances that it already has are kept.
    ///
    /// # Errors
    /// Says why the instances cannot be made.
    pub(crate) fn with_instances(self: &Arc<Self>, spec: &ModelSpec, services: &Services) -> Result<Self> {
        let Some(instances) = self.executor.instances() else {
            return Err(Error::internal(format!("model '{}' has no instances to be changed", self.id)));
        };
        let groups = spec.config.instance_group.clone();
        let mut config = ModelConfig { instance_group: groups, ..self.config.clone() };
        let (model, statistics) = (instances.pool().model(), Arc::clone(&self.statistics));
        prefer_groups(&mut config, model.preferred_groups());
        // The files are those that the model was loaded from.
        let spec = ModelSpec { guard: self.guard().clone(), ..spec.clone() };
        // A backend that keeps state by the places of a batch would mix those of two schedulers in one instance.
        let kept = (!has_direct_sequences(&config)).then(|| instances.pool());
        let made = Self::make(&spec, self.version, (Arc::clone(&model), kept), config, statistics, services)?;
        model.instances_changed(&made.config.instance_group);
        made.predecessor.store(Some(Arc::clone(self)));
        Ok(made)
    }

    fn make(
        spec: &ModelSpec,
        version: u64,
        (model, kept): (Arc<dyn nereid_backend_api::Model>, Option<&Pool>),
        config: ModelConfig,
        statistics: Arc<ModelStatistics>,
        services: &Services,
    ) -> Result<Self> {
        let signature = Signature::new(&config)?;
        let planned = plan_instances(&spec.id.name, &config, &services.gpus)?;
        let needs = planned.iter().filter(|(instance, _)| !instance.passive).map(|(_, needs)| needs.clone());
        let needs = needs.collect();
        let instances = planned.into_iter().map(|(instance, _)| services.host_policies.place(instance));
        let instances = instances.collect::<Result<_>>()?;
        let permits = services.limiter.as_ref().map(|limiter| limiter.register(needs)).transpose()?;
        let custom = model.custom_batching();
        let pool = Arc::new(Pool::new(model, instances, kept, Arc::clone(&statistics) as _)?);
        warm_up(&pool, &config, &signature, &spec.warm_up_files, &statistics)?;
        let states = match &config.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(batching)) => {
                initial_states(&config, batching, &spec.state_files)?
            }
            _ => Vec::new(),
        };
        let context = SchedulerContext {
            instances: pool.len(),
            custom,
            permits,
            timer: &services.timer,
            hold: services.hold_batches,
            states,
        };
        let scheduler = configured::scheduler(&config, context);
        let events = services.events.clone();
        let readiness = Readiness::new(pool.model(), &services.timer, events, readiness::LIMIT);
        let refusal = (pool.len() == 0).then(|| {
            Error::unavailable(format!(
                "model '{}' accepts no requests: all of its instances are passive",
                spec.id.name
            ))
        });
        let executor = Instances::start(pool, scheduler, readiness)
            .map_err(|error| Error::internal(format!("cannot start the instance threads: {error}")))?;
        let labels = spec.labels.clone();
        let parts = Parts { config, signature, labels, statistics, executor: Arc::new(executor), refusal };
        Self::assemble(spec, version, parts, services)
    }

    fn assemble(spec: &ModelSpec, version: u64, parts: Parts, services: &Services) -> Result<Self> {
        let Parts { config, signature, labels, statistics, executor, refusal } = parts;
        let load = Load::new(services.response_cache.as_ref(), spec, version, &config)?;
        let gate = services.gate(&config, &load, &statistics);
        let id = (spec.id.clone(), version);
        let retirement = Retirement::new(id, gate.clone(), Arc::clone(&executor), spec.guard.clone());
        Ok(Self {
            id: spec.id.clone(),
            version,
            load,
            given: spec.config.clone(),
            sequence_checks: SequenceChecks::new(&config),
            config,
            signature,
            labels,
            statistics,
            gate,
            executor,
            refusal,
            max_unread: services.max_unread,
            bodies: services.bodies.clone(),
            origin: spec.origin,
            predecessor: ArcSwapOption::empty(),
            retirement,
        })
    }
}

/// Whether sequences have places in the batches of an instance.
fn has_direct_sequences(config: &ModelConfig) -> bool {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            !matches!(batching.strategy_choice, Some(StrategyChoice::Oldest(_)))
        }
        _ => false,
    }
}

/// What a configuration asks for that this version does not offer on a machine with these GPUs: the path of each such
/// field, and the reason that its users see.
pub fn not_offered(model: &str, config: &ModelConfig, gpus: &[i32]) -> Vec<(String, Error)> {
    let instances = refused_groups(model, config, gpus);
    instances.map(|(index, error)| (format!("instance_group[{index}].kind"), error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_not_offered_is_named_by_its_field() {
        let config = nereid_model_config::parse_text(
            "instance_group [ { kind: KIND_GPU }, { kind: KIND_CPU }, { kind: KIND_GPU name: 'g' } ]",
        );
        let found = not_offered("m", &config.unwrap(), &[]);
        let fields: Vec<_> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["instance_group[0].kind", "instance_group[2].kind"]);
        assert!(found[0].1.message().contains("'m_0'") && found[1].1.message().contains("'g'"), "{found:?}");
        assert_eq!(not_offered("m", &ModelConfig::default(), &[]).len(), 0);
    }
}
