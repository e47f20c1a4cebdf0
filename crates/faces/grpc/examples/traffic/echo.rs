//! A bare tonic service that echoes tensors, to measure the cost of the protocol alone.

use std::convert::Infallible;
use std::error::Error;
use std::future::Ready;
use std::net::TcpListener;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt};
use http::{Request, Response};
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::transport::Server;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

/// Serves on a free port, printed on standard output, until the process ends.
pub async fn serve() -> Result<(), Box<dyn Error + Send + Sync>> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    println!("Started echo at {address}");
    Ok(Server::builder().tcp_nodelay(true).serve(address, Echo).await?)
}

/// Echoes the inputs of a request as outputs.
fn answer(request: ModelInferRequest) -> ModelInferResponse {
    let output = |input: crate::proto::model_infer_request::InferInputTensor| InferOutputTensor {
        name: "OUTPUT0".to_owned(),
        datatype: input.datatype,
        shape: input.shape,
        ..InferOutputTensor::default()
    };
    ModelInferResponse {
        model_name: request.model_name,
        model_version: "1".to_owned(),
        id: request.id,
        outputs: request.inputs.into_iter().map(output).collect(),
        raw_output_contents: request.raw_input_contents,
        ..ModelInferResponse::default()
    }
}

#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            Ok(match request.uri().path().rsplit('/').next() {
                Some("ModelInfer") => {
                    let mut grpc = Grpc::new(ProstCodec::<ModelInferResponse, ModelInferRequest>::default())
                        .max_decoding_message_size(usize::MAX);
                    grpc.unary(One, request).await
                }
                Some("ModelStreamInfer") => {
                    let mut grpc =
                        Grpc::new(ProstCodec::<ModelStreamInferResponse, ModelInferRequest>::default())
                            .max_decoding_message_size(usize::MAX);
                    grpc.streaming(Many, request).await
                }
                _ => Status::unimplemented("this service echoes inference and does nothing else").into_http(),
            })
        })
    }
}

/// A unary handler: one answer per request.
struct One;

impl UnaryService<ModelInferRequest> for One {
    type Response = ModelInferResponse;
    type Future = Ready<Result<tonic::Response<ModelInferResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<ModelInferRequest>) -> Self::Future {
        std::future::ready(Ok(tonic::Response::new(answer(request.into_inner()))))
    }
}

/// A streaming handler: one answer per request of the stream.
struct Many;

impl StreamingService<ModelInferRequest> for Many {
    type Response = ModelStreamInferResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, requests: tonic::Request<Streaming<ModelInferRequest>>) -> Self::Future {
        let answers = requests.into_inner().map(|request| {
            let infer_response = Some(answer(request?));
            Ok(ModelStreamInferResponse { infer_response, ..ModelStreamInferResponse::default() })
        });
        std::future::ready(Ok(tonic::Response::new(Box::pin(answers) as Self::ResponseStream)))
    }
}
