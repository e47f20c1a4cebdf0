//! Calls as they arrive: the action, access and deadline of each.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use nereid_core::Server;
use nereid_load_report::TrailerReport;
use nereid_protocol::{Action, Head, Identity, LoggedRequest, Principal};
use nereid_shared_memory::Regions;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{BoxFuture, StdError};
use tonic::{Code, Status};
use tower_service::Service as Tower;

use crate::companions::{Companions, HEALTH};
use crate::inference;
use crate::messages::{InflatedBody, MAX_MESSAGE_SIZE, Messages, compression};
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::service::Service;
use crate::tracing::ArrivalTime;
use crate::{Face, GrpcOptions, codec, deadline, status, tracing};

/// Begins the name of a header that holds the key of a restricted part of the protocol.
pub const RESTRICTED_PREFIX: &str = "triton-grpc-protocol-";

/// The calls of the service. A test compares them with its definition.
const NAMES: [&str; 20] = [
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelStreamInfer",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
];

/// A call that describes the protocol.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// The service's name, with the slashes around it.
const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Answers every call of the service. Cheap to clone: each connection has one.
#[derive(Clone)]
pub struct Calls {
    face: Arc<Face>,
    /// Answers calls other than inference.
    others: GrpcInferenceServiceServer<Service>,
    companions: Arc<Companions>,
    /// The caller, as far as the connection knows it.
    identity: Identity,
}

impl Calls {
    /// The calls of this server. Streams of requests end when `shutdown` comes, and what they have is answered.
    pub fn new(server: Arc<Server>, options: GrpcOptions, shutdown: CancellationToken) -> Self {
        let companions = Arc::new(Companions::new(&server, &shutdown));
        let face = Arc::new(Face { server, options, shutdown, no_regions: Arc::new(Regions::closed()) });
        let others = GrpcInferenceServiceServer::new(Service(Arc::clone(&face)))
            .max_decoding_message_size(MAX_MESSAGE_SIZE)
            .max_encoding_message_size(MAX_MESSAGE_SIZE)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        Self { face, others, companions, identity: Identity::default() }
    }

    /// The calls of a connection.
    pub(crate) fn of(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// The caller, if the connection knows it.
    pub(crate) fn principal(&self) -> Option<&Principal> {
        self.identity.principal.as_ref()
    }

    /// The load report of this call: inference calls get it in trailers, if the configuration or the call's headers request that.
    pub(crate) fn load_report<B>(&self, call: &Request<B>) -> Option<TrailerReport> {
        let reports = self.face.options.load_reports.as_ref()?;
        reports.for_call(call.headers()).filter(|_| action(call.uri().path()) == Action::Infer)
    }
}

/// The action of a call, as far as its path determines it. Unknown calls count as requests for a description.
fn action(path: &str) -> Action {
    if path.starts_with(HEALTH) {
        return Action::Health;
    }
    match path.strip_prefix(SERVICE).unwrap_or_default() {
        "ModelInfer" | "ModelStreamInfer" => Action::Infer,
        "ServerLive" | "ServerReady" | "ModelReady" => Action::Health,
        "ServerMetadata" | "ModelMetadata" => Action::Metadata,
        "ModelConfig" => Action::ModelConfig,
        "ModelStatistics" => Action::Statistics,
        "RepositoryIndex" => Action::Index,
        "RepositoryModelLoad" => Action::Load,
        "RepositoryModelUnload" => Action::Unload,
        "SystemSharedMemoryStatus" | "CudaSharedMemoryStatus" => Action::ListRegions,
        "SystemSharedMemoryRegister"
        | "SystemSharedMemoryUnregister"
        | "CudaSharedMemoryRegister"
        | "CudaSharedMemoryUnregister" => Action::ChangeRegions,
        // Whether they also change settings is in their messages.
        "TraceSetting" => Action::ReadTrace,
        "LogSettings" => Action::ReadLog,
        _ => Action::Describe,
    }
}

/// The path and action of each call, as far as its path determines the action.
pub fn calls() -> impl Iterator<Item = (String, Action)> {
    let all = NAMES.iter().map(|name| format!("{SERVICE}{name}"));
    let all = all.chain([format!("{HEALTH}Check"), format!("{HEALTH}Watch")]);
    all.chain([REFLECTION.to_owned()]).map(|path| {
        let action = action(&path);
        (path, action)
    })
}

/// The metadata of a call, for authenticators.
struct Metadata<'a>(&'a HeaderMap);

impl Head for Metadata<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        Some(self.0.get(name)?.as_bytes())
    }
}

impl<B> Tower<Request<B>> for Calls
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = PendingAnswer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> PendingAnswer {
        self.answer(request, None)
    }
}

