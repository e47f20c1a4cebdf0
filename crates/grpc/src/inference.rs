//! The calls ModelInfer and ModelStreamInfer, with the codec of our own.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{StreamExt, iter};
use http::request::Parts;
use http::{Request, Response};
use nereid_core::BodyBudget;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, StdError};
use tonic::metadata::MetadataMap;

use crate::codec::{Incoming, Outgoing};
use crate::stream::InferStream;
use crate::tracing::Called;
use crate::{Face, infer, status};

/// Answers a call of inference. `counts` says whether its messages have to be counted.
pub(crate) fn call<B>(
    face: Arc<Face>,
    request: Request<B>,
    counts: bool,
) -> BoxFuture<Response<Body>, Infallible>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    let (parts, body) = request.into_parts();
    if parts.uri.path().ends_with("/ModelStreamInfer") {
        let requests = Incoming::new(body, face.body_budget(counts).clone());
        let response = stream(face, parts, requests);
        return Box::pin(async move { Ok(response) });
    }
    Box::pin(async move {
        let requests = Incoming::new(body, face.body_budget(counts));
        Ok(single(&face, parts, requests).await.unwrap_or_else(Status::into_http))
    })
}

/// Answers ModelInfer.
async fn single<B>(
    face: &Face,
    mut parts: Parts,
    mut requests: Incoming<B, &BodyBudget>,
) -> Result<Response<Body>, Status>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    let message = requests.next().await.ok_or_else(|| Status::internal("the call has no message"))??;
    // Its trailers are behind its last message.
    while let Some(further) = requests.next().await {
        further?;
    }
    parts.headers.extend(requests.take_trailers().unwrap_or_default());
    let metadata = MetadataMap::from_headers(parts.headers);
    let called = parts.extensions.get::<Called>().copied();
    match infer::answer(face, &metadata, called, message).await {
        (Ok(reply), trace) => {
            let mut response = Outgoing::response(iter([Ok(reply)]));
            if let Some(trace) = trace {
                response.extensions_mut().insert(trace);
            }
            Ok(response)
        }
        (Err(error), trace) => {
            if let Some(trace) = trace {
                trace.end();
            }
            Err(status::of(&error))
        }
    }
}

/// Answers ModelStreamInfer.
fn stream<B>(face: Arc<Face>, parts: Parts, requests: Incoming<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    let metadata = MetadataMap::from_headers(parts.headers);
    let called = parts.extensions.get::<Called>().copied();
    Outgoing::response(InferStream::new(face, metadata, called, requests))
}
