//! The one table of routes, finding a request's place in it, and who may go there.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};
use nereid_core::backend_api::{Error, InferRequest, Result, Trace};
use nereid_protocol::{ApiGroup, trace_parent};

use crate::body::{Pieces, decoded};
use crate::infer::{self, generate};
use crate::pace::Pace;
use crate::reply::{self, Reply};
use crate::service::Face;
use crate::{forward, metadata, openapi, repository, settings, shared_memory};

/// What a route does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Live,
    Ready,
    ServerMetadata,
    OpenApi,
    ModelMetadata,
    ModelConfig,
    ModelReady,
    ModelStatistics,
    AllStatistics,
    RepositoryIndex,
    LoadModel,
    UnloadModel,
    Infer,
    Generate,
    GenerateStream,
    Logging,
    SetLogging,
    Trace,
    SetTrace,
    RegionStatus,
    RegisterRegion,
    UnregisterRegion,
    CudaStatus,
    CudaRegister,
    CudaUnregister,
}

/// A route: its method, its path, the group it belongs to, and what it does.
pub(crate) type Route = (Method, &'static str, ApiGroup, Action);

/// Every route. The first match counts. A path with several methods stands here once for each.
pub(crate) const ROUTES: &[Route] = {
    use ApiGroup::*;
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    &[
        (POST, "/v2/models/{model}/infer", Inference, Action::Infer),
        (POST, "/v2/models/{model}/versions/{version}/infer", Inference, Action::Infer),
        (POST, "/v2/models/{model}/generate", Inference, Action::Generate),
        (POST, "/v2/models/{model}/versions/{version}/generate", Inference, Action::Generate),
        (POST, "/v2/models/{model}/generate_stream", Inference, Action::GenerateStream),
        (POST, "/v2/models/{model}/versions/{version}/generate_stream", Inference, Action::GenerateStream),
        (GET, "/v2/health/live", Health, Action::Live),
        (GET, "/v2/health/ready", Health, Action::Ready),
        (GET, "/v2", Metadata, Action::ServerMetadata),
        (GET, "/v2/openapi.json", Metadata, Action::OpenApi),
        (GET, "/v2/models/stats", Statistics, Action::AllStatistics),
        (GET, "/v2/models/{model}", Metadata, Action::ModelMetadata),
        (GET, "/v2/models/{model}/versions/{version}", Metadata, Action::ModelMetadata),
        (GET, "/v2/models/{model}/config", ModelConfig, Action::ModelConfig),
        (GET, "/v2/models/{model}/versions/{version}/config", ModelConfig, Action::ModelConfig),
        (GET, "/v2/models/{model}/ready", Health, Action::ModelReady),
        (GET, "/v2/models/{model}/versions/{version}/ready", Health, Action::ModelReady),
        (GET, "/v2/models/{model}/stats", Statistics, Action::ModelStatistics),
        (GET, "/v2/models/{model}/versions/{version}/stats", Statistics, Action::ModelStatistics),
        (POST, "/v2/repository/index", ModelRepository, Action::RepositoryIndex),
        (POST, "/v2/repository/models/{model}/load", ModelRepository, Action::LoadModel),
        (POST, "/v2/repository/models/{model}/unload", ModelRepository, Action::UnloadModel),
        (GET, "/v2/logging", Logging, Action::Logging),
        (POST, "/v2/logging", Logging, Action::SetLogging),
        (GET, "/v2/trace/setting", Trace, Action::Trace),
        (POST, "/v2/trace/setting", Trace, Action::SetTrace),
        (GET, "/v2/models/{model}/trace/setting", Trace, Action::Trace),
        (POST, "/v2/models/{model}/trace/setting", Trace, Action::SetTrace),
        (GET, "/v2/systemsharedmemory/status", SharedMemory, Action::RegionStatus),
        (GET, "/v2/systemsharedmemory/region/{region}/status", SharedMemory, Action::RegionStatus),
        (POST, "/v2/systemsharedmemory/register", SharedMemory, Action::RegisterRegion),
        (POST, "/v2/systemsharedmemory/region/{region}/register", SharedMemory, Action::RegisterRegion),
        (POST, "/v2/systemsharedmemory/unregister", SharedMemory, Action::UnregisterRegion),
        (POST, "/v2/systemsharedmemory/region/{region}/unregister", SharedMemory, Action::UnregisterRegion),
        (GET, "/v2/cudasharedmemory/status", SharedMemory, Action::CudaStatus),
        (GET, "/v2/cudasharedmemory/region/{region}/status", SharedMemory, Action::CudaStatus),
        (POST, "/v2/cudasharedmemory/register", SharedMemory, Action::CudaRegister),
        (POST, "/v2/cudasharedmemory/region/{region}/register", SharedMemory, Action::CudaRegister),
        (POST, "/v2/cudasharedmemory/unregister", SharedMemory, Action::CudaUnregister),
        (POST, "/v2/cudasharedmemory/region/{region}/unregister", SharedMemory, Action::CudaUnregister),
    ]
};

/// What a path names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub model: Cow<'a, str>,
    version: Option<Cow<'a, str>>,
    pub region: Cow<'a, str>,
}

