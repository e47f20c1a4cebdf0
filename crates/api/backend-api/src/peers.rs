//! Calls from a backend to its server: inner requests, loads and unloads, readiness, metrics.
//!
//! The server implements [`Peers`] and passes it to backends in their [`ModelContext`](crate::ModelContext). It does
//! not keep the server alive: after the server is dropped, every call fails with `Unavailable`.
//!
//! All calls may be made at any time and on any thread. During a load, inner requests reach the models that are ready
//! by then. A load or unload started during a load occupies another thread of the `--model-load-thread-count`: a
//! backend should await such an outcome during execution, not while it loads.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use nereid_model_config::ModelConfig;

use crate::{
    Answer, Buffers, Cancellation, Error, InferRequest, MetricRegistry, Overrides, Request, RequestTrace,
    Response, Result, Tensor,
};

/// A future outcome. Dropping it does not stop the operation.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The server, as seen by its backends.
pub trait Peers: Send + Sync {
    /// Finds the version of a model to which the following request with this name and version goes. If a model has to
    /// be loaded first, the outcome waits for that.
    fn resolve(&self, model: &str, version: Option<u64>) -> Pending<Result<Arc<dyn PeerModel>>>;

    /// Loads a model, or reloads it if it or an override changed.
    fn load(&self, model: &str, overrides: Overrides) -> Pending<Result<()>>;

    /// Unloads a model; with `dependents`, also the models that only it uses.
    fn unload(&self, model: &str, dependents: bool) -> Pending<Result<()>>;

    /// Whether the server accepts requests. Takes seconds at most.
    fn ready(&self) -> Pending<Result<bool>>;

    /// Whether a version of a model would answer requests; if not, the error is the reason. Takes seconds at most.
    fn model_ready(&self, model: &str, version: Option<u64>) -> Pending<Result<()>>;

    /// The version of a model that is served now under this name and version.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable` if no version is served.
    fn model(&self, model: &str, version: Option<u64>) -> Result<Arc<dyn PeerModel>>;

    /// The registry for backends' own metrics.
    ///
    /// # Errors
    /// `Unavailable` after the server is dropped.
    fn metrics(&self) -> Result<MetricRegistry>;
}

/// A loaded model, as seen by other models. Handles delay the end of its unloading.
pub trait PeerModel: Send + Sync {
    /// Sends a request to the model, without blocking; see [`InnerRequest`] for what the request inherits.
    ///
    /// # Errors
    /// The request cannot be queued, as for any client: it does not fit the model, for example.
    fn infer(&self, inner: InnerRequest) -> Result<Box<dyn Answers>>;

    /// The model's name.
    fn name(&self) -> &str;

    /// The model's version.
    fn version(&self) -> u64;

    /// The model's completed configuration.
    fn config(&self) -> &ModelConfig;

    /// Whether the model may answer a request with any number of responses.
    fn is_decoupled(&self) -> bool {
        self.config().model_transaction_policy.is_some_and(|policy| policy.decoupled)
    }

    /// The model's only input, made of contents alone: its name, type and shape follow from the configuration.
    ///
    /// # Errors
    /// `InvalidArg` unless they follow from it.
    fn raw_input(&self, contents: Buffers) -> Result<Tensor>;
}

/// A request made by a backend, and what it inherits from its parent request.
#[derive(Default)]
pub struct InnerRequest {
    request: InferRequest,
    parent: Option<Cancellation>,
}

impl InnerRequest {
    /// A request without a parent: while a model loads, for example.
    pub fn new(request: InferRequest) -> Self {
        Self { request, parent: None }
    }

    /// A request made for `parent`: of the same sender, traced as its child and cancelled with it.
    pub fn of(parent: &Request, request: InferRequest) -> Self {
        let trace = parent.trace.as_ref().map(RequestTrace::child);
        let request = InferRequest { trace, flow: parent.flow, ..request };
        Self { request, parent: Some(parent.cancellation()) }
    }

    /// The request, and the parent's cancellation, which also cancels it. For the server.
    pub fn into_parts(self) -> (InferRequest, Option<Cancellation>) {
        (self.request, self.parent)
    }
}

/// Cancels an inner request whose answers are awaited elsewhere.
pub type Canceller = Arc<dyn Fn() + Send + Sync>;

/// The answers to an inner request, in order. Dropping them before the last one cancels the request.
pub trait Answers: Send {
    /// The next answer; `None` after the last.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>>;

    /// Whether the last polled answer was marked as final, so that no other follows.
    fn ended_with_answer(&self) -> bool;

    /// Cancels the request, whose answers can still be read.
    fn canceller(&self) -> Canceller;

    /// Name of the model that answers.
    fn model_name(&self) -> &str;

    /// Version of the model that answers.
    fn model_version(&self) -> u64;

    /// The id of the request; empty if it has none.
    fn request_id(&self) -> &str;

    /// The labels of the answering model's outputs; `None` if it has none.
    fn labels(&self) -> Option<Arc<OutputLabels>>;
}

/// The label of each index of classification outputs, by the output's name.
pub type OutputLabels = BTreeMap<String, Vec<String>>;

impl dyn Answers {
    /// The next answer; `None` after the last.
    pub async fn next(&mut self) -> Option<Answer> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The answer of a model with exactly one response.
    ///
    /// # Errors
    /// The answer's own error, or `Unsupported` for any other number of responses.
    pub async fn single(&mut self) -> Result<Response> {
        let wrong = |model: &str, count| {
            Error::unsupported(format!("model '{model}' returned {count}, expected one"))
        };
        let Some(first) = self.next().await else {
            return Err(wrong(self.model_name(), "no answer"));
        };
        let response = first?;
        match self.next().await {
            None => Ok(response),
            Some(_) => Err(wrong(self.model_name(), "more than one answer")),
        }
    }
}

/// Drives a future to its end on this thread, which sleeps while there is nothing to do.
///
/// Not for threads that do I/O: they await. Nor for futures of tokio on a thread where tokio runs a task, as they may then wait for
/// that task to yield.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.wake_by_ref();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // A wake since the poll ends this at once; one for another reason leads to another poll.
        thread::park();
    }
}

/// The peers of a backend without a server, which only examines a model. Every call fails with `Unavailable`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl NoPeers {
    fn error() -> Error {
        Error::unavailable("no server is available: the model is only being checked")
    }

    fn pending<T: Send + 'static>() -> Pending<Result<T>> {
        Box::pin(async { Err(Self::error()) })
    }
}

impl Peers for NoPeers {
    fn resolve(&self, _: &str, _: Option<u64>) -> Pending<Result<Arc<dyn PeerModel>>> {
        Self::pending()
    }

    fn load(&self, _: &str, _: Overrides) -> Pending<Result<()>> {
        Self::pending()
    }

    fn unload(&self, _: &str, _: bool) -> Pending<Result<()>> {
        Self::pending()
    }

    fn ready(&self) -> Pending<Result<bool>> {
        Self::pending()
    }

    fn model_ready(&self, _: &str, _: Option<u64>) -> Pending<Result<()>> {
        Self::pending()
    }

    fn model(&self, _: &str, _: Option<u64>) -> Result<Arc<dyn PeerModel>> {
        Err(Self::error())
    }

    fn metrics(&self) -> Result<MetricRegistry> {
        Err(Self::error())
    }
}
