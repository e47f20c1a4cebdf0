//! The calls of the service, each dispatched to the file that answers it. Inference is in `inference.rs`.

use std::sync::Arc;

use futures_util::stream::Empty;
use nereid_core::backend_api::Result;
use nereid_core::{ModelId, ScopedName};
use nereid_protocol::Action;
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::proto::grpc_inference_service_server::GrpcInferenceService;
use crate::proto::*;
use crate::{Face, forward, metadata, repository, settings, shared_memory, statistics, status};

/// Answers the calls.
pub(crate) struct Service(pub(crate) Arc<Face>);

type StreamItem = std::result::Result<ModelStreamInferResponse, Status>;
type Answer<T> = std::result::Result<Response<T>, Status>;

/// The answer to inference calls, which `inference.rs` serves. Only calls with an unknown compression get as far as tonic,
/// which refuses them before it calls the service.
fn not_decompressed<T>() -> Answer<T> {
    Err(Status::unimplemented("the compression of the call's messages is not supported"))
}

fn answer<T>(outcome: Result<T>) -> Answer<T> {
    outcome.map(Response::new).map_err(|error| status::of(&error))
}

#[async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: self.0.server.is_live() }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.0.server.ready().await }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        self.0.permit(request.extensions(), Action::Health, Some(&request.get_ref().name))?;
        let scope = self.0.scope(request.extensions(), Action::Health);
        let ModelReadyRequest { name, version } = request.into_inner();
        let name = ScopedName::new(&name, &scope);
        let ready = metadata::model_ready(&self.0.server, name, &version).await;
        answer(ready.map(|ready| ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Answer<ServerMetadataResponse> {
        Ok(Response::new(metadata::server(&self.0.server)))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Answer<ModelMetadataResponse> {
        self.0.permit(request.extensions(), Action::Metadata, Some(&request.get_ref().name))?;
        let (metadata, extensions, ModelMetadataRequest { name, version }) = request.into_parts();
        let scope = self.0.scope(&extensions, Action::Metadata);
        let head = || forward::head(&self.0.options, &metadata);
        answer(metadata::model(&self.0.server, ScopedName::new(&name, &scope), &version, head).await)
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Answer<ModelConfigResponse> {
        self.0.permit(request.extensions(), Action::ModelConfig, Some(&request.get_ref().name))?;
        let (metadata, extensions, ModelConfigRequest { name, version }) = request.into_parts();
        let scope = self.0.scope(&extensions, Action::ModelConfig);
        let head = || forward::head(&self.0.options, &metadata);
        let name = ScopedName::new(&name, &scope);
        answer(metadata::configuration(&self.0.server, name, &version, head).await)
    }

    async fn model_infer(&self, _: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        not_decompressed()
    }

    type ModelStreamInferStream = Empty<StreamItem>;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<ModelInferRequest>>,
    ) -> Answer<Self::ModelStreamInferStream> {
        not_decompressed()
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Answer<ModelStatisticsResponse> {
        let (_, extensions, ModelStatisticsRequest { name, version }) = request.into_parts();
        let model = Some(name.as_str()).filter(|name| !name.is_empty());
        self.0.permit(&extensions, Action::Statistics, model)?;
        let scope = self.0.scope(&extensions, Action::Statistics);
        let is_visible = |model: &ModelId| self.0.shows(&extensions, Action::Statistics, model);
        answer(statistics::of(&self.0.server, ScopedName::new(&name, &scope), &version, is_visible))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Answer<RepositoryIndexResponse> {
        // The caller may see the index; each model in it may have rights of its own.
        let is_visible = |model: &ModelId| self.0.shows(request.extensions(), Action::Index, model);
        answer(repository::index(&self.0.server, request.get_ref(), is_visible).await)
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Answer<RepositoryModelLoadResponse> {
        let RepositoryModelLoadRequest { model_name, parameters, .. } = request.get_ref();
        let extensions = request.extensions();
        self.0.permit(extensions, Action::Load, Some(model_name))?;
        let mut scope = self.0.scope(extensions, Action::Load);
        if !parameters.is_empty() {
            self.0.permit(extensions, Action::LoadFiles, Some(model_name))?;
            scope = scope.and(self.0.scope(extensions, Action::LoadFiles));
        }
        let loaded = repository::load(&self.0.server, request.into_inner(), &scope).await;
        answer(loaded.map(|()| RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Answer<RepositoryModelUnloadResponse> {
        self.0.permit(request.extensions(), Action::Unload, Some(&request.get_ref().model_name))?;
        let scope = self.0.scope(request.extensions(), Action::Unload);
        let unloaded = repository::unload(&self.0.server, request.into_inner(), &scope).await;
        answer(unloaded.map(|()| RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Answer<SystemSharedMemoryStatusResponse> {
        answer(shared_memory::status(&self.0.options.regions, &request.get_ref().name))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Answer<SystemSharedMemoryRegisterResponse> {
        self.0.note(request.extensions(), Action::ChangeRegions, Some(&request.get_ref().name));
        let registered = shared_memory::register(&self.0.options.regions, request.get_ref());
        answer(registered.map(|()| SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Answer<SystemSharedMemoryUnregisterResponse> {
        self.0.note(request.extensions(), Action::ChangeRegions, Some(&request.get_ref().name));
        let unregistered = shared_memory::unregister(&self.0.options.regions, &request.get_ref().name);
        answer(unregistered.map(|()| SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<CudaSharedMemoryStatusRequest>,
    ) -> Answer<CudaSharedMemoryStatusResponse> {
        answer(shared_memory::cuda_status(&self.0.options.regions, &request.get_ref().name))
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Answer<CudaSharedMemoryRegisterResponse> {
        self.0.note(request.extensions(), Action::ChangeRegions, Some(&request.get_ref().name));
        let registered = shared_memory::cuda_register(&self.0.options.regions, request.get_ref());
        answer(registered.map(|()| CudaSharedMemoryRegisterResponse {}))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        request: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Answer<CudaSharedMemoryUnregisterResponse> {
        self.0.note(request.extensions(), Action::ChangeRegions, Some(&request.get_ref().name));
        let unregistered = shared_memory::cuda_unregister(&self.0.options.regions, &request.get_ref().name);
        answer(unregistered.map(|()| CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(&self, request: Request<TraceSettingRequest>) -> Answer<TraceSettingResponse> {
        let TraceSettingRequest { settings, model_name } = request.get_ref();
        let action = if settings.is_empty() { Action::ReadTrace } else { Action::ChangeTrace };
        let model = Some(model_name.as_str()).filter(|name| !name.is_empty());
        self.0.permit(request.extensions(), action, model)?;
        let scope = self.0.scope(request.extensions(), action);
        answer(settings::trace(&self.0.server, request.get_ref(), &scope))
    }

    async fn log_settings(&self, request: Request<LogSettingsRequest>) -> Answer<LogSettingsResponse> {
        if !request.get_ref().settings.is_empty() {
            self.0.permit(request.extensions(), Action::ChangeLog, None)?;
        }
        answer(settings::log(&self.0.options.log, request.into_inner()))
    }
}
