//! The routes of this face, and what each does.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::{HeaderMap, Method, StatusCode};
use nereid_core::Caller;
use nereid_core::backend_api::{InferRequest, Result, Trace};
use nereid_http::{self as http, Cors, Face, Limit, Params, Reply, RequestBody, Route, reply};
use nereid_protocol::{ApiGroup, BodyBudget, Restrictions, parse_version, trace_parent};

use crate::infer::{self, generate};
use crate::{KserveHttp, metadata, openapi, repository, settings, shared_memory};

/// What a route does.
#[derive(Clone, Copy, Debug)]
pub enum Action {
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

/// Every route. The first match counts. A path with several methods has one route for each.
pub(crate) const ROUTES: &[Route<Action>] = {
    use ApiGroup::*;
    &[
        post("/v2/models/{model}/infer", Inference, Action::Infer),
        post("/v2/models/{model}/versions/{version}/infer", Inference, Action::Infer),
        post("/v2/models/{model}/generate", Inference, Action::Generate),
        post("/v2/models/{model}/versions/{version}/generate", Inference, Action::Generate),
        post("/v2/models/{model}/generate_stream", Inference, Action::GenerateStream),
        post("/v2/models/{model}/versions/{version}/generate_stream", Inference, Action::GenerateStream),
        get("/v2/health/live", Health, Action::Live),
        get("/v2/health/ready", Health, Action::Ready),
        get("/v2", Metadata, Action::ServerMetadata),
        // The path in KServe's definition of the protocol.
        get("/v2/", Metadata, Action::ServerMetadata),
        get("/v2/openapi.json", Metadata, Action::OpenApi),
        get("/v2/models/stats", Statistics, Action::AllStatistics),
        get("/v2/models/{model}", Metadata, Action::ModelMetadata),
        get("/v2/models/{model}/versions/{version}", Metadata, Action::ModelMetadata),
        get("/v2/models/{model}/config", ModelConfig, Action::ModelConfig),
        get("/v2/models/{model}/versions/{version}/config", ModelConfig, Action::ModelConfig),
        get("/v2/models/{model}/ready", Health, Action::ModelReady),
        get("/v2/models/{model}/versions/{version}/ready", Health, Action::ModelReady),
        get("/v2/models/{model}/stats", Statistics, Action::ModelStatistics),
        get("/v2/models/{model}/versions/{version}/stats", Statistics, Action::ModelStatistics),
        post("/v2/repository/index", ModelRepository, Action::RepositoryIndex),
        post("/v2/repository/models/{model}/load", ModelRepository, Action::LoadModel),
        post("/v2/repository/models/{model}/unload", ModelRepository, Action::UnloadModel),
        post("/v2/repository/{repository}/index", ModelRepository, Action::RepositoryIndex),
        post("/v2/repository/{repository}/models/{model}/load", ModelRepository, Action::LoadModel),
        post("/v2/repository/{repository}/models/{model}/unload", ModelRepository, Action::UnloadModel),
        get("/v2/logging", Logging, Action::Logging),
        post("/v2/logging", Logging, Action::SetLogging),
        get("/v2/trace/setting", Trace, Action::Trace),
        post("/v2/trace/setting", Trace, Action::SetTrace),
        get("/v2/models/{model}/trace/setting", Trace, Action::Trace),
        post("/v2/models/{model}/trace/setting", Trace, Action::SetTrace),
        get("/v2/systemsharedmemory/status", SharedMemory, Action::RegionStatus),
        get("/v2/systemsharedmemory/region/{region}/status", SharedMemory, Action::RegionStatus),
        post("/v2/systemsharedmemory/register", SharedMemory, Action::RegisterRegion),
        post("/v2/systemsharedmemory/region/{region}/register", SharedMemory, Action::RegisterRegion),
        post("/v2/systemsharedmemory/unregister", SharedMemory, Action::UnregisterRegion),
        post("/v2/systemsharedmemory/region/{region}/unregister", SharedMemory, Action::UnregisterRegion),
        get("/v2/cudasharedmemory/status", SharedMemory, Action::CudaStatus),
        get("/v2/cudasharedmemory/region/{region}/status", SharedMemory, Action::CudaStatus),
        post("/v2/cudasharedmemory/register", SharedMemory, Action::CudaRegister),
        post("/v2/cudasharedmemory/region/{region}/register", SharedMemory, Action::CudaRegister),
        post("/v2/cudasharedmemory/unregister", SharedMemory, Action::CudaUnregister),
        post("/v2/cudasharedmemory/region/{region}/unregister", SharedMemory, Action::CudaUnregister),
    ]
};

const fn get(path: &'static str, group: ApiGroup, action: Action) -> Route<Action> {
    Route::new(Method::GET, path, group, action)
}

const fn post(path: &'static str, group: ApiGroup, action: Action) -> Route<Action> {
    Route::new(Method::POST, path, group, action)
}

/// The model, version, region or repository in a path; empty if the path has none.
#[derive(Default)]
pub(crate) struct Target<'a> {
    pub model: Cow<'a, str>,
    pub version: Option<&'a str>,
    pub region: Cow<'a, str>,
    pub repository: Cow<'a, str>,
}

