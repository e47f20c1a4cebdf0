//! The instances of backends as a kind of executor: loads a backend's model, and creates its instances and its scheduler.

use std::sync::Arc;
use std::time::Instant;

use nereid_backend_api::{Backend, Error, Model as BackendModel, ModelConfig, Peers, Result};
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::model_sequence_batching::StrategyChoice;
use nereid_model_config::{LATENCY_OBJECTIVE, latency_objective, prefer_groups};

use super::{BuildError, Executable, ExecutorFactory, Instances, VersionLoad};
use crate::backends::Backends;
use crate::completion;
use crate::events::Events;
use crate::gpu_limits::GpuLimits;
use crate::host_policies::HostPolicies;
use crate::instance::{Pool, plan_instances, refused_groups};
use crate::readiness::{self, Readiness};
use crate::signature::Signature;
use crate::spec::ModelSpec;
use crate::warm_up::warm_up;
use nereid_scheduling::configured::{self, SchedulerContext};
use nereid_scheduling::rate_limiter::RateLimiter;
use nereid_scheduling::sequence::configured::initial_states;
use nereid_scheduling::shedding::LoadShedding;
use nereid_scheduling::timer::Timer;
use nereid_statistics::ModelStatistics;

/// Services that the instances of all models share.
pub(crate) struct InstanceServices {
    /// Answers waiting requests whose time is over.
    pub timer: Timer,
    /// Limits executions, if they are limited.
    pub limiter: Option<Arc<RateLimiter>>,
    /// See [`ServerOptions::hold_batches`](crate::ServerOptions::hold_batches).
    pub hold_batches: (usize, usize),
    /// See [`ServerOptions::load_shedding`](crate::ServerOptions::load_shedding).
    pub load_shedding: LoadShedding,
    /// See [`ServerOptions::gpus`](crate::ServerOptions::gpus).
    pub gpus: Vec<i32>,
    /// See [`ServerOptions::gpu_limits`](crate::ServerOptions::gpu_limits).
    pub gpu_limits: GpuLimits,
    /// See [`ServerOptions::host_policies`](crate::ServerOptions::host_policies).
    pub host_policies: HostPolicies,
    /// The server, for inner requests of backends.
    pub peers: Arc<dyn Peers>,
    /// Where changes of readiness are announced.
    pub events: Events,
}

/// Executes models with the instances of backends.
pub(crate) struct BackendFactory {
    backends: Backends,
    services: Arc<InstanceServices>,
}

impl BackendFactory {
    pub(crate) fn new(backends: Backends, services: Arc<InstanceServices>) -> Self {
        Self { backends, services }
    }

    fn load(&self, load: &VersionLoad<'_>, backend: &dyn Backend) -> Result<Executable> {
        let (spec, services) = (load.spec, &self.services);
        // Checked first: a backend's own GPU error is less specific.
        if let Some((_, refused)) = refused_groups(&spec.id.name, &spec.config, &services.gpus).next() {
            return Err(refused);
        }
        services.gpu_limits.check(&spec.id.name, &spec.config, &services.gpus)?;
        let begin = Instant::now();
        let (model, config) = completion::load(spec, load.version, backend, &services.peers)?;
        let statistics = load.statistics(&config);
        let executable =
            services.create_instances(spec, model.into(), None, config, Arc::clone(&statistics))?;
        statistics.loaded_in(begin.elapsed());
        Ok(executable)
    }
}

impl ExecutorFactory for BackendFactory {
    fn accepts(&self, _: &ModelSpec) -> bool {
        true
    }

    fn build(&self, load: &VersionLoad<'_>) -> Result<Executable, BuildError> {
        let context = load.spec.context(load.version, &self.services.peers);
        let backend = self.backends.select(&context)?;
        self.load(load, &*backend).map_err(BuildError::temporary)
    }
}

impl InstanceServices {
    /// Executes a loaded model with the instances configured in `spec`. Existing `instances` are kept, and the counters
    /// continue.
    ///
    /// # Errors
    /// The reason why the instances cannot be created.
    pub(crate) fn change_instances(
        &self,
        instances: &Instances,
        spec: &ModelSpec,
        served: &ModelConfig,
        statistics: Arc<ModelStatistics>,
    ) -> Result<Executable> {
        let groups = spec.config.instance_group.clone();
        let mut config = ModelConfig { instance_group: groups, ..served.clone() };
        let model = instances.pool().model();
        prefer_groups(&mut config, model.preferred_groups());
        // With direct sequences, a backend may keep state per batch slot: two schedulers must not share an instance.
        let kept = (!has_direct_sequences(&config)).then(|| instances.pool());
        self.create_instances(spec, model, kept, config, statistics)
    }

