//! A client over HTTP/1.1: JSON, with binary tensors behind it where the server has this extension.

mod body;
mod documents;
mod events;
mod response;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub use self::events::{EventParser, Events};
pub use crate::transport::path_segment;
use crate::transport::{self, Connector, Version, innermost, unreachable};
use crate::{
    Error, IndexEntry, InferRequest, InferResponse, LoadOverrides, ModelConfig, ModelMetadata,
    ModelStatistics, Options, RegionStatus, Retry, ServerMetadata,
};

/// The length of the JSON before binary tensors.
const JSON_LENGTH: &str = "inference-header-content-length";

/// A client of a server's HTTP port. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: legacy::Client<Connector, Full<Bytes>>,
    base: String,
    headers: HeaderMap,
    deadline: Option<Duration>,
    retry: Retry,
    /// Whether tensors are binary, once that is known.
    is_binary: OnceCell<bool>,
}

/// A response's headers and body.
struct Reply {
    headers: HeaderMap,
    body: Bytes,
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
        Ok(Self(Arc::new(Inner {
            connections: transport::client(options, Version::Http1)?,
            base: transport::base(url)?,
            headers: transport::headers(options)?,
            deadline: options.deadline,
            retry: options.retry.clone(),
            is_binary: OnceCell::new_with(options.is_binary),
        })))
    }

    /// Whether the server runs.
    ///
    /// # Errors
    /// The server denies access, or does not answer.
    pub async fn is_live(&self) -> Result<bool, Error> {
        self.is_true("/v2/health/live").await
    }

    /// Whether the server and its models accept requests.
    ///
    /// # Errors
    /// As for [`is_live`](Self::is_live).
    pub async fn is_ready(&self) -> Result<bool, Error> {
        self.is_true("/v2/health/ready").await
    }

    /// Whether a model accepts requests.
    ///
    /// # Errors
    /// As for [`is_live`](Self::is_live).
    pub async fn is_model_ready(&self, model: &str, version: Option<&str>) -> Result<bool, Error> {
        self.is_true(&format!("{}/ready", model_path(model, version.unwrap_or_default()))).await
    }

    /// The server's name, version and extensions.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn server_metadata(&self) -> Result<ServerMetadata, Error> {
        Ok(documents::server_metadata(&self.get("/v2").await?))
    }

    /// The signature of a model.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn model_metadata(&self, model: &str, version: Option<&str>) -> Result<ModelMetadata, Error> {
        documents::model_metadata(&self.get(&model_path(model, version.unwrap_or_default())).await?)
    }

    /// The configuration of a model.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn model_config(&self, model: &str, version: Option<&str>) -> Result<ModelConfig, Error> {
        documents::model_config(&self.model_config_json(model, version).await?)
    }

    /// The whole configuration of a model, as it is in JSON.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn model_config_json(&self, model: &str, version: Option<&str>) -> Result<Value, Error> {
        self.get(&format!("{}/config", model_path(model, version.unwrap_or_default()))).await
    }

    /// Counters of a model's versions, or of all models.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn statistics(&self, model: Option<&str>) -> Result<Vec<ModelStatistics>, Error> {
        let path = match model {
            None => "/v2/models/stats".to_owned(),
            Some(model) => format!("{}/stats", model_path(model, "")),
        };
        Ok(documents::statistics(&self.get(&path).await?))
    }

    /// The models in the repository, with their states.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn index(&self) -> Result<Vec<IndexEntry>, Error> {
        Ok(documents::index(&self.post("/v2/repository/index", &json!({})).await?))
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
        let path = format!("/v2/repository/models/{}/load", path_segment(model));
        self.post(&path, &body::load(overrides)).await.map(drop)
    }

    /// Unloads a model.
    ///
    /// # Errors
    /// The server refuses the request.
    pub async fn unload(&self, model: &str) -> Result<(), Error> {
        let path = format!("/v2/repository/models/{}/unload", path_segment(model));
        self.post(&path, &json!({})).await.map(drop)
    }

    /// Unloads a model, and the models that it uses.
    ///
    /// # Errors
    /// The server refuses the request.
    pub async fn unload_with_dependents(&self, model: &str) -> Result<(), Error> {
        let path = format!("/v2/repository/models/{}/unload", path_segment(model));
        self.post(&path, &json!({"parameters": {"unload_dependents": true}})).await.map(drop)
    }

    /// Registers shared memory with the server, under its name.
    ///
    /// # Errors
    /// The server refuses the request, such as one that is on another machine.
    #[cfg(target_os = "linux")]
    pub async fn register(&self, memory: &crate::SharedMemory) -> Result<(), Error> {
        let path = format!("/v2/systemsharedmemory/region/{}/register", path_segment(memory.name()));
        let body = json!({"key": memory.key(), "offset": 0, "byte_size": memory.size()});
        self.post(&path, &body).await.map(drop)
    }

    /// Unregisters a region of shared memory, or all.
    ///
    /// # Errors
    /// The server refuses the request.
    pub async fn unregister(&self, region: Option<&str>) -> Result<(), Error> {
        let path = match region {
            None => "/v2/systemsharedmemory/unregister".to_owned(),
            Some(name) => format!("/v2/systemsharedmemory/region/{}/unregister", path_segment(name)),
        };
        self.post(&path, &json!({})).await.map(drop)
    }

    /// The registered regions of shared memory.
    ///
    /// # Errors
    /// As for [`server_metadata`](Self::server_metadata).
    pub async fn regions(&self) -> Result<Vec<RegionStatus>, Error> {
        Ok(documents::regions(&self.get("/v2/systemsharedmemory/status").await?))
    }

    /// Sends a request to a model.
    ///
    /// # Errors
    /// The request is invalid, the model failed, or no response came in time.
    pub async fn infer(&self, request: InferRequest) -> Result<InferResponse, Error> {
        let is_binary = *self.0.is_binary.get_or_try_init(|| self.finds_binary()).await?;
        let path = format!("{}/infer", model_path(&request.model, &request.version));
        let (body, json_length) = body::infer(&request, is_binary)?;
        let mut headers = HeaderMap::new();
        if let Some(length) = json_length {
            headers.insert(JSON_LENGTH, length.into());
            headers.insert("content-type", http::HeaderValue::from_static("application/octet-stream"));
        }
        let deadline = request.deadline.or(self.0.deadline);
        let reply = self.send(Method::POST, &path, headers, body, deadline).await?;
        let length = reply.headers.get(JSON_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        response::read(&reply.body, length, &request.outputs)
    }

    /// Sends a request of the generate extension: a flat object with the inputs by their names. Returns an object with the
    /// outputs.
    ///
    /// # Errors
    /// As for [`infer`](Self::infer).
    pub async fn generate(&self, model: &str, inputs: &Value) -> Result<Value, Error> {
        self.post(&format!("{}/generate", model_path(model, "")), inputs).await
    }

    /// Sends a request of the generate extension whose responses arrive one by one. The deadline covers the time until they
    /// begin.
    ///
    /// # Errors
    /// As for [`infer`](Self::infer).
    pub async fn generate_stream(&self, model: &str, inputs: &Value) -> Result<Events, Error> {
        let path = format!("{}/generate_stream", model_path(model, ""));
        let mut headers = HeaderMap::new();
        headers.insert("accept", http::HeaderValue::from_static("text/event-stream"));
        let body = Bytes::from(inputs.to_string());
        let open = |_| async {
            let response = self.open(Method::POST, &path, &headers, body.clone()).await?;
            Ok(Events::new(response.into_body()))
        };
        self.0.retry.run(self.0.deadline, open).await
    }

    /// The body of any other document of the server, such as `/v2/logging`.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn get(&self, path: &str) -> Result<Value, Error> {
        let reply = self.send(Method::GET, path, HeaderMap::new(), Bytes::new(), self.0.deadline).await?;
        parse(&reply.body)
    }

    /// Posts a document to any other path of the server.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn post(&self, path: &str, document: &Value) -> Result<Value, Error> {
        let body = document.to_string().into();
        parse(&self.send(Method::POST, path, HeaderMap::new(), body, self.0.deadline).await?.body)
    }

    /// A server without metadata has no extensions.
    async fn finds_binary(&self) -> Result<bool, Error> {
        match self.server_metadata().await {
            Ok(server) => Ok(server.extensions.iter().any(|name| name == "binary_tensor_data")),
            Err(Error::Status { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads an answer about health: a server that is not ready answers with an error, or with `false` in a document.
    async fn is_true(&self, path: &str) -> Result<bool, Error> {
        let send = |_| self.exchange(Method::GET, path, HeaderMap::new(), Bytes::new());
        match Retry::NEVER.run(self.0.deadline, send).await {
            Ok(reply) => {
                let document: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
                Ok(["ready", "live"].iter().all(|name| document[name] != false))
            }
            Err(
                error @ Error::Status {
                    code: crate::Code::Unauthenticated | crate::Code::PermissionDenied,
                    ..
                },
            ) => Err(error),
            Err(Error::Status { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        deadline: Option<Duration>,
    ) -> Result<Reply, Error> {
        let send = |_| self.exchange(method.clone(), path, headers.clone(), body.clone());
        self.0.retry.run(deadline, send).await
    }

    /// One attempt.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, Error> {
        let (head, body) = self.open(method, path, &headers, body).await?.into_parts();
        let body = body.collect().await.map_err(|error| Error::Lost(innermost(&error)))?.to_bytes();
        Ok(Reply { headers: head.headers, body })
    }

    /// The head of a successful response, with its body to be read.
    async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, Error> {
        let invalid = |error: http::Error| Error::invalid(format!("invalid request: {error}"));
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.0.base))
            .header("user-agent", concat!("nereid-client/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .map_err(invalid)?;
        request.headers_mut().extend(self.0.headers.clone());
        request.headers_mut().extend(headers.clone());
        let response = self.0.connections.request(request).await.map_err(|error| unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        Err(response::error(head.status, &head.headers, &body))
    }
}

fn model_path(model: &str, version: &str) -> String {
    match version {
        "" => format!("/v2/models/{}", path_segment(model)),
        version => format!("/v2/models/{}/versions/{}", path_segment(model), path_segment(version)),
    }
}

/// The document of a body; null without one.
fn parse(body: &[u8]) -> Result<Value, Error> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| Error::response(format!("no JSON: {error}")))
}