impl Target<'_> {
    /// The version as a number; `None` if the path names none.
    ///
    /// # Errors
    /// `InvalidArg` if it is not a number that there is.
    pub(crate) fn version(&self) -> Result<Option<u64>> {
        self.version
            .as_deref()
            .map(|version| {
                version.parse().map_err(|_| {
                    Error::invalid_arg(format!(
                        "'{version}' is not a version of model '{}': a version is a whole number within 64 bits",
                        self.model
                    ))
                })
            })
            .transpose()
    }
}

/// A request to which a route was found, without its body.
pub(crate) struct Call<'a> {
    pub face: &'a Face,
    pub target: Target<'a>,
    pub headers: &'a HeaderMap,
    /// The head as it was received, if the headers' spelling matters.
    pub head: &'a [u8],
    /// When its head and all of it had arrived, if anything is traced.
    pub arrived: Option<(Instant, Instant)>,
}

impl Call<'_> {
    /// Draws whether the inference that it asks for is traced, and tells its trace when it arrived.
    pub(crate) fn draw_trace(&self) -> Option<Arc<Trace>> {
        let (head, body) = self.arrived?;
        let header = |name: &str| self.headers.get(name)?.to_str().ok();
        let trace = self.face.server.trace().draw(&self.target.model, || trace_parent(header))?;
        trace.stamp("HTTP_RECV_START", head);
        trace.stamp("HTTP_RECV_END", body);
        Some(trace)
    }

    /// Sets the headers that models get as parameters.
    ///
    /// # Errors
    /// `InvalidArg` for a header that cannot be forwarded.
    pub(crate) fn forward_headers(&self, request: &mut InferRequest) -> Result<()> {
        match &self.face.options.forwarded_headers {
            Some(pattern) => {
                pattern.forward(forward::spelled(self.headers, self.head), &mut request.parameters)
            }
            None => Ok(()),
        }
    }
}

/// Answers a request.
pub(crate) async fn answer(face: &Face, request: Request<Incoming>, pace: &Pace) -> Reply {
    let (parts, body) = request.into_parts();
    let head = face.options.forwarded_headers.as_ref().map(|_| pace.take_head()).unwrap_or_default();
    let (action, target) = match find(face, &parts) {
        Ok(found) => found,
        Err(reply) => return *reply,
    };
    let tracing = face.server.trace().is_on();
    let head_arrived = tracing.then(Instant::now);
    let body = if parts.method == Method::POST {
        match Pieces::read(body, face.options.max_body_size, pace).await {
            Ok(body) => body,
            Err(reply) => return *reply,
        }
    } else {
        Pieces::default()
    };
    let _busy = pace.busy();
    let arrived = head_arrived.map(|head| (head, Instant::now()));
    let call = Call { face, target, headers: &parts.headers, head: &head, arrived };
    perform(action, &call, body, pace).await.unwrap_or_else(|error| reply::error(&error))
}