    fn create_instances(
        &self,
        spec: &ModelSpec,
        model: Arc<dyn BackendModel>,
        kept: Option<&Pool>,
        config: ModelConfig,
        statistics: Arc<ModelStatistics>,
    ) -> Result<Executable> {
        let signature = Signature::new(&config)?;
        let planned = plan_instances(&spec.id.name, &config, &self.gpus)?;
        let needs = planned.iter().filter(|(instance, _)| !instance.passive).map(|(_, needs)| needs.clone());
        let needs = needs.collect();
        let instances = planned.into_iter().map(|(instance, _)| self.host_policies.place(instance));
        let instances = instances.collect::<Result<_>>()?;
        let permits = self.limiter.as_ref().map(|limiter| limiter.register(needs)).transpose()?;
        let custom = model.custom_batching();
        let pool = Arc::new(Pool::new(model, instances, kept, Arc::clone(&statistics) as _)?);
        if pool.is_continuous() {
            check_continuous(&spec.id.name, &config)?;
        }
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
            timer: &self.timer,
            hold: self.hold_batches,
            states,
            is_continuous: pool.is_continuous(),
            // The execution time of a continuous instance says nothing about how soon it takes the next request.
            service: (self.load_shedding == LoadShedding::On && !pool.is_continuous())
                .then(|| Arc::clone(pool.service())),
        };
        let scheduler = configured::scheduler(&config, context);
        let readiness = Readiness::new(pool.model(), &self.timer, self.events.clone(), readiness::LIMIT);
        let refusal = (pool.len() == 0).then(|| {
            Error::unavailable(format!(
                "model '{}' accepts no requests: all of its instances are passive",
                spec.id.name
            ))
        });
        let instances = Instances::start(pool, scheduler, readiness)
            .map_err(|error| Error::internal(format!("cannot start the instance threads: {error}")))?;
        let instances = Arc::new(instances);
        let executor = Arc::clone(&instances) as _;
        let executable = Executable::new(config, spec.labels.clone(), statistics, executor);
        Ok(Executable { refusal, instances: Some(instances), ..executable })
    }
}

/// Refuses schedulers that instances with continuous batching do not support.
fn check_continuous(model: &str, config: &ModelConfig) -> Result<()> {
    let executes = format!("model '{model}': its backend executes requests continuously");
    if matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))) {
        return Err(Error::invalid_arg(format!(
            "{executes}, which sequence_batching does not support; use dynamic_batching or none"
        )));
    }
    if latency_objective(config).is_some() {
        return Err(Error::invalid_arg(format!(
            "{executes}, without batches that could wait; omit the parameter '{LATENCY_OBJECTIVE}'"
        )));
    }
    Ok(())
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

/// The fields of a configuration that a machine with these GPUs cannot satisfy: the path of each, and the reason for
/// users.
pub fn not_offered(model: &str, config: &ModelConfig, gpus: &[i32]) -> Vec<(String, Error)> {
    let instances = refused_groups(model, config, gpus);
    instances.map(|(index, error)| (format!("instance_group[{index}].kind"), error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuous_instances_refuse_what_makes_batches() {
        let check = |text: &str| {
            let config = nereid_model_config::parse_text(text).unwrap();
            check_continuous("m", &config).map_err(|error| error.message().to_owned())
        };
        let objective = "parameters { key: 'latency_objective_microseconds' value { string_value: '5000' } }";
        assert_eq!(check("dynamic_batching { }"), Ok(()));
        assert_eq!(
            check(&format!("dynamic_batching {{ }} {objective}")),
            Err("model 'm': its backend executes requests continuously, without batches that could wait; omit the parameter \
                 'latency_objective_microseconds'"
                .to_owned())
        );
        assert!(
            check("sequence_batching { }").unwrap_err().contains("which sequence_batching does not support")
        );
    }

    #[test]
    fn each_unsatisfiable_field_is_reported_by_its_path() {
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
