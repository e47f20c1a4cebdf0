//! The server's interface for its backends and the application around it: [`Peers`] over a weak reference to the server.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use nereid_backend_api::{
    Answer, Answers, Buffers, CancelWatch, Canceller, Error, InnerRequest, MetricRegistry, ModelConfig,
    OutputLabels, Overrides, PeerModel, Peers, Pending, Result, Tensor,
};

use crate::caller::Caller;
use crate::inflight::{self, ResponseStream};
use crate::lifecycle::Done;
use crate::request_head::RequestHead;
use crate::scope::ScopedName;
use crate::server::Server;
use crate::versions::ResolvedModel;

/// The origin of inner requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InnerCaller {
    /// A backend, which may need the answers for requests that it executes.
    Backend,
    /// The application that the server is in. Its requests are a client's.
    Application,
}

/// A server, for its backends or for the application that it is in.
pub(crate) struct ServerPeers {
    server: Weak<Server>,
    asker: InnerCaller,
}

impl ServerPeers {
    pub(crate) fn new(server: Weak<Server>, asker: InnerCaller) -> Self {
        Self { server, asker }
    }

    fn server(&self) -> Result<Arc<Server>> {
        self.server.upgrade().ok_or_else(gone)
    }
}

impl Peers for ServerPeers {
    fn resolve(&self, model: &str, version: Option<u64>) -> Pending<Result<Arc<dyn PeerModel>>> {
        let resolving = self.server().map(|server| server.resolve(ScopedName::everywhere(model), version));
        let (server, asker) = (Weak::clone(&self.server), self.asker);
        Box::pin(async move {
            let model = resolving?.await?;
            Ok(Arc::new(Peer { server, asker, model }) as _)
        })
    }

    fn load(&self, model: &str, overrides: Overrides) -> Pending<Result<()>> {
        self.submit(|server, done| server.load_model(ScopedName::everywhere(model), overrides, done))
    }

    fn unload(&self, model: &str, dependents: bool) -> Pending<Result<()>> {
        self.submit(|server, done| match dependents {
            true => server.unload_model_and_dependents(ScopedName::everywhere(model), done),
            false => server.unload_model(ScopedName::everywhere(model), done),
        })
    }

    fn ready(&self) -> Pending<Result<bool>> {
        let server = self.server();
        Box::pin(async move { Ok(server?.ready().await) })
    }

    fn model_ready(&self, model: &str, version: Option<u64>) -> Pending<Result<()>> {
        let (server, model) = (self.server(), model.to_owned());
        Box::pin(async move { server?.model_ready(ScopedName::everywhere(&model), version).await })
    }

    fn model(&self, model: &str, version: Option<u64>) -> Result<Arc<dyn PeerModel>> {
        let model = self.server()?.model(ScopedName::everywhere(model), version)?;
        let model = ResolvedModel::of(model, version, RequestHead::default);
        Ok(Arc::new(Peer { server: Weak::clone(&self.server), asker: self.asker, model }))
    }

    fn metrics(&self) -> Result<MetricRegistry> {
        Ok(self.server()?.options().metrics.clone())
    }
}

impl ServerPeers {
    /// Begins what ends on another thread.
    fn submit(&self, begin: impl FnOnce(&Server, Done) -> Result<()>) -> Pending<Result<()>> {
        let server = match self.server() {
            Ok(server) => server,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        let promise = Promise::default();
        let kept = PromiseGuard(promise.clone());
        if let Err(error) = begin(&server, Box::new(move |outcome| kept.0.settle(outcome))) {
            return Box::pin(async { Err(error) });
        }
        Box::pin(promise)
    }
}

/// Cancels an inner request when it is woken by the cancellation of its parent.
struct CancelInner(inflight::Canceller);

impl Wake for CancelInner {
    fn wake(self: Arc<Self>) {
        self.0.cancel();
    }
}

/// The answers to an inner request, which is cancelled with its parent as long as they are waited for.
struct InnerAnswers {
    stream: ResponseStream,
    _parent: Option<CancelWatch>,
}

impl Answers for InnerAnswers {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        self.stream.poll_next(context)
    }

    fn ended_with_answer(&self) -> bool {
        self.stream.ended_with_answer()
    }

    fn canceller(&self) -> Canceller {
        let canceller = self.stream.canceller();
        Arc::new(move || canceller.cancel())
    }

    fn model_name(&self) -> &str {
        self.stream.model_name()
    }

    fn model_version(&self) -> u64 {
        self.stream.model_version()
    }

    fn request_id(&self) -> &str {
        self.stream.request_id()
    }

    fn labels(&self) -> Option<Arc<OutputLabels>> {
        self.stream.labels()
    }
}

/// A loaded model, for questions of a backend.
struct Peer {
    server: Weak<Server>,
    asker: InnerCaller,
    model: ResolvedModel,
}

impl PeerModel for Peer {
    fn infer(&self, inner: InnerRequest) -> Result<Box<dyn Answers>> {
        let server = self.server.upgrade().ok_or_else(gone)?;
        let (request, parent) = inner.into_parts();
        let caller = match self.asker {
            InnerCaller::Backend => Caller::backend(),
            InnerCaller::Application => Caller::default(),
        };
        let stream = server.infer(&self.model, request, caller)?;
        let parent = parent.and_then(|parent| {
            let waker = Waker::from(Arc::new(CancelInner(stream.canceller())));
            let mut watch = parent.watch();
            if watch.poll(&Context::from_waker(&waker)).is_ready() {
                waker.wake();
                return None;
            }
            Some(watch)
        });
        Ok(Box::new(InnerAnswers { stream, _parent: parent }))
    }

    fn name(&self) -> &str {
        self.model.name()
    }

    fn version(&self) -> u64 {
        self.model.version()
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn raw_input(&self, contents: Buffers) -> Result<Tensor> {
        self.model.signature().raw_input(contents)
    }
}

fn gone() -> Error {
    Error::unavailable("the server has shut down")
}

/// An outcome that another thread settles.
#[derive(Clone, Default)]
struct Promise(Arc<Mutex<Outcome>>);

#[derive(Default)]
enum Outcome {
    #[default]
    Open,
    Awaited(Waker),
    Settled(Result<()>),
}

impl Promise {
    /// The first outcome counts.
    fn settle(&self, outcome: Result<()>) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*place, Outcome::Settled(_)) {
            return;
        }
        let before = std::mem::replace(&mut *place, Outcome::Settled(outcome));
        drop(place);
        if let Outcome::Awaited(waker) = before {
            waker.wake();
        }
    }
}

impl Future for Promise {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Outcome::Settled(outcome) = &*place {
            return Poll::Ready(outcome.clone());
        }
        let before = std::mem::replace(&mut *place, Outcome::Awaited(context.waker().clone()));
        drop((place, before));
        Poll::Pending
    }
}

/// Settles a promise when its holder is dropped.
struct PromiseGuard(Promise);

impl Drop for PromiseGuard {
    fn drop(&mut self) {
        self.0.settle(Err(Error::unavailable("the server is stopping")));
    }
}

#[cfg(test)]
mod tests;
