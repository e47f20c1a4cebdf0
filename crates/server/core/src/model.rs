//! A loaded version of a model: signature, executor, statistics.

mod load;
mod retirement;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use nereid_backend_api::{
    Activity, CorrelationId, Error, InferRequest, MemoryUsage, ModelConfig, OutputLabels, Request, Responder,
    Result, TensorActivity, TraceSubject,
};
use nereid_budgets::BodyBudget;
use nereid_model_config::proto::ModelInstanceGroup;

pub(crate) use self::load::Services;
pub use self::load::{INSTANCES_MAX, INSTANCES_MIN};
use self::retirement::Retirement;
pub(crate) use self::retirement::Retirements;
use crate::admission::admit;
use crate::caller::Caller;
use crate::compute_sum::ComputeSum;
use crate::executor::{Executor, Instances};
use crate::inflight::{InFlight, ResponseStream};
use crate::interceptors::Gate;
use crate::load_guard::LoadGuard;
use crate::release::Release;
use crate::signature::Signature;
use crate::spec::{Fingerprint, Labels, ModelId, ModelSpec, Origin};
use crate::table::ModelTable;
use nereid_scheduling::sequence::checks::SequenceChecks;
use nereid_scheduling::{Adaptation, OpenSequence, Ticket, WaitingLevel};
use nereid_statistics::ModelStatistics;

/// The remaining work of a server or a model, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Requests are in progress.
    Requests,
    /// No request is in progress, but clients may continue sequences.
    Sequences,
    /// Nothing is left to be done.
    Nothing,
}

/// A version of a model that accepts requests.
pub struct Model {
    id: ModelId,
    version: u64,
    /// The model's folder.
    directory: PathBuf,
    /// The configuration before completion.
    given: ModelConfig,
    config: ModelConfig,
    signature: Signature,
    sequence_checks: Option<SequenceChecks>,
    labels: Arc<OutputLabels>,
    statistics: Arc<ModelStatistics>,
    load_number: u64,
    fingerprint: Fingerprint,
    /// The interceptors, if there are any.
    gate: Option<Arc<Gate>>,
    executor: Arc<dyn Executor>,
    /// Whether other models execute its requests.
    is_composite: bool,
    release: Option<Arc<dyn Release>>,
    /// Whether the server's readiness does without it, as its requests load it.
    is_on_demand: bool,
    /// The specification, if the number of instances follows the load.
    scaled: Option<Box<ModelSpec>>,
    /// The executor, if it is of this kind.
    instances: Option<Arc<Instances>>,
    /// The error of all requests, if it accepts none.
    refusal: Option<Error>,
    max_unread: usize,
    bodies: BodyBudget,
    origin: Origin,
    /// The names of the models that its executor makes requests to.
    dependencies: BTreeSet<String>,
    /// The version that this one replaced by a change of instances only, until the sequences there have ended.
    predecessor: ArcSwapOption<Model>,
    /// Ends the version when it is dropped. The last field, since fields are dropped in order.
    retirement: Retirement,
}

impl Model {
    /// Whether this version replaced `other` by a change of instances, and sequences continue there.
    pub(crate) fn follows(&self, other: &Arc<Self>) -> bool {
        self.predecessor.load().as_ref().is_some_and(|predecessor| Arc::ptr_eq(predecessor, other))
    }

    /// `follower` has replaced this version in the table. Open sequences continue here until they end.
    pub(crate) fn hand_over(self: &Arc<Self>, follower: &Arc<Self>) {
        let (this, follower) = (Arc::downgrade(self), Arc::downgrade(follower));
        self.when_sequences_end(Box::new(move || {
            let (Some(this), Some(follower)) = (this.upgrade(), follower.upgrade()) else { return };
            // Its own predecessor may still have sequences.
            let earlier = this.predecessor.swap(None);
            follower.predecessor.store(earlier.clone());
            if let Some(earlier) = earlier {
                earlier.hand_over(&follower);
            }
        }));
    }

    /// Calls `done` once no client can continue a sequence here.
    pub(crate) fn when_sequences_end(&self, done: Box<dyn FnOnce() + Send>) {
        let executor = Arc::clone(&self.executor);
        let queued = move || match executor.sequences() {
            Some(sequences) => sequences.when_ended(done),
            None => done(),
        };
        // A request that continues a sequence may not be queued yet.
        match &self.gate {
            Some(gate) => gate.when_empty(Box::new(queued)),
            None => queued(),
        }
    }

    /// Ends all sequences, here and in predecessors: clients can no longer continue them.
    pub(crate) fn end_sequences(&self) {
        if let Some(sequences) = self.executor.sequences() {
            sequences.end();
        }
        if let Some(predecessor) = self.predecessor.swap(None) {
            predecessor.end_sequences();
        }
    }

    /// Distinguishes this load from all others of the process.
    pub fn load_number(&self) -> u64 {
        self.load_number
    }

    /// The fingerprint of the files it was loaded from.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// The guard of the files it was loaded from.
    pub(crate) fn guard(&self) -> &LoadGuard {
        self.retirement.guard()
    }