impl Calls {
    /// Answers a call, whose entry in the log of requests gets the sender that is known at once.
    pub(crate) fn answer<B>(&self, request: Request<B>, logged: Option<&mut LoggedRequest>) -> PendingAnswer
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let action = action(request.uri().path());
        let access = &self.face.options.access;
        if access.is_open_to(&self.identity) {
            return self.answer_to(self.identity.clone(), action, request);
        }
        let known = access.identify_now(self.identity.clone(), &Metadata(request.headers()));
        let Some(identified) = known else { return self.identify(action, request) };
        if let (Some(logged), Ok(caller)) = (logged, &identified) {
            logged.identify(caller.principal.clone());
        }
        match identified.and_then(|caller| access.check(&caller, action, None).map(|()| caller)) {
            Ok(caller) => self.answer_to(caller, action, request),
            Err(denied) => PendingAnswer::Refused(Some(status::denied(&denied))),
        }
    }

    /// Answers a call whose authenticators have to wait.
    fn identify<B>(&self, action: Action, request: Request<B>) -> PendingAnswer
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let calls = self.clone();
        let limit = deadline::of(request.headers()).map(|limit| Box::pin(sleep(limit)));
        let (head, body) = request.into_parts();
        let answer = Box::pin(async move {
            let access = &calls.face.options.access;
            let identified = access.identify(calls.identity.clone(), &Metadata(&head.headers)).await;
            match identified.and_then(|caller| access.check(&caller, action, None).map(|()| caller)) {
                Ok(caller) => calls.answer_to(caller, action, Request::from_parts(head, body)).await,
                Err(denied) => Ok(status::denied(&denied).into_http()),
            }
        });
        PendingAnswer::Called { answer, limit }
    }

    /// Dispatches a call that passed the access checks.
    fn answer_to<B>(&self, caller: Identity, action: Action, mut request: Request<B>) -> PendingAnswer
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        if action == Action::Infer && self.face.server.trace().is_on() {
            request.extensions_mut().insert(ArrivalTime::now());
        }
        let access = &self.face.options.access;
        let audited =
            access.audited(&caller, action, || format!("gRPC {}", request.uri().path())).map(Arc::new);
        if let Some(audited) = &audited {
            request.extensions_mut().insert(Arc::clone(audited));
        }
        // Most callers are anonymous, and extensions are a map. The audit needs their addresses.
        if !caller.is_default() || access.is_audited() {
            request.extensions_mut().insert(caller);
        }
        let limit = deadline::of(request.headers()).map(|limit| Box::pin(sleep(limit)));
        if let Some(companion) = self.companions.find(request.uri().path()) {
            let budget = self.face.server.bodies().clone();
            let answer = companion(request.map(|body| Body::new(Messages::new(body, budget))));
            return PendingAnswer::Called { answer, limit };
        }
        let answer = match compression(request.headers_mut()) {
            None => self.dispatch(action, request, true),
            Some(format) => {
                let budget = self.face.server.bodies().clone();
                self.dispatch(action, request.map(|body| InflatedBody::new(body, format, budget)), false)
            }
        };
        let answer = match audited {
            None => answer,
            Some(audited) => Box::pin(async move {
                let answer = answer.await;
                audited.answered(answer.as_ref().ok().and_then(failure).as_deref());
                answer
            }),
        };
        PendingAnswer::Called { answer, limit }
    }

    /// Dispatches a call with uncompressed messages; tonic refuses those in an unknown format. `counts`: whether the
    /// messages still have to be charged to the budget.
    fn dispatch<B>(
        &self,
        action: Action,
        request: Request<B>,
        counts: bool,
    ) -> BoxFuture<Response<Body>, Infallible>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        if action == Action::Infer && codec::applies(request.headers()) {
            return inference::call(&self.face, request, counts);
        }
        let budget = self.face.body_budget(counts).clone();
        self.others.clone().call(request.map(|body| Messages::new(body, budget)))
    }
}

/// The status of a call that failed; `None` if it succeeded. Only failures have it in front of a body.
fn failure(answer: &Response<Body>) -> Option<String> {
    let status = Status::from_header_map(answer.headers()).filter(|status| status.code() != Code::Ok)?;
    Some(format!("{:?}", status.code()))
}

/// A call's answer in the making. Dropping it (the client left or the deadline passed) cancels the request wherever it
/// is queued or running.
pub enum PendingAnswer {
    /// The call was refused before it reached a handler.
    Refused(Option<Status>),
    /// A handler is running.
    Called {
        /// The future of the answer.
        answer: BoxFuture<Response<Body>, Infallible>,
        /// Ends when the client waits no longer.
        limit: Option<Pin<Box<Sleep>>>,
    },
}

impl Future for PendingAnswer {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let status = match &mut *self {
            Self::Refused(status) => status.take(),
            Self::Called { answer, limit } => {
                if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                    return Poll::Ready(answer.map(tracing::watched));
                }
                let over = limit.as_mut().is_some_and(|limit| limit.as_mut().poll(context).is_ready());
                if !over {
                    return Poll::Pending;
                }
                Some(deadline::exceeded())
            }
        };
        Poll::Ready(Ok(status.unwrap_or_else(|| Status::internal("polled after its end")).into_http()))
    }
}

#[cfg(test)]
mod tests;
