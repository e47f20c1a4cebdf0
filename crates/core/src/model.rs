//! One loaded version of a model: what it takes and gives, its scheduler, its instances, its counters.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use nereid_backend_api::{
    Activity, Backend, Error, InferRequest, MemoryUsage, ModelConfig, Request, Responder, Result,
    TensorActivity, TraceSubject,
};
use nereid_model_config::prefer_groups;
use nereid_model_config::proto::model_config::SchedulingChoice;

use crate::admission::admit;
use crate::completion::{self, Completion};
use crate::ensemble::{EnsembleScheduler, Fitted, steps_of};
use crate::host_policies::HostPolicies;
use crate::inflight::{Caller, InFlight, ResponseStream};
use crate::instance::{Pool, plan_instances, refused_groups};
use crate::rate_limiter::RateLimiter;
use crate::readiness::{self, Readiness};
use crate::scheduler::configured::{self, Surroundings};
use crate::scheduler::sequence::checks::SequenceChecks;
use crate::scheduler::sequence::configured::initial_states;
use crate::scheduler::{Enqueued, Scheduler, Ticket};
use crate::signature::Signature;
use crate::source::{Fingerprint, ModelId};
use crate::statistics::{Latencies, LatencyOptions, ModelStatistics};
use crate::table::ModelTable;
use crate::timer::Timer;
use crate::warm_up::warm_up;

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
    /// See [`ServerOptions::host_policies`](crate::ServerOptions::host_policies).
    pub host_policies: HostPolicies,
    /// See [`ServerOptions::max_unread`](crate::ServerOptions::max_unread).
    pub max_unread: usize,
    /// All models, where ensembles find their members.
    pub models: Weak<ArcSwap<ModelTable>>,
    /// See [`ServerOptions::latencies`](crate::ServerOptions::latencies).
    pub latencies: LatencyOptions,
}

/// The label of each index of a classification output.
pub type Labels = Vec<String>;

/// A model as its repository describes it.
#[derive(Clone)]
pub struct ModelSpec {
    /// Its name and namespace.
    pub id: ModelId,
    /// Its folder.
    pub directory: PathBuf,
    /// Its configuration, with the defaults filled in, checked as far as it has come.
    pub config: ModelConfig,
    /// Whether its backend completes the configuration.
    pub completion: Completion,
    /// The versions to serve, ascending.
    pub versions: Vec<u64>,
    /// Labels by the name of the output.
    pub labels: BTreeMap<String, Labels>,
    /// The files that its warm-up takes, by their names.
    pub warm_up_files: BTreeMap<String, Bytes>,
    /// The files that its sequences' states begin with, by their names.
    pub state_files: BTreeMap<String, Bytes>,
    /// What is wrong with it although it was read: each of its versions fails with this.
    pub fault: Option<Error>,
    /// How it looked when it was read.
    pub fingerprint: Fingerprint,
    /// Kept as long as the model is loaded: a folder, say, that was made for it and is removed with it.
    pub keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions = &self.versions;
        f.debug_struct("ModelSpec").field("id", &self.id).field("versions", versions).finish_non_exhaustive()
    }
}

/// A version of a model that can be asked.
pub struct Model {
    id: ModelId,
    version: u64,
    /// The configuration before it was completed.
    given: ModelConfig,
    config: ModelConfig,
    signature: Signature,
    sequence_checks: Option<SequenceChecks>,
    labels: BTreeMap<String, Labels>,
    statistics: Arc<ModelStatistics>,
    scheduler: Arc<dyn Scheduler>,
    /// The instances; an ensemble has none.
    pool: Option<Arc<Pool>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    readiness: Readies,
    max_unread: usize,
    /// See [`ModelSpec::keep`].
    kept: Option<Arc<dyn Any + Send + Sync>>,
    /// What it follows, if only the instances were changed, until the sequences of that are over.
    before: Weak<Model>,
}

/// Who knows whether a model would answer requests.
enum Readies {
    /// Its backend.
    Asks(Arc<Readiness>),
    /// The backends of the models that an ensemble consists of, which are found here.
    Members(Weak<ArcSwap<ModelTable>>),
}

