//! The calls of the service, one by one: each is handed to the file that answers it.

use std::sync::Arc;

use nereid_core::backend_api::Result;
use tonic::{Request, Response, Status, async_trait};

use crate::proto::grpc_inference_service_server::GrpcInferenceService;
use crate::proto::*;
use crate::{Face, infer, metadata, status};

/// Answers the calls.
pub(crate) struct Service(pub(crate) Arc<Face>);

type Answer<T> = std::result::Result<Response<T>, Status>;

fn answer<T>(outcome: Result<T>) -> Answer<T> {
    outcome.map(Response::new).map_err(|error| status::of(&error))
}

#[async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.0.server.is_ready() }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        let ready = metadata::model_ready(&self.0.server, &name, &version);
        answer(ready.map(|ready| ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Answer<ServerMetadataResponse> {
        Ok(Response::new(metadata::server(&self.0.server)))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Answer<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        answer(metadata::model(&self.0.server, &name, &version))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Answer<ModelConfigResponse> {
        let ModelConfigRequest { name, version } = request.into_inner();
        answer(metadata::configuration(&self.0.server, &name, &version))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        answer(infer::answer(&self.0, request.into_inner()).await)
    }
}
