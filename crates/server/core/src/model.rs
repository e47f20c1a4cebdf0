//! One loaded version of a model: its signature, its executor, its statistics.

mod load;
mod retirement;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use nereid_backend_api::{
    Activity, CorrelationId, Error, InferRequest, MemoryUsage, ModelConfig, Request, Responder, Result,
    TensorActivity, TraceSubject,
};

pub(crate) use self::load::Services;
pub use self::load::not_offered;
use self::retirement::Retirement;
use crate::admission::admit;
use crate::bodies::BodyBudget;
use crate::caller::Caller;
use crate::executor::Executor;
use crate::inflight::{InFlight, ResponseStream};
use crate::interceptors::Gate;
use crate::load_guard::LoadGuard;
use crate::response_cache::Load;
use crate::signature::Signature;
use crate::spec::{Labels, ModelId, ModelSpec, Origin};
use nereid_scheduling::Ticket;
use nereid_scheduling::sequence::checks::SequenceChecks;
use nereid_statistics::ModelStatistics;

/// What a server or a model still has to do, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Requests are in progress.
    Requests,
    /// No request is in progress, but clients may continue sequences.
    Sequences,
    /// There is none.
    Nothing,
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
    /// What tells it from other loads in the response cache.
    load: Load,
    /// What requests pass before they are queued, if there is anything.
    gate: Option<Arc<Gate>>,
    executor: Arc<dyn Executor>,
    /// Why it takes no requests at all, if it takes none.
    refusal: Option<Error>,
    max_unread: usize,
    bodies: BodyBudget,
    origin: Origin,
    /// What it follows, if only the instances were changed, until the sequences of that are over.
    predecessor: ArcSwapOption<Model>,
    /// Ends all of this when its last holder lets go. Last, since fields are dropped in order.
    retirement: Retirement,
}

impl Model {
    /// Whether this has other instances of the model that `other` has, whose sequences continue there.
    pub(crate) fn follows(&self, other: &Arc<Self>) -> bool {
        self.predecessor.load().as_ref().is_some_and(|predecessor| Arc::ptr_eq(predecessor, other))
    }

    /// `follower` has taken its place in the table. It lasts as long as the follower needs it for its open sequences.
    pub(crate) fn hand_over(self: &Arc<Self>, follower: &Arc<Self>) {
        let (this, follower) = (Arc::downgrade(self), Arc::downgrade(follower));
        self.when_sequences_end(Box::new(move || {
            let (Some(this), Some(follower)) = (this.upgrade(), follower.upgrade()) else { return };
            // What it followed itself may still have sequences.
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
        let queued = move || executor.when_sequences_end(done);
        // A request that continues one may not be queued yet.
        match &self.gate {
            Some(gate) => gate.when_empty(Box::new(queued)),
            None => queued(),
        }
    }

    /// No client can continue its sequence any more, here or where it began.
    pub(crate) fn end_sequences(&self) {
        self.executor.end_sequences();
        if let Some(predecessor) = self.predecessor.swap(None) {
            predecessor.end_sequences();
        }
    }

    /// What tells it from other loads in the response cache.
    pub(crate) fn load_identity(&self) -> &[u8; 32] {
        self.load.identity()
    }

    /// The guard of the files it was loaded from.
    pub(crate) fn guard(&self) -> &LoadGuard {
        self.retirement.guard()
    }

    /// Calls `afterwards` when the last holder is gone and the instances have ended.
    pub(crate) fn when_ended(&self, afterwards: impl Fn() + Send + Sync + 'static) {
        self.retirement.then(afterwards);
    }

    /// The holder of the sequence that a request continues, if it began before the instances were changed.
    fn holder(&self, request: &InferRequest) -> Option<Arc<Self>> {
        if self.sequence_checks.is_none() || request.sequence.start {
            return None;
        }
        let mut model = self.predecessor.load_full()?;
        loop {
            let goes_on = model.executor.goes_on(&request.correlation_id);
            if goes_on || model.gate.as_ref().is_some_and(|gate| gate.holds(&request.correlation_id)) {
                return Some(model);
            }
            model = model.predecessor.load_full()?;
        }
    }

    /// Whether `spec` is what this was made from, but for its instances; whether its files have changed, fingerprints
    /// tell.
    pub(crate) fn differs_in_instances_only(&self, spec: &ModelSpec) -> bool {
        let groups = self.given.instance_group.clone();
        let same = ModelConfig { instance_group: groups, ..spec.config.clone() } == self.given;
        same && spec.origin == self.origin
            && spec.labels == self.labels
            && self.executor.instances().is_some()
    }

    /// Where its files are from.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
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

    /// What executes its requests.
    pub(crate) fn executor(&self) -> &dyn Executor {
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

    /// Its counters.
    pub fn statistics(&self) -> &ModelStatistics {
        &self.statistics
    }

    /// Whether it would answer requests, as far as its backend can tell: an error says why it would not. The answer takes
    /// seconds at most.
    pub fn ready(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        // All are asked before any answer is waited for.
        let checks = self.executor.check_ready();
        async {
            for check in checks {
                check.await?;
            }
            Ok(())
        }
    }

    /// How much memory it takes, as far as its backend knows.
    pub fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.executor.memory_usage()
    }

    /// The labels of an output.
    pub fn labels(&self, output: &str) -> Option<&Labels> {
        self.labels.get(output)
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> &crate::instance::Pool {
        self.executor.instances().expect("the model has instances").pool()
    }

    /// Takes a request in and queues it, or executes it at once if that takes less than queueing it.
    ///
    /// # Errors
    /// What is wrong with the request.
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
        self.begin_trace(&mut request, arrived);
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
        self.statistics.begun();
        Ok(stream)
    }

    /// Whether a request continues a sequence that has begun.
    pub(crate) fn goes_on(&self, request: &InferRequest) -> bool {
        let id = &request.correlation_id;
        *id != CorrelationId::None && !request.sequence.start && self.has_sequence(id)
    }

    /// Whether clients may continue that sequence here, or where it began.
    pub(crate) fn has_sequence(&self, id: &CorrelationId) -> bool {
        self.executor.goes_on(id)
            || self.gate.as_ref().is_some_and(|gate| gate.holds(id))
            || self.predecessor.load().as_ref().is_some_and(|predecessor| predecessor.has_sequence(id))
    }

    /// Whether a request of it has not ended, or one of its sequences.
    pub(crate) fn work(&self) -> Work {
        if self.statistics.in_flight() > 0 {
            return Work::Requests;
        }
        let predecessor = self.predecessor.load();
        let has_sequences = self.executor.has_sequences()
            || predecessor.as_ref().is_some_and(|predecessor| predecessor.work() != Work::Nothing);
        if has_sequences { Work::Sequences } else { Work::Nothing }
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

    /// Removes a cancelled request from the queue.
    pub(crate) fn forget(&self, ticket: Ticket) {
        self.executor.cancel(ticket);
    }

    /// How many requests wait to be executed.
    pub fn pending(&self) -> usize {
        self.executor.pending()
    }

    /// Takes no further request, executes what is queued, and ends the instances.
    pub(crate) fn unload(&self) {
        self.retirement.end();
    }
}