impl<'a> Target<'a> {
    fn new(params: &Params<'a>) -> Self {
        let mut target = Self::default();
        for (name, value) in params.iter() {
            match name {
                "model" => target.model = http::decode(value),
                "version" => target.version = Some(value),
                "repository" => target.repository = http::decode(value),
                _ => target.region = http::decode(value),
            }
        }
        target
    }

    /// The version as a number; `None` if the path has none.
    ///
    /// # Errors
    /// `InvalidArg` if it exceeds 64 bits.
    pub(crate) fn version(&self) -> Result<Option<u64>> {
        self.version.map(|version| parse_version(version, &self.model)).transpose()
    }
}

/// A request with a route, without its body.
pub(crate) struct Call<'a> {
    pub face: &'a KserveHttp,
    pub target: Target<'a>,
    pub headers: &'a HeaderMap,
    pub http: &'a http::Call<'a>,
}

impl Call<'_> {
    /// Who requests an inference, holding what the body takes.
    pub(crate) fn caller(&self, body: &mut RequestBody) -> Caller {
        Caller::default().with_principal(self.http.principal.cloned()).with_body(body.take_share())
    }

    /// The trace of the inference it requests, if it is traced; stamped with the times of arrival.
    pub(crate) fn draw_trace(&self) -> Option<Arc<Trace>> {
        let (head, body) = self.http.arrived?;
        let header = |name: &str| self.headers.get(name)?.to_str().ok();
        let trace = self.face.server.trace().draw(&self.target.model, || trace_parent(header))?;
        trace.stamp("HTTP_RECV_START", head);
        trace.stamp("HTTP_RECV_END", body);
        Some(trace)
    }

    /// Adds the headers that are forwarded to models.
    ///
    /// # Errors
    /// `InvalidArg` for a header that cannot be forwarded.
    pub(crate) fn forward_headers(&self, request: &mut InferRequest) -> Result<()> {
        match &self.face.options.forwarded_headers {
            Some(pattern) => pattern.forward(self.http.spelled_headers(), &mut request.parameters),
            None => Ok(()),
        }
    }
}

impl Face for KserveHttp {
    type Action = Action;

    const ROUTES: &'static [Route<Action>] = ROUTES;

    fn accepts(parameter: &str, segment: &str) -> bool {
        parameter != "version" || segment.bytes().all(|byte| byte.is_ascii_digit())
    }

    fn restrictions(&self) -> Option<&Restrictions> {
        Some(&self.options.restrictions)
    }

    fn body_limit(&self) -> Limit {
        Limit { bytes: self.options.max_body_size, option: "--http-max-body-size" }
    }

    fn body_budget(&self) -> Option<&BodyBudget> {
        Some(self.server.bodies())
    }

    fn cors(&self) -> Option<&Cors> {
        Some(&self.options.cors)
    }

    fn not_found(&self) -> Reply {
        let message = "Not Found: GET /v2/openapi.json describes what there is, POST /v2/repository/index lists the models";
        reply::error_text(StatusCode::NOT_FOUND, message)
    }

    fn keeps_spelling(&self) -> bool {
        self.options.forwarded_headers.is_some()
    }

    fn times_arrival(&self) -> bool {
        self.server.trace().is_on()
    }

    async fn perform(&self, action: Action, call: &http::Call<'_>, body: RequestBody) -> Reply {
        let call = Call { face: self, target: Target::new(&call.params), headers: call.headers, http: call };
        let mut reply =
            perform(action, &call, body).await.unwrap_or_else(|error| (self.dialect.error)(&error));
        if matches!(action, Action::Infer | Action::Generate | Action::GenerateStream) {
            self.report_load(&mut reply, call.headers);
        }
        reply
    }
}

/// Performs an action. Its future has the size of the largest branch and is moved for every request, so branches other than
/// inference that wait are boxed.
async fn perform(action: Action, call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let (server, target) = (&call.face.server, &call.target);
    match action {
        Action::Infer => infer::answer(call, body).await,
        Action::Generate => Box::pin(generate::one(call, body)).await,
        Action::GenerateStream => Box::pin(generate::stream(call, body)).await,
        Action::RepositoryIndex => Box::pin(repository::index(server, body)).await,
        Action::LoadModel => Box::pin(repository::load(server, target, body)).await,
        Action::UnloadModel => Box::pin(repository::unload(server, target, body)).await,
        Action::Live => Ok(metadata::server_live(server, call.headers)),
        Action::Ready => Ok(Box::pin(metadata::server_ready(server, call.headers)).await),
        Action::ServerMetadata => Ok(metadata::server(server)),
        Action::OpenApi => {
            let examples = openapi::examples::of(server);
            let document = openapi::written(ROUTES, &server.options().version, &examples);
            Ok(reply::json_bytes(StatusCode::OK, document))
        }
        Action::ModelMetadata => metadata::model(server, target),
        Action::ModelConfig => metadata::configuration(server, target),
        Action::ModelReady => Box::pin(metadata::model_ready(server, target)).await,
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

#[cfg(test)]
mod tests;
