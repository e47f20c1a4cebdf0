//! The routes of this face, and the operations behind them.

use std::future::ready;

use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_core::backend_api::Result;
use nereid_http::{
    self as http, Face, PendingReply, Properties, Reply, RequestBody, Route, RouteId, RouteMatch, Routes,
    reply,
};
use nereid_protocol::{Action, ModelId};

use crate::call::Call;
use crate::infer::{self, generate};
use crate::{KserveHttp, metadata, openapi, release, repository, settings, shared_memory};

/// An operation of this face.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Live,
    Ready,
    ServerMetadata,
    OpenApi,
    ModelMetadata,
    ModelConfig,
    ModelReady,
    ModelStatistics,
    AllStatistics,
    ModelRelease,
    DecideRelease,
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

/// Every route.
pub(crate) static ROUTES: Routes<Operation> = Routes::new({
    use Action::*;
    const ALL: &[Route<Operation>] = &[
        post("/v2/models/{model}/infer", Infer, Operation::Infer),
        post("/v2/models/{model}/versions/{version}/infer", Infer, Operation::Infer),
        post("/v2/models/{model}/generate", Infer, Operation::Generate),
        post("/v2/models/{model}/versions/{version}/generate", Infer, Operation::Generate),
        post("/v2/models/{model}/generate_stream", Infer, Operation::GenerateStream),
        post("/v2/models/{model}/versions/{version}/generate_stream", Infer, Operation::GenerateStream),
        get("/v2/health/live", Health, Operation::Live),
        get("/v2/health/ready", Health, Operation::Ready),
        get("/v2", Metadata, Operation::ServerMetadata),
        // The path in KServe's definition of the protocol.
        get("/v2/", Metadata, Operation::ServerMetadata),
        get("/v2/openapi.json", Describe, Operation::OpenApi),
        get("/v2/models/stats", Statistics, Operation::AllStatistics),
        get("/v2/models/{model}", Metadata, Operation::ModelMetadata),
        get("/v2/models/{model}/versions/{version}", Metadata, Operation::ModelMetadata),
        get("/v2/models/{model}/config", ModelConfig, Operation::ModelConfig),
        get("/v2/models/{model}/versions/{version}/config", ModelConfig, Operation::ModelConfig),
        get("/v2/models/{model}/ready", Health, Operation::ModelReady),
        get("/v2/models/{model}/versions/{version}/ready", Health, Operation::ModelReady),
        get("/v2/models/{model}/stats", Statistics, Operation::ModelStatistics),
        get("/v2/models/{model}/versions/{version}/stats", Statistics, Operation::ModelStatistics),
        get("/v2/models/{model}/release", Statistics, Operation::ModelRelease),
        post("/v2/models/{model}/release", ChangeRelease, Operation::DecideRelease),
        post("/v2/repository/index", Index, Operation::RepositoryIndex),
        post("/v2/repository/models/{model}/load", Load, Operation::LoadModel),
        post("/v2/repository/models/{model}/unload", Unload, Operation::UnloadModel),
        post("/v2/repository/{repository}/index", Index, Operation::RepositoryIndex),
        post("/v2/repository/{repository}/models/{model}/load", Load, Operation::LoadModel),
        post("/v2/repository/{repository}/models/{model}/unload", Unload, Operation::UnloadModel),
        get("/v2/logging", ReadLog, Operation::Logging),
        post("/v2/logging", ChangeLog, Operation::SetLogging),
        get("/v2/trace/setting", ReadTrace, Operation::Trace),
        post("/v2/trace/setting", ChangeTrace, Operation::SetTrace),
        get("/v2/models/{model}/trace/setting", ReadTrace, Operation::Trace),
        post("/v2/models/{model}/trace/setting", ChangeTrace, Operation::SetTrace),
        get("/v2/systemsharedmemory/status", ListRegions, Operation::RegionStatus),
        get("/v2/systemsharedmemory/region/{region}/status", ListRegions, Operation::RegionStatus),
        post("/v2/systemsharedmemory/register", ChangeRegions, Operation::RegisterRegion),
        post("/v2/systemsharedmemory/region/{region}/register", ChangeRegions, Operation::RegisterRegion),
        post("/v2/systemsharedmemory/unregister", ChangeRegions, Operation::UnregisterRegion),
        post("/v2/systemsharedmemory/region/{region}/unregister", ChangeRegions, Operation::UnregisterRegion),
        get("/v2/cudasharedmemory/status", ListRegions, Operation::CudaStatus),
        get("/v2/cudasharedmemory/region/{region}/status", ListRegions, Operation::CudaStatus),
        post("/v2/cudasharedmemory/register", ChangeRegions, Operation::CudaRegister),
        post("/v2/cudasharedmemory/region/{region}/register", ChangeRegions, Operation::CudaRegister),
        post("/v2/cudasharedmemory/unregister", ChangeRegions, Operation::CudaUnregister),
        post("/v2/cudasharedmemory/region/{region}/unregister", ChangeRegions, Operation::CudaUnregister),
    ];
    ALL
})
.accepting(|parameter, segment| parameter != "version" || segment.bytes().all(|byte| byte.is_ascii_digit()));