    /// Records in `all` that the version has left the table and has not ended.
    pub(crate) fn retire(&self, all: &Arc<Retirements>) {
        self.retirement.begin(self.load_number, all);
    }

    /// Calls `afterwards` once the version has ended, after its last reference was dropped.
    pub(crate) fn when_ended(&self, afterwards: impl Fn() + Send + Sync + 'static) {
        self.retirement.then(afterwards);
    }

    /// The predecessor that holds the sequence of a request, if the sequence started before a change of instances.
    fn holder(&self, request: &InferRequest) -> Option<Arc<Self>> {
        if self.sequence_checks.is_none() || request.sequence.start {
            return None;
        }
        let mut model = self.predecessor.load_full()?;
        loop {
            if model.holds_sequence(&request.correlation_id) {
                return Some(model);
            }
            model = model.predecessor.load_full()?;
        }
    }

    /// Whether `spec` differs from the specification of this version in the instances and the release only. Changes of files are
    /// found by fingerprints.
    pub(crate) fn differs_in_instances_only(&self, spec: &ModelSpec, services: &Services) -> bool {
        let groups = self.given.instance_group.clone();
        let mut config = ModelConfig { instance_group: groups, ..spec.config.clone() };
        load::set_release(&mut config, &self.given, services.release_parameters());
        config == self.given
            && spec.origin == self.origin
            && spec.labels == *self.labels
            && self.instances.is_some()
    }

    /// The origin of its files.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Name and namespace.
    pub fn id(&self) -> &ModelId {
        &self.id
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.id.name
    }

    /// The version number.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The model's folder, whose files exist as long as the version does.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The completed configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The configuration before completion.
    pub fn declared_config(&self) -> &ModelConfig {
        &self.given
    }

    /// Inputs and outputs.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Whether a request may have any number of responses.
    pub fn is_decoupled(&self) -> bool {
        self.config.model_transaction_policy.is_some_and(|policy| policy.decoupled)
    }