async fn perform(action: Action, call: &Call<'_>, body: Pieces, pace: &Pace) -> Result<Reply> {
    let (server, target) = (&call.face.server, &call.target);
    match action {
        Action::Infer => infer::answer(call, body).await,
        Action::Generate => generate::one(call, body).await,
        Action::GenerateStream => generate::stream(call, body, pace).await,
        Action::RepositoryIndex => repository::index(server, body),
        Action::LoadModel => repository::load(server, target, body).await,
        Action::UnloadModel => repository::unload(server, target, body).await,
        Action::Live => Ok(reply::empty(StatusCode::OK)),
        Action::Ready => Ok(metadata::server_ready(server).await),
        Action::ServerMetadata => Ok(metadata::server(server)),
        Action::OpenApi => {
            let examples = openapi::examples::of(server);
            let document = openapi::written(ROUTES, &server.options().version, &examples);
            Ok(reply::json_bytes(StatusCode::OK, document))
        }
        Action::ModelMetadata => metadata::model(server, target),
        Action::ModelConfig => metadata::configuration(server, target),
        Action::ModelReady => metadata::model_ready(server, target).await,
        Action::ModelStatistics => metadata::statistics(server, Some(target)),
        Action::AllStatistics => metadata::statistics(server, None),
        Action::Logging => Ok(settings::logging(call)),
        Action::SetLogging => settings::set_logging(call, body),
        Action::Trace => settings::trace(call),
        Action::SetTrace => settings::set_trace(call, body),
        Action::RegionStatus => shared_memory::status(call),
        Action::RegisterRegion => shared_memory::register(call, body),
        Action::UnregisterRegion => shared_memory::unregister(call),
        Action::CudaStatus => shared_memory::cuda_status(call),
        Action::CudaRegister => shared_memory::cuda_register(call, body),
        Action::CudaUnregister => shared_memory::cuda_unregister(call),
    }
}

/// The route of a request, or the answer to one that has none or may not take it.
fn find<'a>(face: &Face, head: &'a Parts) -> std::result::Result<(Action, Target<'a>), Box<Reply>> {
    let path = head.uri.path();
    let mut allowed = Vec::new();
    for (method, pattern, group, action) in ROUTES {
        let Some(target) = matched(pattern, path) else { continue };
        if let Some(key) = face.options.restrictions.key(*group)
            && !head.headers.get(&key.name).is_some_and(|value| key.matches(value.as_bytes()))
        {
            let message =
                format!("this API is restricted: it takes header '{}' with the right value", key.name);
            return Err(Box::new(reply::error_text(StatusCode::FORBIDDEN, &message)));
        }
        if head.method == *method {
            return Ok((*action, target));
        }
        allowed.push(method.as_str());
    }
    Err(Box::new(match allowed.as_slice() {
        [] => reply::error_text(StatusCode::NOT_FOUND, "Not Found"),
        methods => reply::wrong_method(&methods.join(", ")),
    }))
}

/// The names in `path` if it has the form of `pattern`.
fn matched<'a>(pattern: &str, path: &'a str) -> Option<Target<'a>> {
    let mut target = Target::default();
    let (mut segments, mut expected) = (Some(path), Some(pattern));
    while let Some(pattern) = expected {
        let (segment, segments_left) = cut(segments?);
        let (pattern, patterns_left) = cut(pattern);
        (segments, expected) = (segments_left, patterns_left);
        match pattern {
            "{model}" if !segment.is_empty() => target.model = decoded(segment),
            "{region}" if !segment.is_empty() => target.region = decoded(segment),
            "{version}" if !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit()) => {
                target.version = Some(Cow::Borrowed(segment));
            }
            _ if pattern == segment => {}
            _ => return None,
        }
    }
    segments.is_none().then_some(target)
}

/// The first segment of a path, and what follows its slash. Segments are a few bytes long, for which looking at each is
/// quicker than what `split` prepares for long texts.
fn cut(path: &str) -> (&str, Option<&str>) {
    match path.bytes().position(|byte| byte == b'/') {
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests;