/// The method, path and action of each route.
pub fn routes() -> impl Iterator<Item = (&'static Method, &'static str, Action)> {
    ROUTES.all().iter().map(|route| (&route.method, route.path, route.action))
}

const fn get(path: &'static str, action: Action, operation: Operation) -> Route<Operation> {
    Route::new(Method::GET, path, action, operation)
}

const fn post(path: &'static str, action: Action, operation: Operation) -> Route<Operation> {
    Route::new(Method::POST, path, action, operation)
}

impl Face for KserveHttp {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        ROUTES.find(head)
    }

    fn times_arrival(&self) -> bool {
        self.server.trace().is_on()
    }

    fn perform<'a>(
        &'a self,
        route: RouteId,
        call: &'a http::Call<'a>,
        body: RequestBody,
    ) -> PendingReply<'a> {
        match ROUTES.handler(route) {
            // Most requests: their future has only what they need.
            Some(Operation::Infer) => Box::pin(self.infer_routed(call, body)),
            Some(operation) => Box::pin(self.perform_operation(operation, call, body)),
            None => Box::pin(ready(not_found())),
        }
    }
}

impl KserveHttp {
    async fn infer_routed(&self, call: &http::Call<'_>, body: RequestBody) -> Reply {
        let call = Call::new(self, call);
        let reply = infer::answer(&call, body).await;
        self.with_load(reply, &call)
    }

    async fn perform_operation(
        &self,
        operation: Operation,
        call: &http::Call<'_>,
        body: RequestBody,
    ) -> Reply {
        let call = Call::new(self, call);
        let reply = perform(operation, &call, body).await;
        match operation {
            Operation::Infer | Operation::Generate | Operation::GenerateStream => {
                self.with_load(reply, &call)
            }
            _ => reply.unwrap_or_else(|error| (self.dialect.error)(&error)),
        }
    }

    /// The reply to an inference request, with the server's load.
    fn with_load(&self, reply: Result<Reply>, call: &Call<'_>) -> Reply {
        let mut reply = reply.unwrap_or_else(|error| (self.dialect.error)(&error));
        self.report_load(&mut reply, call.headers);
        reply
    }
}

/// The reply to paths without a route.
pub(crate) fn not_found() -> Reply {
    let message =
        "Not Found: GET /v2/openapi.json describes what there is, POST /v2/repository/index lists the models";
    reply::error_text(StatusCode::NOT_FOUND, message)
}

/// Performs an operation. Its future has the size of the largest branch and is moved for every request, so branches
/// other than inference that wait are boxed.
async fn perform(operation: Operation, call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let server = &call.face.server;
    match operation {
        Operation::Infer => infer::answer(call, body).await,
        Operation::Generate => Box::pin(generate::one(call, body)).await,
        Operation::GenerateStream => Box::pin(generate::stream(call, body)).await,
        Operation::RepositoryIndex => Box::pin(repository::index(call, body)).await,
        Operation::LoadModel => Box::pin(repository::load(call, body)).await,
        Operation::UnloadModel => Box::pin(repository::unload(call, body)).await,
        Operation::Live => Ok(metadata::server_live(server, call.headers)),
        Operation::Ready => Ok(Box::pin(metadata::server_ready(server, call)).await),
        Operation::ServerMetadata => Ok(metadata::server(server)),
        Operation::OpenApi => {
            let is_visible = |model: &ModelId| call.http.shows(Action::Metadata, model);
            let examples = openapi::examples::of(server, is_visible);
            let document = openapi::written(ROUTES.all(), &server.options().version, &examples);
            Ok(reply::json_bytes(StatusCode::OK, document))
        }
        Operation::ModelMetadata => Box::pin(metadata::model(call)).await,
        Operation::ModelConfig => Box::pin(metadata::configuration(call)).await,
        Operation::ModelReady => Box::pin(metadata::model_ready(call)).await,
        Operation::ModelRelease => release::show(call),
        Operation::DecideRelease => release::decide(call, body),
        Operation::ModelStatistics => metadata::statistics(call),
        Operation::AllStatistics => metadata::all_statistics(call),
        Operation::Logging => Ok(settings::logging(call)),
        Operation::SetLogging => settings::set_logging(call, body),
        Operation::Trace => settings::trace(call),
        Operation::SetTrace => settings::set_trace(call, body),
        Operation::RegionStatus => shared_memory::status(call),
        Operation::RegisterRegion => shared_memory::register(call, body),
        Operation::UnregisterRegion => shared_memory::unregister(call),
        Operation::CudaStatus => shared_memory::cuda_status(call),
        Operation::CudaRegister => shared_memory::cuda_register(call, body),
        Operation::CudaUnregister => shared_memory::cuda_unregister(call),
    }
}

#[cfg(test)]
mod tests;