impl Model {
    /// Loads a version completely: its files, its instances, its threads. If it takes the place of one that serves, its
    /// metrics go on from there.
    ///
    /// # Errors
    /// Says why it cannot be served.
    pub(crate) fn load(
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
        let begin = Instant::now();
        let (model, config) = completion::load(spec, version, backend)?;
        let statistics = Self::statistics_after(before, &config, services);
        let loaded = Self::make(spec, version, model.into(), config, Arc::clone(&statistics), services)?;
        statistics.loaded_in(begin.elapsed());
        Ok(loaded)
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

    /// A version of an ensemble, as it fits its members. If it takes the place of one that serves, its metrics go on from
    /// there.
    ///
    /// # Errors
    /// Its configuration is not whole.
    pub(crate) fn ensemble(
        spec: &ModelSpec,
        version: u64,
        fitted: Fitted,
        services: &Services,
        before: Option<&Self>,
    ) -> Result<Self> {
        let Fitted { config, labels } = fitted;
        let statistics = Self::statistics_after(before, &config, services);
        let models = Weak::clone(&services.models);
        let scheduler = EnsembleScheduler::new(&config, Weak::clone(&models), Arc::clone(&statistics));
        Ok(Self {
            id: spec.id.clone(),
            version,
            given: spec.config.clone(),
            signature: Signature::new(&config)?,
            config,
            labels,
            statistics,
            scheduler: Arc::new(scheduler),
            pool: None,
            threads: Mutex::default(),
            readiness: Readies::Members(models),
            sequence_checks: None,
            max_unread: services.max_unread,
            kept: spec.keep.clone(),
            before: Weak::new(),
        })
    }

    /// The same version with the instances that `spec` asks for. The model is not loaded anew, and goes on counting.
    ///
    /// # Errors
    /// Says why the instances cannot be made.
    pub(crate) fn with_instances(self: &Arc<Self>, spec: &ModelSpec, services: &Services) -> Result<Self> {
        let Some(pool) = &self.pool else {
            return Err(Error::internal("an ensemble has no instances to be changed"));
        };
        let groups = spec.config.instance_group.clone();
        let mut config = ModelConfig { instance_group: groups, ..self.config.clone() };
        let (model, statistics) = (pool.model(), Arc::clone(&self.statistics));
        prefer_groups(&mut config, model.preferred_groups());
        let made = Self::make(spec, self.version, Arc::clone(&model), config, statistics, services)?;
        model.instances_changed(&made.config.instance_group);
        Ok(Self { before: Arc::downgrade(self), ..made })
    }

    /// Whether this has other instances of the model that `before` has, whose sequences go on there.
    pub(crate) fn follows(&self, before: &Arc<Self>) -> bool {
        self.before.ptr_eq(&Arc::downgrade(before))
    }

    /// Whether clients may go on with sequences.
    pub(crate) fn has_sequences(&self) -> bool {
        self.scheduler.has_sequences()
    }

    /// No client can go on with its sequence any more.
    pub(crate) fn end_sequences(&self) {
        self.scheduler.end_sequences();
    }

    /// Who has the sequence that a request goes on with, if that began before the instances were changed.
    fn holder(&self, request: &InferRequest) -> Option<Arc<Self>> {
        if self.sequence_checks.is_none() || request.sequence.start {
            return None;
        }
        let mut model = self.before.upgrade()?;
        loop {
            if model.scheduler.goes_on(&request.correlation_id) {
                return Some(model);
            }
            model = model.before.upgrade()?;
        }
    }

    /// Whether `spec` is what this was made from, but for its instances. Files that came with a request are never the
    /// same as others.
    pub(crate) fn differs_in_instances_only(&self, spec: &ModelSpec) -> bool {
        let groups = self.given.instance_group.clone();
        let same = ModelConfig { instance_group: groups, ..spec.config.clone() } == self.given;
        let own_files = spec.keep.is_none() && self.kept.is_none();
        same && own_files && spec.labels == self.labels && self.pool.is_some()
    }

    fn make(
        spec: &ModelSpec,
        version: u64,
        model: Arc<dyn nereid_backend_api::Model>,
        config: ModelConfig,
        statistics: Arc<ModelStatistics>,
        services: &Services,
    ) -> Result<Self> {
        let signature = Signature::new(&config)?;
        let planned = plan_instances(&spec.id.name, &config, &services.gpus)?;
        let needs = planned.iter().filter(|(instance, _)| !instance.passive).map(|(_, needs)| needs.clone());
        let needs = needs.collect();
        let instances = planned.into_iter().map(|(instance, _)| services.host_policies.place(instance));
        let instances = instances.collect();
        let permits = services.limiter.as_ref().map(|limiter| limiter.register(needs)).transpose()?;
        let custom = model.custom_batching();
        let pool = Arc::new(Pool::new(model, instances, Arc::clone(&statistics) as _)?);
        warm_up(&pool, &config, &signature, &spec.warm_up_files)?;
        let states = match &config.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(batching)) => {
                initial_states(&config, batching, &spec.state_files)?
            }
            _ => Vec::new(),
        };
        let surroundings = Surroundings {
            instances: pool.len(),
            custom,
            permits,
            timer: &services.timer,
            hold: services.hold_batches,
            states,
        };
        let scheduler = configured::scheduler(&config, surroundings);
        let readiness = Readiness::new(pool.model(), &services.timer, readiness::LIMIT);
        let loaded = Self {
            id: spec.id.clone(),
            version,
            given: spec.config.clone(),
            sequence_checks: SequenceChecks::new(&config),
            config,
            signature,
            labels: spec.labels.clone(),
            statistics,
            scheduler,
            pool: Some(Arc::clone(&pool)),
            threads: Mutex::default(),
            readiness: Readies::Asks(readiness),
            max_unread: services.max_unread,
            kept: spec.keep.clone(),
            before: Weak::new(),
        };
        if let Err(error) = loaded.start(&pool) {
            loaded.unload();
            return Err(Error::internal(format!("cannot start the threads of its instances: {error}")));
        }
        Ok(loaded)
    }

    fn start(&self, pool: &Arc<Pool>) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for instance in 0..pool.len() {
            threads.push(Arc::clone(pool).spawn(instance, Arc::clone(&self.scheduler))?);
        }
        Ok(())
    }

    /// Its name and namespace.
    pub fn id(&self) -> &ModelId {
        &self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.id.name
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Its configuration, completed.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its configuration as it was before it was completed.
    pub(crate) fn given(&self) -> &ModelConfig {
        &self.given
    }

    /// What it takes and gives.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Whether it answers a request with any number of responses.
    pub fn is_decoupled(&self) -> bool {
        self.config.model_transaction_policy.is_some_and(|policy| policy.decoupled)
    }

    /// Whether its requests are executed by other models.
    pub fn is_ensemble(&self) -> bool {
        steps_of(&self.config).is_some()
    }

    /// See [`ServerOptions::max_unread`](crate::ServerOptions::max_unread).
    pub(crate) fn max_unread(&self) -> usize {
        self.max_unread
    }

    /// Its counters.
    pub fn statistics(&self) -> &ModelStatistics {
        &self.statistics
    }

    /// Whether it would answer requests, as far as its backend can tell: an error says why it would not. The answer takes
    /// seconds at most.
    pub fn ready(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let asked: Vec<_> = match &self.readiness {
            Readies::Asks(readiness) => vec![readiness.ask()],
            Readies::Members(models) => {
                let models = models.upgrade().map(|models| models.load_full());
                let members = models.iter().flat_map(|models| models.members_of(self));
                members.filter_map(|member| member.asks()).map(Readiness::ask).collect()
            }
        };
        async {
            for answer in asked {
                answer.await?;
            }
            Ok(())
        }
    }

    fn asks(&self) -> Option<&Arc<Readiness>> {
        match &self.readiness {
            Readies::Asks(readiness) => Some(readiness),
            Readies::Members(_) => None,
        }
    }

    /// How much memory it takes, as far as its backend knows.
    pub fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.pool.as_ref().map(|pool| pool.model().memory_usage()).unwrap_or_default()
    }

    /// The labels of an output.
    pub fn labels(&self, output: &str) -> Option<&Labels> {
        self.labels.get(output)
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("an ensemble has no instances")
    }

    /// Takes a request in and queues it, or executes it at once if that takes less than queueing it.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(crate) fn infer(
        self: Arc<Self>,
        mut request: InferRequest,
        caller: Caller,
    ) -> Result<ResponseStream> {
        if let Some(holder) = self.holder(&request) {
            return holder.infer(request, caller);
        }
        if self.pool.as_ref().is_some_and(|pool| pool.len() == 0) {
            return Err(Error::unavailable(format!(
                "model '{}' takes no requests: all of its instances are passive",
                self.id.name
            )));
        }
        let arrived = Instant::now();
        let batch_size = admit(&mut request, &self.signature)?;
        if let Some(checks) = &self.sequence_checks {
            checks.check(&request, batch_size)?;
        }
        self.begin_trace(&mut request, arrived);
        let inflight = InFlight::new(Arc::clone(&self), &request, batch_size, arrived, caller);
        let responder = Responder::new(Arc::<InFlight>::clone(&inflight), request.allocator.clone());
        let request = Request::new(request, batch_size, responder);
        let at_once = self.pool.as_ref().is_some_and(|pool| pool.runs_at_once(&request));
        let ticket = match self.scheduler.enqueue(request, at_once) {
            Enqueued::Waits(ticket) => Some(ticket),
            Enqueued::Claimed(claim) => {
                if let Some(pool) = &self.pool {
                    pool.execute(claim.instance, claim.requests);
                }
                self.scheduler.finished(claim.instance);
                None
            }
            Enqueued::Refused => None,
            Enqueued::Wrong(error) => return Err(error),
        };
        Ok(ResponseStream::new(inflight, ticket))
    }

    /// Tells the trace of a request, if it has one, that it is taken and queued.
    fn begin_trace(&self, request: &mut InferRequest, arrived: Instant) {
        let Some(trace) = &mut request.trace else { return };
        let subject = TraceSubject {
            model_name: self.id.name.clone(),
            model_version: self.version,
            request_id: request.id.clone(),
        };
        trace.begin(subject, arrived);
        trace.trace().report(Activity::QueueStart, Instant::now());
        trace.trace().report_tensors(TensorActivity::QueueInput, &request.inputs);
    }

    /// Takes a request out of the queue that nobody waits for any more.
    pub(crate) fn forget(&self, ticket: Ticket) {
        self.scheduler.cancel(ticket);
    }

    /// How many requests wait for an instance.
    pub fn pending(&self) -> usize {
        self.scheduler.pending()
    }

    /// Takes no further request, executes what is queued, and ends the instances.
    pub(crate) fn unload(&self) {
        self.scheduler.close();
        if self.pool.is_none() {
            self.scheduler.next(0);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // An instance's thread catches its backend's panics, so there is no outcome to look at.
            let _ = thread.join();
        }
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
