//! A client over gRPC.

mod contents;
mod convert;
#[rustfmt::skip]
#[allow(missing_docs, unused_qualifications, clippy::all)]
pub mod proto;
mod status;
mod stream;

use std::time::Duration;

use http::{HeaderMap, Uri};
use hyper_util::client::legacy;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

pub use self::stream::{Requests, Responses};
use crate::transport::{self, Connector, Version};
use crate::{
    Error, IndexEntry, InferRequest, InferResponse, LoadOverrides, ModelConfig, ModelMetadata,
    ModelStatistics, Options, RegionStatus, Retry, ServerMetadata,
};

type Service = proto::grpc_inference_service_client::GrpcInferenceServiceClient<
    legacy::Client<Connector, tonic::body::Body>,
>;

/// A client of a server's gRPC port. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    service: Service,
    metadata: MetadataMap,
    deadline: Option<Duration>,
    retry: Retry,
}

impl Client {
    /// A client with default options. It connects with its first request.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::with_options(url, &Options::new())
    }

    pub(crate) fn with_options(url: &str, options: &Options) -> Result<Self, Error> {
        let base = transport::base(url)?;
        let uri: Uri =
            base.parse().map_err(|error| Error::invalid(format!("invalid URL '{url}': {error}")))?;
        let service = Service::with_origin(transport::client(options, Version::Http2)?, uri)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let headers: HeaderMap = transport::headers(options)?;
        let metadata = MetadataMap::from_headers(headers);
        Ok(Self { service, metadata, deadline: options.deadline, retry: options.retry.clone() })
    }

    /// Whether the server runs.
    ///
    /// # Errors
    /// The server denies access, or does not answer.
    pub async fn is_live(&self) -> Result<bool, Error> {
        let send = |mut service: Service, request| async move { service.server_live(request).await };
        Ok(self.once(proto::ServerLiveRequest {}, send).await?.live)
    }

    /// Whether the server and its models accept requests.
    ///
    /// # Errors
    /// As for [`is_live`](Self::is_live).
    pub async fn is_ready(&self) -> Result<bool, Error> {
        let send = |mut service: Service, request| async move { service.server_ready(request).await };
        Ok(self.once(proto::ServerReadyRequest {}, send).await?.ready)
    }

    /// Whether a model accepts requests.
    ///
    /// # Errors
    /// As for [`is_live`](Self::is_live).
    pub async fn is_model_ready(&self, model: &str, version: Option<&str>) -> Result<bool, Error> {
        let version = version.unwrap_or_default().to_owned();
        let message = proto::ModelReadyRequest { name: model.to_owned(), version };
        let send = |mut service: Service, request| async move { service.model_ready(request).await };
        match self.once(message, send).await {
            Ok(answer) => Ok(answer.ready),
            Err(Error::Status { code: crate::Code::NotFound | crate::Code::Unavailable, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The server's name, version and extensions.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn server_metadata(&self) -> Result<ServerMetadata, Error> {
        let send = |mut service: Service, request| async move { service.server_metadata(request).await };
        let proto::ServerMetadataResponse { name, version, extensions } =
            self.call(proto::ServerMetadataRequest {}, None, send).await?;
        Ok(ServerMetadata { name, version, extensions })
    }

    /// The signature of a model.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn model_metadata(&self, model: &str, version: Option<&str>) -> Result<ModelMetadata, Error> {
        let version = version.unwrap_or_default().to_owned();
        let message = proto::ModelMetadataRequest { name: model.to_owned(), version };
        let send = |mut service: Service, request| async move { service.model_metadata(request).await };
        convert::model_metadata(self.call(message, None, send).await?)
    }

    /// The configuration of a model.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn model_config(&self, model: &str, version: Option<&str>) -> Result<ModelConfig, Error> {
        convert::model_config(self.model_config_message(model, version).await?)
    }

    /// The whole configuration of a model, as it is in gRPC.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn model_config_message(
        &self,
        model: &str,
        version: Option<&str>,
    ) -> Result<proto::ModelConfig, Error> {
        let version = version.unwrap_or_default().to_owned();
        let message = proto::ModelConfigRequest { name: model.to_owned(), version };
        let send = |mut service: Service, request| async move { service.model_config(request).await };
        Ok(self.call(message, None, send).await?.config.unwrap_or_default())
    }

    /// Counters of a model's versions, or of all models.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn statistics(&self, model: Option<&str>) -> Result<Vec<ModelStatistics>, Error> {
        let name = model.unwrap_or_default().to_owned();
        let message = proto::ModelStatisticsRequest { name, version: String::new() };
        let send = |mut service: Service, request| async move { service.model_statistics(request).await };
        let found = self.call(message, None, send).await?.model_stats;
        Ok(found.into_iter().map(convert::statistics).collect())
    }

    /// The models in the repository, with their states.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn index(&self) -> Result<Vec<IndexEntry>, Error> {
        let send = |mut service: Service, request| async move { service.repository_index(request).await };
        let found = self.call(proto::RepositoryIndexRequest::default(), None, send).await?.models;
        Ok(found.into_iter().map(convert::index_entry).collect())
    }

    /// Loads a model, or loads it again if it changed.
    ///
    /// # Errors
    /// The model cannot be loaded, or the server refuses the request.
    pub async fn load(&self, model: &str) -> Result<(), Error> {
        self.load_with(model, &LoadOverrides::default()).await
    }

    /// Loads a model with another configuration or other files.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub async fn load_with(&self, model: &str, overrides: &LoadOverrides) -> Result<(), Error> {
        let message = convert::load(model, overrides);
        let send =
            |mut service: Service, request| async move { service.repository_model_load(request).await };
        self.call(message, None, send).await.map(drop)
    }

    /// Unloads a model.
    ///
    /// # Errors
    /// The server refuses the request.
    pub async fn unload(&self, model: &str) -> Result<(), Error> {
        self.unload_model(model, false).await
    }

    /// Unloads a model, and the models that it uses.
    ///
    /// # Errors
    /// The server refuses the request.
    pub async fn unload_with_dependents(&self, model: &str) -> Result<(), Error> {
        self.unload_model(model, true).await
    }

    async fn unload_model(&self, model: &str, with_dependents: bool) -> Result<(), Error> {
        let message = convert::unload(model, with_dependents);
        let send =
            |mut service: Service, request| async move { service.repository_model_unload(request).await };
        self.call(message, None, send).await.map(drop)
    }

    /// Registers shared memory with the server, under its name.
    ///
    /// # Errors
    /// The server refuses the request, such as one that is on another machine.
    #[cfg(target_os = "linux")]
    pub async fn register(&self, memory: &crate::SharedMemory) -> Result<(), Error> {
        let message = proto::SystemSharedMemoryRegisterRequest {
            name: memory.name().to_owned(),
            key: memory.key(),
            offset: 0,
            byte_size: memory.size() as u64,
        };
        let send = |mut service: Service, request| async move {
            service.system_shared_memory_register(request).await
        };
        self.call(message, None, send).await.map(drop)
    }

    /// Unregisters a region of shared memory, or all.
    ///
    /// # Errors
    /// The server refuses the request.
    pub async fn unregister(&self, region: Option<&str>) -> Result<(), Error> {
        let name = region.unwrap_or_default().to_owned();
        let message = proto::SystemSharedMemoryUnregisterRequest { name };
        let send = |mut service: Service, request| async move {
            service.system_shared_memory_unregister(request).await
        };
        self.call(message, None, send).await.map(drop)
    }

    /// The registered regions of shared memory.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn regions(&self) -> Result<Vec<RegionStatus>, Error> {
        let message = proto::SystemSharedMemoryStatusRequest::default();
        let send =
            |mut service: Service, request| async move { service.system_shared_memory_status(request).await };
        let found = self.call(message, None, send).await?.regions;
        let status = |region: proto::system_shared_memory_status_response::RegionStatus| {
            let proto::system_shared_memory_status_response::RegionStatus { name, key, offset, byte_size } =
                region;
            RegionStatus { name, key, offset, size: byte_size }
        };
        Ok(found.into_values().map(status).collect())
    }

    /// Sends a request to a model.
    ///
    /// # Errors
    /// The request is invalid, the model failed, or no response came in time.
    pub async fn infer(&self, request: InferRequest) -> Result<InferResponse, Error> {
        let deadline = request.deadline;
        let requested = request.outputs.clone();
        let message = convert::infer_request(request)?;
        let send = |mut service: Service, request| async move { service.model_infer(request).await };
        convert::infer_response(self.call(message, deadline, send).await?, &requested)
    }

    /// Sends a request to a model that may answer any number of times.
    ///
    /// # Errors
    /// The request is invalid.
    pub async fn infer_stream(&self, request: InferRequest) -> Result<Responses, Error> {
        let (requests, responses) = self.stream();
        requests.send(request).await?;
        Ok(responses)
    }

    /// Opens a stream for requests and their responses. The stream has no deadline; a request's own is ignored.
    pub fn stream(&self) -> (Requests, Responses) {
        stream::open(self.service.clone(), self.metadata.clone())
    }

    /// One call, with further attempts.
    async fn call<Q: Clone, A, F>(
        &self,
        message: Q,
        deadline: Option<Duration>,
        send: impl Fn(Service, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.attempts(&self.retry, message, deadline.or(self.deadline), send).await
    }

    /// One call of a single attempt.
    async fn once<Q: Clone, A, F>(
        &self,
        message: Q,
        send: impl Fn(Service, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.attempts(&Retry::NEVER, message, self.deadline, send).await
    }

    async fn attempts<Q: Clone, A, F>(
        &self,
        retry: &Retry,
        message: Q,
        deadline: Option<Duration>,
        send: impl Fn(Service, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let attempt = |left: Option<Duration>| {
            let mut request = Request::new(message.clone());
            *request.metadata_mut() = self.metadata.clone();
            if let Some(left) = left {
                request.set_timeout(left);
            }
            let response = send(self.service.clone(), request);
            async move { response.await.map(Response::into_inner).map_err(status::error) }
        };
        retry.run(deadline, attempt).await
    }
}
