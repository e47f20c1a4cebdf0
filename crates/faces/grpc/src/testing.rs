//! Test fixtures: a server with scripted models, and an in-process client.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nereid_core::backend_api::{Backend, Request};
use nereid_core::{Interceptors, ModelControl, ModelId, ModelSpec, Server, ServerOptions};
pub(crate) use nereid_testkit::scripts::echoed;
use nereid_testkit::{ScriptedBackend, config};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::InferInputTensor;
use crate::proto::{InferParameter, ModelInferRequest};
use crate::{Calls, GrpcOptions};

/// A model with the input `IN` and the output `OUT`, one INT32 each.
pub(crate) const NUMBER: &str = r#"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"#;

/// A client of the calls, without a connection between.
pub(crate) type Client = GrpcInferenceServiceClient<Calls>;

/// A server and its calls.
pub(crate) struct Serving {
    pub server: Arc<Server>,
    pub calls: Calls,
    pub shutdown: CancellationToken,
}

impl Serving {
    /// A server with models of these names and configurations, which do `script` with each request.
    pub(crate) fn of_models(
        configs: &[(&str, String)],
        options: GrpcOptions,
        script: impl Fn(Request) + Send + Sync + 'static,
    ) -> Self {
        Self::with_interceptors(configs, options, Interceptors::default(), script)
    }

    /// Like `serving`, with interceptors before the queues.
    pub(crate) fn with_interceptors(
        configs: &[(&str, String)],
        options: GrpcOptions,
        interceptors: Interceptors,
        script: impl Fn(Request) + Send + Sync + 'static,
    ) -> Self {
        let server_options = ServerOptions { interceptors, ..ServerOptions::default() };
        Self::with_server_options(configs, options, server_options, script)
    }

    /// Like `serving`, with options of the server.
    pub(crate) fn with_server_options(
        configs: &[(&str, String)],
        options: GrpcOptions,
        server_options: ServerOptions,
        script: impl Fn(Request) + Send + Sync + 'static,
    ) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::answering(script));
        let spec = |(name, text): &(&str, String)| {
            let spec = ModelSpec::new(ModelId::plain(*name), *name, config(name, text), [1]);
            ((*name).to_owned(), Ok(spec))
        };
        let source: BTreeMap<_, _> = configs.iter().map(spec).collect();
        let server_options = ServerOptions {
            name: "test".into(),
            version: "0".into(),
            load_threads: 1,
            model_control: ModelControl::Explicit,
            ..server_options
        };
        let backends = BTreeMap::from([("scripted".to_owned(), backend)]);
        let server = Server::new(server_options, backends, Arc::new(source));
        assert!(server.start(None).unwrap().is_empty());
        let shutdown = CancellationToken::new();
        let calls = Calls::new(Arc::clone(&server), options, shutdown.clone());
        Self { server, calls, shutdown }
    }

    /// A server with model `m` of this configuration.
    pub(crate) fn new(config: &str, script: impl Fn(Request) + Send + Sync + 'static) -> Self {
        Self::of_models(&[("m", config.into())], GrpcOptions::default(), script)
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.calls.clone())
    }
}

/// A parameter of this value.
pub(crate) fn parameter(value: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(value) }
}

/// A request to a model of [`NUMBER`].
pub(crate) fn number(model: &str, id: &str, number: i32) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "IN".into(),
        datatype: "INT32".into(),
        shape: vec![1],
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: model.into(),
        id: id.into(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::copy_from_slice(&number.to_le_bytes())],
        ..ModelInferRequest::default()
    }
}

/// Answers with the inputs as outputs, and with the request's parameters.
pub(crate) fn echo(request: Request) {
    let response = echoed(&request);
    request.answer(Ok(response));
}

/// The number in a request's input.
pub(crate) fn input_number(request: &Request) -> i32 {
    let contents = request.inputs[0].contiguous().unwrap();
    i32::from_le_bytes(contents[..4].try_into().unwrap())
}

/// The code of a call's outcome.
pub(crate) fn code<T>(outcome: Result<T, Status>) -> Code {
    outcome.err().map_or(Code::Ok, |status| status.code())
}