    /// The models that execute its requests, if it executes them by requests to others. `None` if one of them is not served.
    pub fn members<'a>(&self, models: &'a ModelTable) -> Option<Vec<&'a Arc<Self>>> {
        match self.executor.composite() {
            Some(composite) => composite.members(models).into_iter().collect(),
            None => Some(Vec::new()),
        }
    }

    /// The names of the models that its executor makes requests to.
    pub fn dependencies(&self) -> &BTreeSet<String> {
        &self.dependencies
    }

    /// Whether other models execute its requests.
    pub fn is_composite(&self) -> bool {
        self.is_composite
    }

    /// The release that splits the requests to the model, if it has one.
    pub fn release(&self) -> Option<&Arc<dyn Release>> {
        self.release.as_ref()
    }

    /// Whether its requests load it. The server's readiness does not depend on it.
    pub fn is_on_demand(&self) -> bool {
        self.is_on_demand
    }

    /// The number of instances that get requests, if it has instances.
    pub fn instances(&self) -> Option<usize> {
        self.instances.as_ref().map(|instances| instances.pool().len())
    }

    /// The number of instances that it was loaded with, if that number follows the load.
    pub fn instances_at_load(&self) -> Option<usize> {
        let group = self.scaled.as_ref()?.config.instance_group.first();
        Some(group.map_or(1, |group| usize::try_from(group.count).unwrap_or(1).max(1)))
    }

    /// The specification with another number of instances, if that number follows the load.
    pub(crate) fn scaled_spec(&self, instances: usize) -> Option<ModelSpec> {
        let mut spec = ModelSpec::clone(self.scaled.as_ref()?);
        if spec.config.instance_group.is_empty() {
            spec.config.instance_group.push(ModelInstanceGroup::default());
        }
        let [group] = spec.config.instance_group.as_mut_slice() else { return None };
        group.count = i32::try_from(instances).ok()?;
        Some(spec)
    }

    /// The executor of its requests.
    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// See [`ServerOptions::max_unread`](crate::ServerOptions::max_unread).
    pub(crate) fn max_unread(&self) -> usize {
        self.max_unread
    }

    /// See [`Server::bodies`](crate::Server::bodies).
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// The counters.
    pub fn statistics(&self) -> &ModelStatistics {
        &self.statistics
    }

    /// Checks whether its backend would answer requests. It resolves within seconds.
    ///
    /// # Errors
    /// The reason why it would not.
    pub fn ready(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        // Start all checks before waiting for any.
        let checks = self.executor.check_ready();
        async {
            for check in checks {
                check.await?;
            }
            Ok(())
        }
    }

    /// The engine that executes it, such as a library with its release, if its backend knows.
    pub fn engine(&self) -> Option<String> {
        self.executor.engine()
    }

    /// Memory in use, if its backend knows.
    pub fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.executor.memory_usage()
    }

    /// The number of sequences that clients may continue, and the oldest ones of them, in order.
    pub fn open_sequences(&self, most: usize) -> (usize, Vec<OpenSequence>) {
        self.executor.sequences().map_or_else(Default::default, |sequences| sequences.open(most))
    }

    /// The ids of the processes that execute the model, apart from the server's own.
    pub fn processes(&self) -> Vec<u32> {
        self.executor.processes()
    }

    /// The labels of an output.
    pub fn labels(&self, output: &str) -> Option<&Labels> {
        self.labels.get(output)
    }

    /// The labels of all outputs; `None` if the model has none.
    pub(crate) fn output_labels(&self) -> Option<Arc<OutputLabels>> {
        (!self.labels.is_empty()).then(|| Arc::clone(&self.labels))
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> &crate::instance::Pool {
        self.instances.as_ref().expect("the model has instances").pool()
    }

    /// Queues a request, or executes it at once if that takes less than queueing it.
    ///
    /// # Errors
    /// The reason why the request is refused.
    pub(crate) fn infer(
        self: &Arc<Self>,
        mut request: InferRequest,
        caller: Caller,
    ) -> Result<ResponseStream> {
        if let Some(holder) = self.holder(&request) {
            return holder.infer(request, caller);
        }
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let arrived = Instant::now();
        let batch_size = admit(&mut request, &self.signature, &self.id.name)?;
        if let Some(checks) = &self.sequence_checks {
            checks.check(&request, batch_size, &self.id.name)?;
        }
        request.flow = caller.flow().unwrap_or(request.flow);
        self.begin_trace(&mut request, &caller, arrived);
        let inflight = InFlight::new(Arc::clone(self), &request, batch_size, arrived, caller);
        let responder = Responder::new(Arc::<InFlight>::clone(&inflight), request.allocator.clone());
        let request = Request::new(request, batch_size, responder);
        let stream = match &self.gate {
            Some(gate) => gate.enter(inflight, request)?,
            None => {
                let ticket = inflight.enqueue(request)?;
                ResponseStream::new(inflight, ticket)
            }
        };
        self.statistics.record_start();
        Ok(stream)
    }

    /// Queues a request made by a composite model for one of its own. It does not count against the server's limits, and its
    /// compute time is added to `parent`.
    ///
    /// # Errors
    /// The reason why the request is refused.
    pub fn infer_for(
        self: &Arc<Self>,
        request: InferRequest,
        parent: &Arc<ComputeSum>,
    ) -> Result<ResponseStream> {
        self.infer(request, Caller::composite(parent))
    }

    /// Queues a copy of a request whose client gets the answer of another version. It does not count against the server's limits.
    ///
    /// # Errors
    /// The reason why the request is refused.
    pub fn infer_copy(self: &Arc<Self>, request: InferRequest) -> Result<ResponseStream> {
        self.infer(request, Caller::copy())
    }

    /// Whether a request continues an open sequence.
    pub(crate) fn continues_sequence(&self, request: &InferRequest) -> bool {
        let id = &request.correlation_id;
        *id != CorrelationId::None && !request.sequence.start && self.has_sequence(id)
    }

    /// Whether clients may continue a sequence, here or in a predecessor.
    pub fn has_sequence(&self, id: &CorrelationId) -> bool {
        self.holds_sequence(id)
            || self.predecessor.load().as_ref().is_some_and(|predecessor| predecessor.has_sequence(id))
    }

    fn holds_sequence(&self, id: &CorrelationId) -> bool {
        self.executor.sequences().is_some_and(|sequences| sequences.continues(id))
            || self.gate.as_ref().is_some_and(|gate| gate.holds(id))
    }

    /// Whether requests are in progress or sequences are open.
    pub fn work(&self) -> Work {
        if self.statistics.in_flight() > 0 {
            return Work::Requests;
        }
        let predecessor = self.predecessor.load();
        let has_sequences = self.executor.sequences().is_some_and(|sequences| sequences.has_open())
            || predecessor.as_ref().is_some_and(|predecessor| predecessor.work() != Work::Nothing);
        if has_sequences { Work::Sequences } else { Work::Nothing }
    }

    /// Starts the trace of a request, if it has one.
    fn begin_trace(&self, request: &mut InferRequest, caller: &Caller, arrived: Instant) {
        let Some(trace) = &mut request.trace else { return };
        let subject = TraceSubject {
            model_name: self.id.name.clone(),
            model_version: self.version,
            request_id: request.id.clone(),
            principal: caller.principal().map_or_else(String::new, ToString::to_string),
        };
        trace.begin(subject, arrived);
        trace.trace().report(Activity::QueueStart, Instant::now());
        trace.trace().report_tensors(TensorActivity::QueueInput, &request.inputs);
    }

    /// Removes a cancelled request from the queue.
    pub(crate) fn remove_from_queue(&self, ticket: Ticket) {
        self.executor.cancel(ticket);
    }

    /// Number of queued requests.
    pub fn pending(&self) -> usize {
        self.executor.pending()
    }

    /// The priority levels with queued requests, the most urgent first, but not more than `most`. None without levels.
    pub fn waiting_levels(&self, most: usize) -> Vec<WaitingLevel> {
        self.executor.waiting_levels(most)
    }

    /// How its batches follow a latency objective, if it has one.
    pub fn adaptation(&self) -> Option<Adaptation> {
        self.executor.adaptation()
    }

    /// Refuses further requests, executes queued ones, and ends the instances.
    pub(crate) fn unload(&self) {
        self.retirement.end();
    }
}
